//! Zeroed memory at cache-line alignment, so that no vector load of a panel or a key crosses a line.
//!
//! The length in bytes never changes after allocation.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use anyhow::{Context, Result};

/// An owned block of bytes, aligned to [`Buffer::ALIGN`].
pub(crate) struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the block is owned, plain memory.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    const ALIGN: usize = 64;

    /// Zeroed memory.
    ///
    /// # Errors
    /// When the system has no such block.
    pub(crate) fn zeroed(bytes: usize) -> Result<Buffer> {
        let refused = || format!("no memory for {bytes} bytes in one piece");
        let layout = Layout::from_size_align(bytes.max(1), Buffer::ALIGN).with_context(refused)?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).with_context(refused)?;
        Ok(Buffer { start, layout })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }

    pub(crate) fn start(&self) -> *const u8 {
        self.start.as_ptr()
    }

    pub(crate) fn start_mut(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

//! Zeroed memory at cache-line alignment, so that no vector load of a panel or a key crosses a line.
//!
//! Large blocks ask the system for huge pages: a product walks through memory faster than address translation can follow
//! in pages of 4 KiB. The length in bytes never changes after allocation.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use anyhow::{Context, Result};
use memmap2::MmapMut;

/// An owned block of bytes, aligned to [`Buffer::ALIGN`].
pub(crate) struct Buffer {
    start: NonNull<u8>,
    bytes: usize,
    memory: Memory,
}

/// Who owns the bytes, to give them back in the end.
enum Memory {
    Heap(Layout),
    Pages { _map: MmapMut },
}

// SAFETY: the block is owned, plain memory.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    const ALIGN: usize = 64;

    /// Blocks from this size on are pages of their own: two huge ones on x86-64.
    const LARGE: usize = 4 << 20;

    /// Zeroed memory.
    ///
    /// # Errors
    /// When the system has no such block.
    pub(crate) fn zeroed(bytes: usize) -> Result<Buffer> {
        let refused = || format!("no memory for {bytes} bytes in one piece");
        if bytes >= Buffer::LARGE {
            return Buffer::pages(bytes).with_context(refused);
        }
        let layout = Layout::from_size_align(bytes.max(1), Buffer::ALIGN).with_context(refused)?;
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).with_context(refused)?;
        Ok(Buffer { start, bytes: layout.size(), memory: Memory::Heap(layout) })
    }

    fn pages(bytes: usize) -> Result<Buffer> {
        let mut map = MmapMut::map_anon(bytes)?;
        // A wish: where the system has no huge pages, small ones serve.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        let start = NonNull::new(map.as_mut_ptr()).context("no address")?;
        Ok(Buffer { start, bytes, memory: Memory::Pages { _map: map } })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
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
        if let Memory::Heap(layout) = self.memory {
            // SAFETY: allocated with this layout, and freed once.
            unsafe { dealloc(self.start.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Buffer;

    #[test]
    fn small_and_large_blocks_are_zeroed_aligned_and_writable_to_their_last_byte() {
        for bytes in [0, 1, 100, Buffer::LARGE - 1, Buffer::LARGE, 3 * Buffer::LARGE + 17] {
            let mut buffer = Buffer::zeroed(bytes).unwrap();
            let length = buffer.bytes();
            assert_eq!(length, bytes.max(1));
            assert_eq!(buffer.start() as usize % Buffer::ALIGN, 0);
            // SAFETY: the block has so many bytes, and nothing else refers to them.
            let all = unsafe { std::slice::from_raw_parts_mut(buffer.start_mut(), length) };
            assert!(all.iter().all(|byte| *byte == 0), "{bytes}");
            all[length - 1] = 7;
        }
        let error = Buffer::zeroed(usize::MAX / 4).err().unwrap().to_string();
        assert!(error.starts_with("no memory for"), "{error}");
    }
}

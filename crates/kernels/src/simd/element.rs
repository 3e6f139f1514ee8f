//! The element types of weights and of the KV store, as the kernels read and write them.

use half::{bf16, f16};

use super::Simd;

/// A stored number that is widened as it is loaded.
pub(crate) trait Stored: Copy + Send + Sync + 'static {
    /// What activations are multiplied with before the product, so that no product with a stored number is too small.
    const ACTIVATIONS: f32 = 1.0;

    /// Loads a vector, widened.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn load<S: Simd>(p: *const Self) -> S::F;

    /// The numbers themselves where they need no widening.
    fn wide(_p: *const Self) -> Option<*const f32> {
        None
    }
}

/// A code of E4M3. It is widened to its value divided by 2^120, which its activations and its scale make up for.
#[derive(Clone, Copy)]
pub(crate) struct E4m3 {
    _code: u8,
}

impl E4m3 {
    /// What scales are multiplied with.
    pub(crate) const SCALES: f32 = (1u64 << 56) as f32;
}

impl Stored for E4m3 {
    const ACTIVATIONS: f32 = (1u128 << 64) as f32;

    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const E4m3) -> S::F {
        // SAFETY: the caller keeps the contract; a code is a byte.
        unsafe { S::load_e4m3(p.cast()) }
    }
}

/// A stored float that widens exactly to f32.
pub(crate) trait Element: Stored {
    /// Reads one little-endian element.
    fn read(bytes: &[u8]) -> Self;
    /// Rounds to nearest even.
    fn narrow(x: f32) -> Self;
    /// Exact.
    fn widen(self) -> f32;
}

/// An element type of the KV store.
pub(crate) trait KvElement: Element {
    /// Stores a vector, rounded to nearest even.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F);
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::F {
        // SAFETY: the caller keeps the contract.
        unsafe { S::load(p) }
    }

    #[inline(always)]
    fn wide(p: *const f32) -> Option<*const f32> {
        Some(p)
    }
}

impl Element for f32 {
    fn read(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
    fn narrow(x: f32) -> f32 {
        x
    }
    fn widen(self) -> f32 {
        self
    }
}

impl Stored for f16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f16) -> S::F {
        // SAFETY: the caller keeps the contract; f16 is a u16 inside.
        unsafe { S::load_f16(p.cast()) }
    }
}

impl Element for f16 {
    fn read(bytes: &[u8]) -> f16 {
        f16::from_le_bytes([bytes[0], bytes[1]])
    }
    fn narrow(x: f32) -> f16 {
        f16::from_f32(x)
    }
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Stored for bf16 {
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const bf16) -> S::F {
        // SAFETY: the caller keeps the contract; bf16 is a u16 inside.
        unsafe { S::load_bf16(p.cast()) }
    }
}

impl Element for bf16 {
    fn read(bytes: &[u8]) -> bf16 {
        bf16::from_le_bytes([bytes[0], bytes[1]])
    }
    fn narrow(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl KvElement for f32 {
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut f32, v: S::F) {
        // SAFETY: the caller keeps the contract.
        unsafe { S::store(p, v) }
    }
}

impl KvElement for f16 {
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut f16, v: S::F) {
        // SAFETY: the caller keeps the contract; f16 is a u16 inside.
        unsafe { S::store_f16(p.cast(), v) }
    }
}

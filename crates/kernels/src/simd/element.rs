//! The element types of weights and of the KV store, as the kernels read and write them.

use half::{bf16, f16};

use super::Simd;

/// A stored float that widens exactly to f32.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Reads one little-endian element.
    fn read(bytes: &[u8]) -> Self;
    /// Rounds to nearest even.
    fn narrow(x: f32) -> Self;
    /// Exact.
    fn widen(self) -> f32;
    /// Loads a vector, widened.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn load<S: Simd>(p: *const Self) -> S::F;
}

/// An element type of the KV store.
pub(crate) trait KvElement: Element {
    /// Stores a vector, rounded to nearest even.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn store<S: Simd>(p: *mut Self, v: S::F);
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
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::F {
        // SAFETY: the caller keeps the contract.
        unsafe { S::load(p) }
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
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f16) -> S::F {
        // SAFETY: the caller keeps the contract; f16 is a u16 inside.
        unsafe { S::load_f16(p.cast()) }
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
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const bf16) -> S::F {
        // SAFETY: the caller keeps the contract; bf16 is a u16 inside.
        unsafe { S::load_bf16(p.cast()) }
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

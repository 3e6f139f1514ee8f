//! The vector operations that every kernel is written in, once for each instruction-set path.
//!
//! A kernel is a `#[inline(always)]` body over `S: Simd`; [`for_isa`] instantiates it inside functions that carry the
//! path's target features, so that the operations become single instructions.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod codes;
mod element;
mod scalar;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub(crate) use codes::{Codes, DOT, offset};
pub(crate) use element::{E4m3, Element, KvElement, Stored};
pub(crate) use scalar::Scalar;

/// The most lanes of any path.
pub(crate) const MAX_LANES: usize = 16;

/// One path's vectors of f32.
///
/// # Safety
/// Every function needs the path's instructions, and memory behind its pointers for all lanes (or the first `n`);
/// alignment is never needed.
pub(crate) trait Simd: Copy + 'static {
    /// Lanes of a vector, at most [`MAX_LANES`].
    const LANES: usize;
    /// Panels of a packed matrix that one row of a product takes at once; 4, 2 or 1.
    const PANELS: usize;
    /// A vector.
    type F: Copy;

    unsafe fn splat(x: f32) -> Self::F;
    unsafe fn load(p: *const f32) -> Self::F;
    unsafe fn store(p: *mut f32, v: Self::F);
    /// The first `n < LANES` lanes from memory, zeros in the others.
    unsafe fn load_first(p: *const f32, n: usize) -> Self::F;
    /// Stores the first `n < LANES` lanes.
    unsafe fn store_first(p: *mut f32, n: usize, v: Self::F);
    /// Widens exactly.
    unsafe fn load_f16(p: *const u16) -> Self::F;
    /// Widens exactly.
    unsafe fn load_bf16(p: *const u16) -> Self::F;
    /// One finite E4M3 number for each lane, all divided by 2^120: exponent and fraction stand where an f32 has its own,
    /// whose exponent counts from another zero.
    unsafe fn load_e4m3(p: *const u8) -> Self::F;
    /// Rounds to nearest even.
    unsafe fn store_f16(p: *mut u16, v: Self::F);
    /// Asks for a cache line that is read soon. Any address will do.
    unsafe fn prefetch(p: *const u8);

    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`; one rounding where the path has it in hardware, two on the scalar path.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger of each lane; `b` where either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller of each lane; `b` where either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest whole number, ties to even, for magnitudes below 2^22.
    unsafe fn round(v: Self::F) -> Self::F;
    /// `v * 2^n` for whole `n` in -252..=254, rounded once when the result is subnormal.
    unsafe fn scale(v: Self::F, n: Self::F) -> Self::F;

    /// The sum of all lanes, in one fixed order.
    unsafe fn sum(v: Self::F) -> f32;
    /// The largest lane.
    unsafe fn largest(v: Self::F) -> f32;
    /// Stores the sums of the lanes of four vectors, each in the same fixed order.
    unsafe fn sums(v: &[Self::F; 4], to: *mut f32);
}

/// Loads up to a full vector: `n` lanes if fewer than `LANES` are left, zeros in the others.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn load_up_to<S: Simd>(p: *const f32, n: usize) -> S::F {
    // SAFETY: the caller keeps the contract.
    unsafe { if n >= S::LANES { S::load(p) } else { S::load_first(p, n) } }
}

/// Stores up to a full vector, as [`load_up_to`] loads it.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn store_up_to<S: Simd>(p: *mut f32, n: usize, v: S::F) {
    // SAFETY: the caller keeps the contract.
    unsafe { if n >= S::LANES { S::store(p, v) } else { S::store_first(p, n, v) } }
}

/// Makes `unsafe fn NAME[E](isa, ARGUMENTS)`, which runs the generic BODY on the path `isa`.
///
/// The function's contract is the body's, and that the CPU has `isa`, which a `Team` guarantees.
macro_rules! for_isa {
    ($vis:vis fn $name:ident[$($element:ident: $bound:path),*]($($arg:ident: $ty:ty),* $(,)?) = $body:ident) => {
        $vis unsafe fn $name<$($element: $bound),*>(isa: $crate::isa::Isa, $($arg: $ty),*) {
            use $crate::isa::Isa;
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2<$($element: $bound),*>($($arg: $ty),*) {
                // SAFETY: the caller keeps the body's contract, and this function has the instructions.
                unsafe { $body::<$crate::simd::Avx2 $(, $element)*>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
            unsafe fn avx512<$($element: $bound),*>($($arg: $ty),*) {
                // SAFETY: as above.
                unsafe { $body::<$crate::simd::Avx512 $(, $element)*>($($arg),*) }
            }
            // SAFETY: the caller keeps the body's contract and has checked that the CPU has `isa`.
            unsafe {
                match isa {
                    Isa::Scalar => $body::<$crate::simd::Scalar $(, $element)*>($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx2 => avx2::<$($element),*>($($arg),*),
                    #[cfg(target_arch = "x86_64")]
                    Isa::Avx512 => avx512::<$($element),*>($($arg),*),
                    #[cfg(not(target_arch = "x86_64"))]
                    Isa::Avx2 | Isa::Avx512 => unreachable!("a team's path exists on its CPU"),
                }
            }
        }
    };
}
pub(crate) use for_isa;

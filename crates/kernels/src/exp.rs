//! The one exponential of the kernels: the same operations for every lane, full vector and tail.
//!
//! Range reduction by ln 2 in two pieces and the polynomial of Cephes' `expf` (S. Moshier), accurate to about one unit
//! in the last place; arguments below -104 give zero and those above 88.7 the largest power, never infinity.

use crate::simd::Simd;

/// `e^x` in each lane; NaN stays NaN.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let x = S::min(S::splat(88.7), S::max(S::splat(-105.0), x));
        let n = S::round(S::mul(x, S::splat(std::f32::consts::LOG2_E)));
        // The upper piece of ln 2 has so few bits that its product with n is exact, fused or not.
        let r = S::fma(n, S::splat(-0.693_359_4), x);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.000_000_1e-1] {
            p = S::fma(p, r, S::splat(c));
        }
        let p = S::fma(p, S::mul(r, r), S::add(r, S::splat(1.0)));
        S::scale(p, n)
    }
}

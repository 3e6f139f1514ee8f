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
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = S::fma(p, r, S::splat(c));
        }
        let p = S::fma(p, S::mul(r, r), S::add(r, S::splat(1.0)));
        S::scale(p, n)
    }
}

#[cfg(test)]
mod tests {
    use super::exp;
    use crate::simd::{MAX_LANES, Simd, for_isa};
    use crate::testing::teams;

    for_isa!(fn exp_on[](x: &mut [f32; MAX_LANES]) = body);

    /// # Safety
    /// As for [`Simd`].
    #[inline(always)]
    unsafe fn body<S: Simd>(x: &mut [f32; MAX_LANES]) {
        for lanes in x.chunks_exact_mut(S::LANES) {
            // SAFETY: a chunk is one vector.
            unsafe { S::store(lanes.as_mut_ptr(), exp::<S>(S::load(lanes.as_ptr()))) }
        }
    }

    /// Errors in units in the last place of the exact result, at its f32 precision.
    fn worst(isa: crate::Isa, from: f32, to: f32) -> f64 {
        let steps = 1_000_000;
        let mut worst = 0f64;
        for start in (0..steps).step_by(MAX_LANES) {
            let at = |i: usize| from + (to - from) * ((start + i) as f32 / steps as f32);
            let mut x: [f32; MAX_LANES] = std::array::from_fn(at);
            // SAFETY: `isa` comes from a team.
            unsafe { exp_on(isa, &mut x) };
            for (i, y) in x.iter().enumerate() {
                let exact = f64::from(at(i)).exp();
                let ulp = f64::from((exact as f32).next_up()) - f64::from(exact as f32);
                worst = worst.max((f64::from(*y) - exact).abs() / ulp);
            }
        }
        worst
    }

    #[test]
    fn exp_is_accurate_to_two_units_in_the_last_place() {
        for team in teams(&[1]) {
            for (from, to) in [(-1.0, 1.0), (-20.0, 0.0), (-88.0, 0.0), (-104.0, -86.0), (0.0, 88.5)] {
                let worst = worst(team.isa(), from, to);
                eprintln!("{}: exp on [{from}, {to}]: {worst:.3} ulp", team.isa());
                assert!(worst < 2.0, "{}: exp on [{from}, {to}] is off by {worst} ulp", team.isa());
            }
        }
    }

    #[test]
    fn exp_of_what_masks_is_exactly_zero_and_of_zero_exactly_one() {
        for team in teams(&[1]) {
            let mut x = [f32::NEG_INFINITY; MAX_LANES];
            (x[1], x[2], x[3], x[4], x[5]) = (-104.0, 0.0, -0.0, f32::NAN, f32::INFINITY);
            // SAFETY: `isa` comes from a team.
            unsafe { exp_on(team.isa(), &mut x) };
            assert_eq!((x[0].to_bits(), x[1].to_bits(), x[2], x[3]), (0, 0, 1.0, 1.0), "{team:?}");
            assert!(x[4].is_nan() && x[5].is_finite(), "{team:?}: {x:?}");
        }
    }
}

//! The activation of a gated feed-forward layer: `silu(gate) * up`, with `silu(x) = x / (1 + e^-x)`.
//!
//! Every lane and tail takes the same operations.

use crate::exp::exp;
use crate::simd::{Simd, for_isa, load_up_to, store_up_to};
use crate::team::{Output, Team};

/// Cost of one element in multiply-adds.
const WORK: usize = 16;

/// `x` `[rows, 2 * width]`, gate first, to `y` `[rows, width]`, all of which is written.
///
/// # Safety
/// `y` must be valid for writes of `rows * width` elements.
pub(crate) unsafe fn silu_mul(x: &[f32], width: usize, team: &Team, y: *mut f32) {
    assert_eq!(x.len() % (2 * width), 0, "the activations are not rows of twice {width}");
    let (isa, y) = (team.isa(), Output::new(y));
    team.split(x.len() / (2 * width), width * WORK, &|rows| {
        for row in rows {
            let gate = x[2 * row * width..][..2 * width].as_ptr();
            // SAFETY: a row of `x` holds `2 * width` elements; each part writes its own rows.
            unsafe { row_on(isa, gate, width, y.get().add(row * width)) }
        }
    });
}

for_isa!(fn row_on[](gate: *const f32, width: usize, y: *mut f32) = row);

/// # Safety
/// `gate` covers `2 * width` elements and `y` covers `width`.
#[inline(always)]
unsafe fn row<S: Simd>(gate: *const f32, width: usize, y: *mut f32) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let one = S::splat(1.0);
        let mut i = 0;
        while i < width {
            let left = width - i;
            let g = load_up_to::<S>(gate.add(i), left);
            let up = load_up_to::<S>(gate.add(width + i), left);
            let silu = S::div(g, S::add(one, exp::<S>(S::sub(S::splat(0.0), g))));
            store_up_to::<S>(y.add(i), left, S::mul(silu, up));
            i += S::LANES;
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use crate::Backend;
    use crate::testing::{bits, close, host, numbers, teams, tensor};

    #[test]
    fn silu_mul_is_right_and_lanes_and_tails_agree() {
        for team in teams(&[1, 2, 3]) {
            for width in [1, 7, 8, 21, 640] {
                let x = numbers(1, 7 * 2 * width);
                let y = host(Flex::silu_mul(tensor(&x, 2 * width), &team));
                for (x, y) in x.chunks_exact(2 * width).zip(y.chunks_exact(width)) {
                    let silu_mul = |i: usize| {
                        let (g, up) = (f64::from(x[i]), f64::from(x[width + i]));
                        g / (1.0 + (-g).exp()) * up
                    };
                    let expected: Vec<f64> = (0..width).map(silu_mul).collect();
                    close(&format!("{team:?}, width {width}"), y, &expected, 2e-6);
                    // Each element alone is a tail of one lane.
                    for i in 0..width {
                        let alone = host(Flex::silu_mul(tensor(&[x[i], x[width + i]], 2), &team));
                        assert_eq!(bits(&alone), bits(&y[i..=i]), "{team:?}, width {width}, element {i}");
                    }
                }
            }
        }
    }

    #[test]
    fn extremes_neither_overflow_nor_hide_a_nan() {
        for team in teams(&[1]) {
            for (gate, expected) in [(200.0, 200.0), (-200.0, 0.0), (-88.0, 0.0), (0.0, 0.0), (f32::MAX, f32::MAX)] {
                let y = host(Flex::silu_mul(tensor(&[gate, 1.0], 2), &team))[0];
                assert!((y - expected).abs() < 1e-30, "{team:?}: silu({gate}) = {y}");
            }
            assert!(host(Flex::silu_mul(tensor(&[f32::NAN, 1.0], 2), &team))[0].is_nan(), "{team:?}");
        }
    }
}

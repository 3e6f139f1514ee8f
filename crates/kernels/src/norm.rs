//! RMSNorm (Zhang and Sennrich, 2019): `x / sqrt(mean(x^2) + eps) * weight`.
//!
//! The squares of a row are summed in its lanes from left to right, then across the lanes, whatever the other rows are.

use crate::simd::{Simd, for_isa, load_up_to, store_up_to};
use crate::team::{Output, Team};

/// `x` `[rows, width]` to `y` of the same shape, all of which is written; `width` is the length of `weight`.
///
/// # Safety
/// `y` must be valid for writes of `x.len()` elements.
pub(crate) unsafe fn norm(x: &[f32], weight: &[f32], eps: f32, team: &Team, y: *mut f32) {
    let width = weight.len();
    assert_eq!(x.len() % width, 0, "the activations are not rows of {width}");
    let (isa, y) = (team.isa(), Output::new(y));
    team.split(x.len() / width, 2 * width, &|rows| {
        for row in rows {
            let x = &x[row * width..][..width];
            // SAFETY: `x` and `weight` hold `width` elements; each part writes its own rows.
            unsafe { row_on(isa, x, weight.as_ptr(), eps, y.get().add(row * width)) }
        }
    });
}

for_isa!(fn row_on[](x: &[f32], weight: *const f32, eps: f32, y: *mut f32) = row);

/// # Safety
/// `weight` and `y` cover as many elements as `x`.
#[inline(always)]
unsafe fn row<S: Simd>(x: &[f32], weight: *const f32, eps: f32, y: *mut f32) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let (width, x) = (x.len(), x.as_ptr());
        let mut squares = S::splat(0.0);
        let mut i = 0;
        while i < width {
            let v = load_up_to::<S>(x.add(i), width - i);
            squares = S::fma(v, v, squares);
            i += S::LANES;
        }
        let inverse = S::splat(1.0 / (S::sum(squares) / width as f32 + eps).sqrt());
        let mut i = 0;
        while i < width {
            let left = width - i;
            let v = S::mul(load_up_to::<S>(x.add(i), left), inverse);
            store_up_to::<S>(y.add(i), left, S::mul(v, load_up_to::<S>(weight.add(i), left)));
            i += S::LANES;
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::{Tensor, TensorData};

    use crate::Backend;
    use crate::testing::{bits, close, host, numbers, teams, tensor};

    #[test]
    fn norm_is_right_and_a_row_has_the_same_bits_in_any_company() {
        for team in teams(&[1, 2, 3]) {
            for width in [1, 5, 8, 30, 256, 1000] {
                let what = format!("{team:?}, width {width}");
                let (rows, weight, eps) = (9, numbers(1, width), 1e-5f32);
                let x = numbers(2, rows * width);
                let gain = Tensor::<Flex, 1>::from_data(TensorData::new(weight.clone(), [width]), &Default::default());
                let y = host(Flex::norm(&tensor(&x, width), &gain, eps, &team));
                for (x, y) in x.chunks_exact(width).zip(y.chunks_exact(width)) {
                    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
                    let root = (squares / width as f64 + f64::from(eps)).sqrt();
                    let expected: Vec<f64> =
                        x.iter().zip(&weight).map(|(x, w)| f64::from(*x) / root * f64::from(*w)).collect();
                    close(&what, y, &expected, 1e-5);
                    let alone = host(Flex::norm(&tensor(x, width), &gain, eps, &team));
                    assert_eq!(bits(y), bits(&alone), "{what}");
                }
            }
        }
    }
}

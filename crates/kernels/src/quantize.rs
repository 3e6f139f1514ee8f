//! From float weights to codes and scales, a group of weights that share a scale at a time; deterministic.
//!
//! Codes are always chosen for the scale as it is stored, so that what is lost to the scale's rounding is part of what
//! they make up for.

use half::f16;
use specquant_core::Quantizer;

use crate::codec::{E2M1, E2M1_MAX, e2m1_from_f32, e8m0_to_f32};

/// Range of the codes of a signed integer format.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes {
    lowest: i8,
    highest: i8,
    /// Scales that a search tries: those that put the weight of largest magnitude at so much of the lowest code.
    tried: &'static [f32],
}

impl Codes {
    /// Symmetric, so that a product of two bytes fits two's complement after its sign has moved to one of them.
    pub(crate) const INT8: Codes = Codes { lowest: -127, highest: 127, tried: &[1.0] };
    /// One more below zero than above, so that the sign of the scale matters.
    pub(crate) const INT4: Codes = Codes {
        lowest: -8,
        highest: 7,
        tried: &[1.0, 0.94, 0.88, 0.82, 0.76, 0.7, 0.64, -1.0, -0.94, -0.88, -0.82, -0.76, -0.7],
    };
}

/// Writes the codes of a group of finite weights and returns their scale; it is infinite where f16 cannot hold it.
pub(crate) fn integers(weights: &[f32], range: Codes, quantizer: Quantizer, codes: &mut [i8]) -> f16 {
    let extreme = weights.iter().fold(0f32, |most, w| if w.abs() > most.abs() { *w } else { most });
    // As llama.cpp's Q4_0: the extreme weight gets the code of largest magnitude, whatever its sign.
    let nearest = f16::from_f32(extreme / f32::from(range.lowest));
    let mut best = (f32::INFINITY, nearest);
    if quantizer == Quantizer::Mse && nearest.is_finite() {
        for tried in range.tried {
            let first = tried * extreme / f32::from(range.lowest);
            for scale in [f16::from_f32(first), fitted(weights, range, first)] {
                let error = error(weights, range, scale.to_f32());
                if error < best.0 {
                    best = (error, scale);
                }
            }
        }
    }
    let scale = best.1.to_f32();
    for (code, weight) in codes.iter_mut().zip(weights) {
        *code = nearest_code(*weight, inverse(scale), range) as i8;
    }
    best.1
}

/// The scale that fits the codes which `first` gives best, by least squares.
fn fitted(weights: &[f32], range: Codes, first: f32) -> f16 {
    let (mut products, mut squares) = (0f32, 0f32);
    let inverse = inverse(first);
    for weight in weights {
        let code = nearest_code(*weight, inverse, range);
        products += weight * code;
        squares += code * code;
    }
    f16::from_f32(if squares > 0.0 { products / squares } else { first })
}

/// The squared error of all weights at a scale.
fn error(weights: &[f32], range: Codes, scale: f32) -> f32 {
    let inverse = inverse(scale);
    let off = |w: &f32| w - scale * nearest_code(*w, inverse, range);
    weights.iter().map(|w| off(w) * off(w)).sum()
}

/// Zero where everything is lost, so that all codes are zero and none is NaN.
fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

fn nearest_code(weight: f32, inverse: f32, range: Codes) -> f32 {
    (weight * inverse).round_ties_even().clamp(f32::from(range.lowest), f32::from(range.highest))
}

/// Writes the E2M1 codes of a group of finite weights and returns the E8M0 code of their scale.
///
/// Round-to-nearest takes the scale of the Microscaling specification: the power of two of the extreme weight over that of
/// the largest code, which clips what lies above 6 times the scale. The search tries its two neighbours as well.
pub(crate) fn microscaled(weights: &[f32], quantizer: Quantizer, codes: &mut [u8]) -> u8 {
    let extreme = weights.iter().fold(0f32, |most, w| most.max(w.abs()));
    // The exponent of a subnormal weight reads as the lowest one; all codes are zero then.
    let specified = ((extreme.to_bits() >> 23) as i32 - 127) - 2;
    let code = |exponent: i32| (exponent + 127).clamp(0, 254) as u8;
    let mut best = (f32::INFINITY, code(specified));
    if quantizer == Quantizer::Mse {
        for exponent in [specified, specified + 1, specified - 1] {
            let scale = e8m0_to_f32(code(exponent));
            let off = |w: &f32| w - scale * E2M1[usize::from(e2m1_from_f32(w / scale))];
            let error = weights.iter().map(|w| off(w) * off(w)).sum::<f32>();
            if error < best.0 {
                best = (error, code(exponent));
            }
        }
    }
    let scale = e8m0_to_f32(best.1);
    for (code, weight) in codes.iter_mut().zip(weights) {
        *code = e2m1_from_f32((weight / scale).clamp(-E2M1_MAX, E2M1_MAX));
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{E4M3_MAX, e4m3_from_f32, e4m3_to_f32};
    use crate::testing::gaussian;

    /// Root of the mean squared error over that of the weights themselves, with `group` weights to a scale.
    fn rms(group: usize, quantize: &dyn Fn(&[f32], &mut [f32])) -> f64 {
        let weights = gaussian(7, 1 << 20);
        let mut back = vec![0.0; weights.len()];
        for (weights, back) in weights.chunks_exact(group).zip(back.chunks_exact_mut(group)) {
            quantize(weights, back);
        }
        let square = |x: f32| f64::from(x) * f64::from(x);
        let off: f64 = weights.iter().zip(&back).map(|(w, b)| square(w - b)).sum();
        (off / weights.iter().map(|w| square(*w)).sum::<f64>()).sqrt()
    }

    fn integer_error(group: usize, range: Codes, quantizer: Quantizer) -> f64 {
        rms(group, &|weights, back| {
            let mut codes = vec![0; weights.len()];
            let scale = integers(weights, range, quantizer, &mut codes).to_f32();
            back.iter_mut().zip(&codes).for_each(|(back, code)| *back = scale * f32::from(*code));
        })
    }

    #[track_caller]
    fn check(what: &str, got: f64, expected: f64) {
        assert!((got / expected - 1.0).abs() < 0.02, "{what}: {got:.5} instead of {expected:.5}");
    }

    #[test]
    fn round_trips_of_gaussian_weights_lose_what_is_known_of_each_format() {
        // int4 by the signed maximum and E4M3 per channel are published figures; the others were computed apart from this
        // code, with NumPy.
        check("int4:g32 rtn", integer_error(32, Codes::INT4, Quantizer::Rtn), 0.0854);
        check("int4:g64 rtn", integer_error(64, Codes::INT4, Quantizer::Rtn), 0.09494);
        check("int8:g32 rtn", integer_error(32, Codes::INT8, Quantizer::Rtn), 0.005351);
        let mxfp4 = |quantizer| {
            rms(32, &|weights, back| {
                let mut codes = vec![0; weights.len()];
                let scale = e8m0_to_f32(microscaled(weights, quantizer, &mut codes));
                back.iter_mut().zip(&codes).for_each(|(back, code)| *back = scale * E2M1[usize::from(*code)]);
            })
        };
        check("mxfp4 rtn", mxfp4(Quantizer::Rtn), 0.1150);
        check("mxfp4 mse", mxfp4(Quantizer::Mse), 0.1116);
        check("int4:g128 rtn", integer_error(128, Codes::INT4, Quantizer::Rtn), 0.1017);
        let channel = rms(2048, &|weights, back| {
            let scale = weights.iter().fold(0f32, |most, w| most.max(w.abs())) / E4M3_MAX;
            back.iter_mut().zip(weights).for_each(|(back, w)| *back = scale * e4m3_to_f32(e4m3_from_f32(w / scale)));
        });
        check("fp8:channel", channel, 0.026);
    }

    #[test]
    fn a_search_loses_less_than_rounding() {
        for group in [32, 64, 128] {
            let [rtn, mse] = [Quantizer::Rtn, Quantizer::Mse].map(|q| integer_error(group, Codes::INT4, q));
            assert!(mse < 0.97 * rtn, "{group}: {mse} against {rtn}");
        }
    }

    #[test]
    fn a_group_without_weight_and_extreme_ones_keep_their_codes_finite() {
        let check = |weights: &[f32], expected: &[i8], finite: bool| {
            for quantizer in [Quantizer::Rtn, Quantizer::Mse] {
                let mut codes = vec![99; weights.len()];
                let scale = integers(weights, Codes::INT4, quantizer, &mut codes);
                assert_eq!((codes.as_slice(), scale.is_finite()), (expected, finite), "{weights:?}");
            }
        };
        check(&[0.0, -0.0], &[0, 0], true);
        check(&[8.0, -4.0], &[-8, 4], true);
        check(&[-7.0, 3.5, 0.0], &[-8, 4, 0], true);
        check(&[1e-12, 1e-13], &[0, 0], true);
        check(&[1e6, 1.0], &[0, 0], false);
        let mut codes = [9; 3];
        assert_eq!(microscaled(&[0.0; 3], Quantizer::Mse, &mut codes), 0);
        assert_eq!(codes, [0; 3]);
        assert_eq!(microscaled(&[6.0, -0.5, 0.0], Quantizer::Rtn, &mut codes), 127);
        assert_eq!(codes, [7, 9, 0]);
        assert_eq!(microscaled(&[f32::MAX, 0.0, 0.0], Quantizer::Rtn, &mut codes), 127 + 125);
    }
}

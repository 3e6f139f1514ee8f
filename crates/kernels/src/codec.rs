//! The small floats of the OCP formats, one code at a time: E4M3 (fp8), E2M1 and E8M0 (mxfp4).
//!
//! Decoding is exact; encoding rounds to nearest, ties to even, and saturates. As in the OCP specifications "8-bit Floating
//! Point" (2023) and "Microscaling Formats" (2023). The vector decoders in `simd` are tested against these.

/// The largest finite E4M3 number.
pub(crate) const E4M3_MAX: f32 = 448.0;

/// The largest E2M1 number.
pub(crate) const E2M1_MAX: f32 = 6.0;

/// The E2M1 numbers by code, sign in the highest bit.
pub(crate) const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The number of an E4M3 code: four exponent bits with bias 7, three of mantissa; 0x7f and 0xff are NaN, and there are no
/// infinities.
#[cfg(test)]
pub(crate) fn e4m3_to_f32(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * power_of_two(-9),
        _ => (8.0 + mantissa) * power_of_two(exponent - 10),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The nearest E4M3 code of a number that is not NaN.
pub(crate) fn e4m3_from_f32(x: f32) -> u8 {
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = x.abs().min(E4M3_MAX);
    // Below 2^-6 numbers lie 2^-9 apart, above 2^(exponent - 3).
    let exponent = (magnitude.to_bits() >> 23) as i32 - 127;
    let steps = (magnitude * power_of_two(3 - exponent.max(-6))).round_ties_even() as u8;
    // A normal number has 8 to 16 steps; the eighth is the implicit bit, and 16 carry into the exponent by themselves.
    let base = if exponent < -6 { 0 } else { ((exponent + 6) as u8) << 3 };
    sign | (base + steps)
}

/// The nearest E2M1 code of a number that is not NaN.
pub(crate) fn e2m1_from_f32(x: f32) -> u8 {
    // Half way between neighbours; at an exact middle the even code is nearer.
    const MIDDLES: [f32; 7] = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0];
    let magnitude = x.abs();
    let above = |(code, middle): (usize, &f32)| magnitude > *middle || (magnitude == *middle && code % 2 == 1);
    let code = MIDDLES.iter().enumerate().filter(|place| above(*place)).count() as u8;
    if x.is_sign_negative() { code | 8 } else { code }
}

/// The power of two of an E8M0 code; 255, which is NaN, is never made.
pub(crate) fn e8m0_to_f32(code: u8) -> f32 {
    power_of_two(i32::from(code) - 127)
}

/// `2^n` for `n` in -127..=127; the lowest is subnormal.
pub(crate) fn power_of_two(n: i32) -> f32 {
    if n == -127 { f32::from_bits(1 << 22) } else { f32::from_bits(((n + 127) as u32) << 23) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition of E4M3, in f64.
    fn e4m3(code: u8) -> f64 {
        let (sign, exponent, mantissa) =
            (if code >> 7 == 1 { -1.0 } else { 1.0 }, i32::from(code >> 3 & 15), f64::from(code & 7) / 8.0);
        sign * match exponent {
            15 if code & 7 == 7 => f64::NAN,
            0 => mantissa * 2f64.powi(-6),
            _ => (1.0 + mantissa) * 2f64.powi(exponent - 7),
        }
    }

    #[test]
    fn every_code_decodes_exactly_and_encodes_to_itself() {
        for code in 0..=255u8 {
            let (got, expected) = (e4m3_to_f32(code), e4m3(code));
            if expected.is_nan() {
                assert!(got.is_nan(), "{code:#x}");
                continue;
            }
            assert_eq!(f64::from(got).to_bits(), expected.to_bits(), "{code:#x}");
            assert_eq!(e4m3_from_f32(got), code, "{got}");
        }
        for code in 0..16u8 {
            let (exponent, mantissa) = (i32::from(code >> 1 & 3), f64::from(code & 1) / 2.0);
            let magnitude = if exponent == 0 { mantissa } else { (1.0 + mantissa) * 2f64.powi(exponent - 1) };
            let expected = if code >> 3 == 1 { -magnitude } else { magnitude };
            assert_eq!(f64::from(E2M1[code as usize]).to_bits(), expected.to_bits(), "{code}");
            assert_eq!(e2m1_from_f32(E2M1[code as usize]), code);
        }
        for code in 0..255u8 {
            assert_eq!(f64::from(e8m0_to_f32(code)), 2f64.powi(i32::from(code) - 127), "{code}");
        }
    }

    #[test]
    fn encoding_takes_the_nearest_code_and_the_even_one_of_two() {
        let nearest = |x: f32, codes: &[u8], decode: &dyn Fn(u8) -> f64| {
            let distance = |code: &u8| (decode(*code) - f64::from(x)).abs();
            let least = codes.iter().map(distance).fold(f64::INFINITY, f64::min);
            let mut best: Vec<u8> = codes.iter().copied().filter(|code| distance(code) == least).collect();
            best.sort_by_key(|code| code & 1);
            decode(best[0])
        };
        let e4m3_codes: Vec<u8> = (0..=255).filter(|code| code & 0x7f != 0x7f).collect();
        let e2m1_codes: Vec<u8> = (0..16).collect();
        let mut tried: Vec<f32> = (-4000..4000).map(|i| i as f32 / 512.0).collect();
        // Middles of all neighbours, and a little beside them.
        for code in 0..126u8 {
            let middle = ((e4m3(code) + e4m3(code + 1)) / 2.0) as f32;
            tried.extend([middle, middle.next_down(), middle.next_up(), -middle]);
        }
        tried.extend([448.0, 464.0, 1e9, -1e9, 1e-9, -1e-9, 0.0]);
        for x in tried {
            let got = f64::from(e4m3_to_f32(e4m3_from_f32(x)));
            assert_eq!(got, nearest(x, &e4m3_codes, &e4m3), "e4m3 of {x}");
            let got = f64::from(E2M1[usize::from(e2m1_from_f32(x))]);
            assert_eq!(got, nearest(x, &e2m1_codes, &|code| f64::from(E2M1[usize::from(code)])), "e2m1 of {x}");
        }
    }
}

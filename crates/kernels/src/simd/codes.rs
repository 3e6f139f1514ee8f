//! Vector operations on packed codes: exact decoding to f32, and exact dot products with int8 activations.
//!
//! A panel is two vectors of lanes. Integer sums are the same on every path; decoded numbers are too.

// Every function is a few intrinsics, or loops over memory that the trait's contract covers.
#![allow(unsafe_op_in_unsafe_fn)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512};
use super::{Scalar, Simd};
use crate::codec::E2M1;

/// Inputs of one dot product of integers, which share a scale on both sides.
pub(crate) const DOT: usize = 32;

/// What the packed formats need of a path.
///
/// # Safety
/// As for [`Simd`]: memory behind the pointers for both vectors of a panel.
pub(crate) trait Codes: Simd {
    /// A vector of 32-bit integers, as many as lanes.
    type I: Copy;

    /// One quad of every lane.
    unsafe fn load_quads(p: *const u8) -> Self::I;
    /// The four bits from `SHIFT` of each quad, less 8.
    unsafe fn nibble<const SHIFT: i32>(quads: Self::I) -> Self::F;
    /// The byte that ends `LEFT` bits below the top of each quad, signed.
    unsafe fn byte<const LEFT: i32>(quads: Self::I) -> Self::F;
    /// The E2M1 number in the four bits from `SHIFT` of each quad.
    unsafe fn e2m1<const SHIFT: i32>(quads: Self::I) -> Self::F;
    /// Powers of two, from E8M0.
    unsafe fn load_e8m0(p: *const u8) -> Self::F;

    /// For each lane of a panel and each of `R` rows the sum over 32 inputs of weight times activation. The weights are
    /// quads of int8 from -127 on. `offsets` are those of [`offset`].
    unsafe fn dots_int8<const R: usize>(w: *const u8, x: [*const i8; R], offsets: [i32; R]) -> [[Self::I; 2]; R];
    /// The same for 4-bit weights, which are stored with 8 added.
    unsafe fn dots_int4<const R: usize>(w: *const u8, x: [*const i8; R], offsets: [i32; R]) -> [[Self::I; 2]; R];
    /// To the nearest f32; exact below 2^24.
    unsafe fn to_floats(v: Self::I) -> Self::F;
}

/// A lane's value, for each lane.
macro_rules! lanes {
    (|$i:ident| $value:expr) => {{
        let mut out = [Default::default(); Scalar::LANES];
        for $i in 0..Scalar::LANES {
            out[$i] = $value;
        }
        out
    }};
}

impl Codes for Scalar {
    type I = [i32; Scalar::LANES];

    #[inline(always)]
    unsafe fn load_quads(p: *const u8) -> Self::I {
        p.cast::<Self::I>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn nibble<const SHIFT: i32>(quads: Self::I) -> Self::F {
        lanes!(|i| (((quads[i] >> SHIFT) & 15) - 8) as f32)
    }
    #[inline(always)]
    unsafe fn byte<const LEFT: i32>(quads: Self::I) -> Self::F {
        lanes!(|i| ((quads[i] << LEFT) >> 24) as f32)
    }
    #[inline(always)]
    unsafe fn e2m1<const SHIFT: i32>(quads: Self::I) -> Self::F {
        lanes!(|i| E2M1[((quads[i] >> SHIFT) & 15) as usize])
    }
    #[inline(always)]
    unsafe fn load_e8m0(p: *const u8) -> Self::F {
        lanes!(|i| f32::from_bits((u32::from(*p.add(i)) << 23).max(1 << 22)))
    }

    #[inline(always)]
    unsafe fn dots_int8<const R: usize>(w: *const u8, x: [*const i8; R], _offsets: [i32; R]) -> [[Self::I; 2]; R] {
        let w = w.cast::<i8>();
        let dot = |x: *const i8, lane: usize| {
            let at = |k: usize| *w.add((k / 4 * 2 * Self::LANES + lane) * 4 + k % 4);
            (0..DOT).map(|k| i32::from(at(k)) * i32::from(*x.add(k))).sum()
        };
        x.map(|x| [lanes!(|i| dot(x, i)), lanes!(|i| dot(x, Self::LANES + i))])
    }
    #[inline(always)]
    unsafe fn dots_int4<const R: usize>(w: *const u8, x: [*const i8; R], _offsets: [i32; R]) -> [[Self::I; 2]; R] {
        let dot = |x: *const i8, lane: usize, shift: u32| {
            let at = |k: usize| i32::from(*w.add((k / 4 * Self::LANES + lane) * 4 + k % 4) >> shift & 15) - 8;
            (0..DOT).map(|k| at(k) * i32::from(*x.add(k))).sum()
        };
        x.map(|x| [lanes!(|i| dot(x, i, 0)), lanes!(|i| dot(x, i, 4))])
    }
    #[inline(always)]
    unsafe fn to_floats(v: Self::I) -> Self::F {
        lanes!(|i| v[i] as f32)
    }
}

/// Minus eight times the sum of a group's activations, as two 16-bit numbers in one: the lower has the first two of each
/// quad, the upper the others. What is stored with 8 added is then summed as it is.
pub(crate) fn offset(x: &[i8; DOT]) -> i32 {
    let sum = |at: usize| x.chunks_exact(4).map(|quad| i32::from(quad[at]) + i32::from(quad[at + 1])).sum::<i32>();
    (-8 * sum(0)) & 0xffff | (-8 * sum(2)) << 16
}

/// Both parts of an [`offset`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn whole(offset: i32) -> i32 {
    i32::from(offset as i16) + (offset >> 16)
}

/// The four activations from `4 * quad` on, as one integer.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn quad_of(x: *const i8, quad: usize) -> i32 {
    x.add(4 * quad).cast::<i32>().read_unaligned()
}

#[cfg(target_arch = "x86_64")]
impl Codes for Avx2 {
    type I = __m256i;

    #[inline(always)]
    unsafe fn load_quads(p: *const u8) -> __m256i {
        _mm256_loadu_si256(p.cast())
    }
    #[inline(always)]
    unsafe fn nibble<const SHIFT: i32>(quads: __m256i) -> __m256 {
        // In the fraction of a large number four bits count as they are. Three places do, and two shifts bring the rest there.
        let (bits, at) = match SHIFT {
            0 | 4 => (_mm256_slli_epi32::<8>(quads), SHIFT + 8),
            8 | 12 | 16 => (quads, SHIFT),
            _ => (_mm256_srli_epi32::<12>(quads), SHIFT - 12),
        };
        let large = (1 << (23 - at)) as f32;
        let bits = _mm256_and_si256(bits, _mm256_set1_epi32(15 << at));
        let sum = _mm256_or_si256(bits, _mm256_set1_epi32(large.to_bits() as i32));
        _mm256_sub_ps(_mm256_castsi256_ps(sum), _mm256_set1_ps(large + 8.0))
    }
    #[inline(always)]
    unsafe fn byte<const LEFT: i32>(quads: __m256i) -> __m256 {
        _mm256_cvtepi32_ps(_mm256_srai_epi32::<24>(_mm256_slli_epi32::<LEFT>(quads)))
    }
    #[inline(always)]
    unsafe fn e2m1<const SHIFT: i32>(quads: __m256i) -> __m256 {
        let code = _mm256_srli_epi32::<SHIFT>(quads);
        // The permutation looks at three bits of each lane, which leaves out the sign.
        let magnitude = _mm256_permutevar8x32_ps(_mm256_loadu_ps(E2M1.as_ptr()), code);
        let sign = _mm256_and_si256(_mm256_slli_epi32::<28>(code), _mm256_set1_epi32(i32::MIN));
        _mm256_xor_ps(magnitude, _mm256_castsi256_ps(sign))
    }
    #[inline(always)]
    unsafe fn load_e8m0(p: *const u8) -> __m256 {
        let bits = _mm256_slli_epi32::<23>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())));
        _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_set1_epi32(1 << 22)))
    }

    #[inline(always)]
    unsafe fn dots_int8<const R: usize>(w: *const u8, x: [*const i8; R], _offsets: [i32; R]) -> [[__m256i; 2]; R] {
        let mut sums = [[_mm256_setzero_si256(); 2]; R];
        for quad in 0..DOT / 4 {
            for half in 0..2 {
                let weights = Self::load_quads(w.add((2 * quad + half) * 32));
                let magnitudes = _mm256_abs_epi8(weights);
                for r in 0..R {
                    // Two products of 127 * 127 fit 16 bits. The weight's sign has moved to the activation.
                    let x = _mm256_sign_epi8(_mm256_set1_epi32(quad_of(x[r], quad)), weights);
                    let pairs = _mm256_maddubs_epi16(magnitudes, x);
                    let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
                    sums[r][half] = _mm256_add_epi32(sums[r][half], quads);
                }
            }
        }
        sums
    }
    #[inline(always)]
    unsafe fn dots_int4<const R: usize>(w: *const u8, x: [*const i8; R], offsets: [i32; R]) -> [[__m256i; 2]; R] {
        let mask = _mm256_set1_epi8(15);
        // Sixteen products of 15 * 127 fit 16 bits, and so do those that count from the offset.
        let mut pairs = offsets.map(|offset| [_mm256_set1_epi32(offset); 2]);
        for quad in 0..DOT / 4 {
            let both = Self::load_quads(w.add(quad * 32));
            let weights = [_mm256_and_si256(both, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(both), mask)];
            for r in 0..R {
                let x = _mm256_set1_epi32(quad_of(x[r], quad));
                for half in 0..2 {
                    pairs[r][half] = _mm256_add_epi16(pairs[r][half], _mm256_maddubs_epi16(weights[half], x));
                }
            }
        }
        let mut dots = pairs;
        for r in 0..R {
            for half in 0..2 {
                dots[r][half] = _mm256_madd_epi16(pairs[r][half], _mm256_set1_epi16(1));
            }
        }
        dots
    }
    #[inline(always)]
    unsafe fn to_floats(v: __m256i) -> __m256 {
        _mm256_cvtepi32_ps(v)
    }
}

#[cfg(target_arch = "x86_64")]
impl Codes for Avx512 {
    type I = __m512i;

    #[inline(always)]
    unsafe fn load_quads(p: *const u8) -> __m512i {
        _mm512_loadu_si512(p.cast())
    }
    #[inline(always)]
    unsafe fn nibble<const SHIFT: i32>(quads: __m512i) -> __m512 {
        // As for AVX2.
        let (bits, at) = match SHIFT {
            0 | 4 => (_mm512_slli_epi32::<8>(quads), SHIFT + 8),
            8 | 12 | 16 => (quads, SHIFT),
            _ => (_mm512_srli_epi32::<12>(quads), SHIFT - 12),
        };
        let large = (1 << (23 - at)) as f32;
        let bits = _mm512_and_si512(bits, _mm512_set1_epi32(15 << at));
        let sum = _mm512_or_si512(bits, _mm512_set1_epi32(large.to_bits() as i32));
        _mm512_sub_ps(_mm512_castsi512_ps(sum), _mm512_set1_ps(large + 8.0))
    }
    #[inline(always)]
    unsafe fn byte<const LEFT: i32>(quads: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(_mm512_sllv_epi32(quads, _mm512_set1_epi32(LEFT))))
    }
    #[inline(always)]
    unsafe fn e2m1<const SHIFT: i32>(quads: __m512i) -> __m512 {
        // The permutation looks at four bits of each lane.
        let code = _mm512_srlv_epi32(quads, _mm512_set1_epi32(SHIFT));
        _mm512_permutexvar_ps(code, _mm512_loadu_ps(E2M1.as_ptr()))
    }
    #[inline(always)]
    unsafe fn load_e8m0(p: *const u8) -> __m512 {
        let bits = _mm512_slli_epi32::<23>(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())));
        _mm512_castsi512_ps(_mm512_max_epi32(bits, _mm512_set1_epi32(1 << 22)))
    }

    #[inline(always)]
    unsafe fn dots_int8<const R: usize>(w: *const u8, x: [*const i8; R], offsets: [i32; R]) -> [[__m512i; 2]; R] {
        // The instruction wants unsigned weights: 128 is added here and taken off the sum.
        let mut dots = offsets.map(|offset| [_mm512_set1_epi32(16 * whole(offset)); 2]);
        for quad in 0..DOT / 4 {
            for half in 0..2 {
                let weights = Self::load_quads(w.add((2 * quad + half) * 64));
                let weights = _mm512_xor_si512(weights, _mm512_set1_epi8(i8::MIN));
                for r in 0..R {
                    let x = _mm512_set1_epi32(quad_of(x[r], quad));
                    dots[r][half] = _mm512_dpbusd_epi32(dots[r][half], weights, x);
                }
            }
        }
        dots
    }
    #[inline(always)]
    unsafe fn dots_int4<const R: usize>(w: *const u8, x: [*const i8; R], offsets: [i32; R]) -> [[__m512i; 2]; R] {
        let mask = _mm512_set1_epi8(15);
        let mut dots = offsets.map(|offset| [_mm512_set1_epi32(whole(offset)); 2]);
        for quad in 0..DOT / 4 {
            let both = Self::load_quads(w.add(quad * 64));
            let weights = [_mm512_and_si512(both, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(both), mask)];
            for r in 0..R {
                let x = _mm512_set1_epi32(quad_of(x[r], quad));
                for half in 0..2 {
                    dots[r][half] = _mm512_dpbusd_epi32(dots[r][half], weights[half], x);
                }
            }
        }
        dots
    }
    #[inline(always)]
    unsafe fn to_floats(v: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{e4m3_to_f32, e8m0_to_f32, power_of_two};
    use crate::simd::for_isa;
    use crate::testing::{bits, teams};

    for_isa!(fn e4m3_on[](codes: *const u8, n: usize, to: *mut f32) = e4m3);
    for_isa!(fn e8m0_on[](codes: *const u8, n: usize, to: *mut f32) = e8m0);
    for_isa!(fn nibbles_on[](quads: *const u8, to: *mut f32) = nibbles);
    for_isa!(fn bytes_on[](quads: *const u8, to: *mut f32) = bytes);

    #[inline(always)]
    unsafe fn e4m3<S: Codes>(codes: *const u8, n: usize, to: *mut f32) {
        for at in (0..n).step_by(S::LANES) {
            S::store(to.add(at), S::load_e4m3(codes.add(at)));
        }
    }

    #[inline(always)]
    unsafe fn e8m0<S: Codes>(codes: *const u8, n: usize, to: *mut f32) {
        for at in (0..n).step_by(S::LANES) {
            S::store(to.add(at), S::load_e8m0(codes.add(at)));
        }
    }

    /// The eight nibbles of each lane as numbers, then as E2M1.
    #[inline(always)]
    unsafe fn nibbles<S: Codes>(quads: *const u8, to: *mut f32) {
        let quads = S::load_quads(quads);
        let integers = [
            S::nibble::<0>(quads),
            S::nibble::<4>(quads),
            S::nibble::<8>(quads),
            S::nibble::<12>(quads),
            S::nibble::<16>(quads),
            S::nibble::<20>(quads),
            S::nibble::<24>(quads),
            S::nibble::<28>(quads),
        ];
        let floats = [
            S::e2m1::<0>(quads),
            S::e2m1::<4>(quads),
            S::e2m1::<8>(quads),
            S::e2m1::<12>(quads),
            S::e2m1::<16>(quads),
            S::e2m1::<20>(quads),
            S::e2m1::<24>(quads),
            S::e2m1::<28>(quads),
        ];
        for (at, values) in integers.into_iter().chain(floats).enumerate() {
            S::store(to.add(at * S::LANES), values);
        }
    }

    /// The four bytes of each lane, signed.
    #[inline(always)]
    unsafe fn bytes<S: Codes>(quads: *const u8, to: *mut f32) {
        let quads = S::load_quads(quads);
        let all = [S::byte::<24>(quads), S::byte::<16>(quads), S::byte::<8>(quads), S::byte::<0>(quads)];
        for (at, values) in all.into_iter().enumerate() {
            S::store(to.add(at * S::LANES), values);
        }
    }

    #[test]
    fn every_small_float_is_decoded_exactly_on_every_path() {
        for team in teams(&[1]) {
            let (codes, mut got): (Vec<u8>, _) = ((0..=255).collect(), vec![0f32; 256]);
            // SAFETY: 256 codes and as many floats, a multiple of every panel; the team's path exists here.
            unsafe { e4m3_on(team.isa(), codes.as_ptr(), 256, got.as_mut_ptr()) };
            for (code, got) in codes.iter().zip(&got).filter(|(code, _)| **code & 0x7f != 0x7f) {
                let expected = e4m3_to_f32(*code) * power_of_two(-120);
                assert_eq!(got.to_bits(), expected.to_bits(), "{} e4m3 {code:#x}", team.isa());
            }
            // SAFETY: as above.
            unsafe { e8m0_on(team.isa(), codes.as_ptr(), 256, got.as_mut_ptr()) };
            let expected: Vec<f32> = (0..255).map(e8m0_to_f32).collect();
            assert_eq!(bits(&got[..255]), bits(&expected), "{} e8m0", team.isa());
        }
    }

    #[test]
    fn every_nibble_and_byte_is_decoded_at_every_place_on_every_path() {
        for team in teams(&[1]) {
            let lanes = team.isa().panel() / 2;
            for first in 0..=255u8 {
                let quads: Vec<u8> = (0..4 * lanes).map(|at| first.wrapping_add(37u8.wrapping_mul(at as u8))).collect();
                let mut got = vec![0f32; 16 * lanes];
                // SAFETY: a quad for each lane, and room for every vector; the team's path exists here.
                unsafe { nibbles_on(team.isa(), quads.as_ptr(), got.as_mut_ptr()) };
                let nibble = |at: usize, lane: usize| quads[4 * lane + at / 2] >> (4 * (at % 2)) & 15;
                let all = || (0..8).flat_map(|at| (0..lanes).map(move |lane| (at, lane)));
                let integers = all().map(|(at, lane)| f32::from(nibble(at, lane)) - 8.0);
                let floats = all().map(|(at, lane)| E2M1[usize::from(nibble(at, lane))]);
                let expected: Vec<f32> = integers.chain(floats).collect();
                assert_eq!(bits(&got), bits(&expected), "{} nibbles from {first}", team.isa());
                // SAFETY: as above.
                unsafe { bytes_on(team.isa(), quads.as_ptr(), got.as_mut_ptr()) };
                let signed = |at: usize| (0..lanes).map(move |lane| (at, lane));
                let expected: Vec<f32> =
                    (0..4).flat_map(signed).map(|(at, lane)| f32::from(quads[4 * lane + at] as i8)).collect();
                assert_eq!(got[..4 * lanes], expected, "{} bytes from {first}", team.isa());
            }
        }
    }
}

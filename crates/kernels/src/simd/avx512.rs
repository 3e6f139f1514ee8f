//! AVX-512 F, BW, DQ and VL: 16 lanes.

// Every function is a few intrinsics whose contract is the trait's.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;

use super::Simd;
use super::avx2::sums_of_8;

/// The AVX-512 path.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

#[inline(always)]
fn first(n: usize) -> __mmask16 {
    (1u32 << n).wrapping_sub(1) as __mmask16
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    // As for AVX2.
    const PANELS: usize = 4;
    type F = __m512;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        _mm512_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        _mm512_storeu_ps(p, v);
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> __m512 {
        _mm512_maskz_loadu_ps(first(n), p)
    }
    #[inline(always)]
    unsafe fn store_first(p: *mut f32, n: usize, v: __m512) {
        _mm512_mask_storeu_ps(p, first(n), v);
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))))
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> __m512 {
        // As for AVX2.
        let codes = _mm512_slli_epi32::<20>(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
        _mm512_castsi512_ps(_mm512_and_si512(codes, _mm512_set1_epi32(0x87f0_0000_u32 as i32)))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m512) {
        _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v));
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        _mm512_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        _mm512_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        _mm512_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        _mm512_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn round(v: __m512) -> __m512 {
        _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v)
    }
    #[inline(always)]
    unsafe fn scale(v: __m512, n: __m512) -> __m512 {
        let n = _mm512_cvtps_epi32(n);
        let half = _mm512_srai_epi32::<1>(n);
        _mm512_mul_ps(_mm512_mul_ps(v, power_of_two(half)), power_of_two(_mm512_sub_epi32(n, half)))
    }

    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        let eight = fold(v);
        let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
    #[inline(always)]
    unsafe fn largest(v: __m512) -> f32 {
        let eight = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
        let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    }
    #[inline(always)]
    unsafe fn sums(v: &[__m512; 4], to: *mut f32) {
        sums_of_8([fold(v[0]), fold(v[1]), fold(v[2]), fold(v[3])], to);
    }
}

/// The lower half plus the upper half.
#[inline(always)]
unsafe fn fold(v: __m512) -> __m256 {
    _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v))
}

/// `2^n` for `n` in -126..=127.
#[inline(always)]
unsafe fn power_of_two(n: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(n, _mm512_set1_epi32(127))))
}

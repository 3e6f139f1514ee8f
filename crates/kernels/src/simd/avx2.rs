//! AVX2 with FMA and F16C: 8 lanes.

// Every function is a few intrinsics whose contract is the trait's.
#![allow(unsafe_op_in_unsafe_fn)]

use std::arch::x86_64::*;

use super::Simd;

/// The AVX2 path.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// Eight ones and eight zeros: a window that starts at `8 - n` selects the first `n` lanes.
static WINDOW: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    _mm256_loadu_si256(WINDOW.as_ptr().add(8 - n).cast())
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    // Eight chains of additions keep two units busy that take four cycles each.
    const PANELS: usize = 4;
    type F = __m256;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        _mm256_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        _mm256_loadu_ps(p)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        _mm256_storeu_ps(p, v);
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> __m256 {
        _mm256_maskload_ps(p, first(n))
    }
    #[inline(always)]
    unsafe fn store_first(p: *mut f32, n: usize, v: __m256) {
        _mm256_maskstore_ps(p, first(n), v);
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m256 {
        _mm256_cvtph_ps(_mm_loadu_si128(p.cast()))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))))
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> __m256 {
        // The widened sign fills the exponent from above and is cut off there.
        let codes = _mm256_slli_epi32::<20>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
        _mm256_castsi256_ps(_mm256_and_si256(codes, _mm256_set1_epi32(0x87f0_0000_u32 as i32)))
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: __m256) {
        _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v));
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        _mm256_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        _mm256_sub_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        _mm256_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        _mm256_div_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        _mm256_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        _mm256_max_ps(a, b)
    }
    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        _mm256_min_ps(a, b)
    }
    #[inline(always)]
    unsafe fn round(v: __m256) -> __m256 {
        _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v)
    }
    #[inline(always)]
    unsafe fn scale(v: __m256, n: __m256) -> __m256 {
        let n = _mm256_cvtps_epi32(n);
        let half = _mm256_srai_epi32::<1>(n);
        _mm256_mul_ps(_mm256_mul_ps(v, power_of_two(half)), power_of_two(_mm256_sub_epi32(n, half)))
    }

    #[inline(always)]
    unsafe fn sum(v: __m256) -> f32 {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
    #[inline(always)]
    unsafe fn largest(v: __m256) -> f32 {
        let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
    }
    #[inline(always)]
    unsafe fn sums(v: &[__m256; 4], to: *mut f32) {
        sums_of_8(*v, to);
    }
}

/// `2^n` for `n` in -126..=127.
#[inline(always)]
unsafe fn power_of_two(n: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))))
}

/// Stores the sums of four vectors of 8: neighbours first, then pairs, then the two halves.
#[inline(always)]
pub(super) unsafe fn sums_of_8([a, b, c, d]: [__m256; 4], to: *mut f32) {
    let v = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)));
}

//! The portable path: arrays of 4 lanes in loops that the compiler turns into whatever vectors the target has.
//!
//! No operation calls a library function: a multiply-add rounds twice, and rounding uses a constant.

// Nothing here reads memory except through the pointers that the trait's contract covers.
#![allow(unsafe_op_in_unsafe_fn)]

use half::f16;

use super::Simd;

const LANES: usize = 8;

/// The portable path.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

/// Each lane of the result from the same lanes of the operands.
macro_rules! lanes {
    (|$i:ident| $value:expr) => {{
        let mut out = [0f32; LANES];
        for $i in 0..LANES {
            out[$i] = $value;
        }
        out
    }};
}

impl Simd for Scalar {
    const LANES: usize = LANES;
    // More accumulators than this end up in memory where vectors are short.
    const PANELS: usize = 2;
    type F = [f32; LANES];

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::F {
        p.cast::<Self::F>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::F) {
        p.cast::<Self::F>().write_unaligned(v);
    }
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self::F {
        let mut out = [0f32; LANES];
        for (i, lane) in out.iter_mut().enumerate().take(n) {
            *lane = *p.add(i);
        }
        out
    }
    #[inline(always)]
    unsafe fn store_first(p: *mut f32, n: usize, v: Self::F) {
        for (i, lane) in v.iter().enumerate().take(n) {
            *p.add(i) = *lane;
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self::F {
        let h = p.cast::<[u16; LANES]>().read_unaligned();
        lanes!(|i| widen_f16(h[i]))
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> Self::F {
        let h = p.cast::<[u16; LANES]>().read_unaligned();
        lanes!(|i| f32::from_bits(u32::from(h[i]) << 16))
    }
    #[inline(always)]
    unsafe fn load_e4m3(p: *const u8) -> Self::F {
        lanes!(|i| {
            let code = u32::from(*p.add(i));
            f32::from_bits((code & 0x7f) << 20 | (code & 0x80) << 24)
        })
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut u16, v: Self::F) {
        for (i, lane) in v.iter().enumerate() {
            *p.add(i) = f16::from_f32(*lane).to_bits();
        }
    }
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        lanes!(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        lanes!(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        lanes!(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        lanes!(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        lanes!(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        lanes!(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        lanes!(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn round(v: Self::F) -> Self::F {
        // 1.5 * 2^23: the sum has no bits left for a fraction, and the addition rounds to nearest even.
        lanes!(|i| (v[i] + 12_582_912.0) - 12_582_912.0)
    }
    #[inline(always)]
    unsafe fn scale(v: Self::F, n: Self::F) -> Self::F {
        lanes!(|i| {
            // The bits of the sum count in units of one, as in `round`; a NaN gives some number, and the product is NaN.
            let n = ((n[i] + 12_582_912.0).to_bits() as i32).wrapping_sub(12_582_912f32.to_bits() as i32);
            let half = n >> 1;
            v[i] * power_of_two(half) * power_of_two(n.wrapping_sub(half))
        })
    }

    #[inline(always)]
    unsafe fn sum(v: Self::F) -> f32 {
        ((v[0] + v[4]) + (v[1] + v[5])) + ((v[2] + v[6]) + (v[3] + v[7]))
    }
    #[inline(always)]
    unsafe fn largest(v: Self::F) -> f32 {
        let mut most = v[0];
        for lane in v {
            most = if lane > most { lane } else { most };
        }
        most
    }
    #[inline(always)]
    unsafe fn sums(v: &[Self::F; 4], to: *mut f32) {
        for (i, v) in v.iter().enumerate() {
            *to.add(i) = Self::sum(*v);
        }
    }
}

/// `2^n` for `n` in -126..=127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Exact, and without a branch, so that it vectorizes.
#[inline(always)]
fn widen_f16(h: u16) -> f32 {
    let magnitude = u32::from(h & 0x7fff) << 13;
    // The fraction is in place; the exponent counts from another zero, which a power of two makes up for, also for a
    // subnormal. Infinity and NaN keep their fraction under the largest exponent.
    let special = if magnitude >= 0x7c00 << 13 { 0x7f80_0000 } else { 0 };
    let scaled = (f32::from_bits(magnitude) * power_of_two(112)).to_bits();
    f32::from_bits(scaled | special | (u32::from(h & 0x8000) << 16))
}

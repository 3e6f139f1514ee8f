//! From codes and scales to f32, a vector at a time: the decoders of the packed formats.
//!
//! A decoded weight is code times scale, rounded once, so that products of floats and of codes differ in nothing else. Of
//! fp8 with a scale for each output, that is applied to the sum instead.

use crate::packed::{Blocks, Fp8, Groups, Layout};
use crate::simd::{Codes, MAX_LANES, Simd};

/// Inputs that are decoded at once: part of a group, and of a block of fp8.
pub(super) const DECODED: usize = 32;

/// The weights of a panel at four inputs, each in two vectors.
pub(super) type Quad<S> = [[<S as Simd>::F; 2]; 4];

/// Where the weights of a format come from.
pub(super) trait Decoder: Copy {
    /// What codes are multiplied with, for the lanes of a panel.
    type Scales<S: Codes>: Copy;

    /// Bytes of the codes of four inputs, for each lane of one vector.
    const QUAD: usize;

    /// The codes of a panel from input `k` on, and their scales. `k` is a multiple of [`DECODED`]; both hold for as many
    /// inputs.
    ///
    /// # Safety
    /// As for [`Codes`]; panel and input lie in the matrix.
    unsafe fn at<S: Codes>(&self, panel: usize, k: usize) -> (*const u8, Self::Scales<S>);

    /// The weights of four inputs.
    ///
    /// # Safety
    /// As for [`Codes`].
    unsafe fn quad<S: Codes>(codes: *const u8, scales: &Self::Scales<S>) -> Quad<S>;

    /// A factor for each output of a panel, applied to the whole sum.
    ///
    /// # Safety
    /// As for [`Codes`].
    unsafe fn factor<S: Codes>(&self, _panel: usize) -> Option<[S::F; 2]> {
        None
    }

    /// Writes the inputs `k..k + n` of a panel, `[input][lane]`. `k` is a multiple of [`DECODED`], `n` at most as much.
    ///
    /// # Safety
    /// As for [`Codes`]; panel and inputs lie in the matrix, and `n` is a multiple of four unless the format overrides this.
    #[inline(always)]
    unsafe fn decode<S: Codes>(&self, panel: usize, k: usize, n: usize, to: *mut f32) {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let (codes, scales) = self.at::<S>(panel, k);
            for quad in 0..n / 4 {
                let weights = Self::quad::<S>(codes.add(quad * Self::QUAD * S::LANES), &scales);
                for (input, [low, high]) in weights.into_iter().enumerate() {
                    S::store(to.add((quad * 8 + 2 * input) * S::LANES), low);
                    S::store(to.add((quad * 8 + 2 * input + 1) * S::LANES), high);
                }
            }
        }
    }
}

/// E4M3 codes with a scale for each output, which is applied to the sum.
#[derive(Clone, Copy)]
pub(super) struct ByChannel<'a> {
    pub(super) codes: &'a Fp8,
    pub(super) scales: &'a [f32],
    pub(super) inputs: usize,
}

/// E4M3 codes with a scale for each block.
#[derive(Clone, Copy)]
pub(super) struct ByBlock<'a> {
    pub(super) codes: &'a Fp8,
    pub(super) blocks: &'a Blocks,
    pub(super) inputs: usize,
}

impl Decoder for ByChannel<'_> {
    type Scales<S: Codes> = ();
    const QUAD: usize = 8;

    #[inline(always)]
    unsafe fn at<S: Codes>(&self, panel: usize, k: usize) -> (*const u8, ()) {
        // SAFETY: the caller keeps the contract.
        unsafe { (self.codes.codes().add((panel * self.inputs + k) * 2 * S::LANES), ()) }
    }

    #[inline(always)]
    unsafe fn quad<S: Codes>(codes: *const u8, (): &()) -> Quad<S> {
        // SAFETY: the caller keeps the contract.
        unsafe {
            [
                S::load_e4m3(codes),
                S::load_e4m3(codes.add(2 * S::LANES)),
                S::load_e4m3(codes.add(4 * S::LANES)),
                S::load_e4m3(codes.add(6 * S::LANES)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn factor<S: Codes>(&self, panel: usize) -> Option<[S::F; 2]> {
        // SAFETY: there is a scale for every output of every panel.
        unsafe {
            let scales = self.scales.as_ptr().add(panel * 2 * S::LANES);
            Some([S::load(scales), S::load(scales.add(S::LANES))])
        }
    }

    /// Input by input, since there may be any number of them.
    #[inline(always)]
    unsafe fn decode<S: Codes>(&self, panel: usize, k: usize, n: usize, to: *mut f32) {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let (codes, ()) = self.at::<S>(panel, k);
            for input in 0..n {
                let [low, high] = S::load_e4m3(codes.add(2 * input * S::LANES));
                S::store(to.add(2 * input * S::LANES), low);
                S::store(to.add((2 * input + 1) * S::LANES), high);
            }
        }
    }
}

impl Decoder for ByBlock<'_> {
    type Scales<S: Codes> = [S::F; 2];
    const QUAD: usize = 8;

    #[inline(always)]
    unsafe fn at<S: Codes>(&self, panel: usize, k: usize) -> (*const u8, [S::F; 2]) {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let width = 2 * S::LANES;
            let scales = self.blocks.scales_of::<{ 2 * MAX_LANES }>(panel * width, width, k);
            let codes = self.codes.codes().add((panel * self.inputs + k) * width);
            (codes, [S::load(scales.as_ptr()), S::load(scales.as_ptr().add(S::LANES))])
        }
    }

    #[inline(always)]
    unsafe fn quad<S: Codes>(codes: *const u8, [low, high]: &[S::F; 2]) -> Quad<S> {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let [a, b, c, d] = ByChannel::quad::<S>(codes, &());
            [
                [S::mul(a[0], *low), S::mul(a[1], *high)],
                [S::mul(b[0], *low), S::mul(b[1], *high)],
                [S::mul(c[0], *low), S::mul(c[1], *high)],
                [S::mul(d[0], *low), S::mul(d[1], *high)],
            ]
        }
    }

    /// Input by input, since there may be any number of them.
    #[inline(always)]
    unsafe fn decode<S: Codes>(&self, panel: usize, k: usize, n: usize, to: *mut f32) {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let (codes, scales) = self.at::<S>(panel, k);
            for input in 0..n {
                let [low, high] = S::load_e4m3(codes.add(2 * input * S::LANES));
                S::store(to.add(2 * input * S::LANES), S::mul(low, scales[0]));
                S::store(to.add((2 * input + 1) * S::LANES), S::mul(high, scales[1]));
            }
        }
    }
}

/// Codes in groups.
#[derive(Clone, Copy)]
pub(super) struct Grouped<'a> {
    w: &'a Groups,
    layout: Layout,
    /// Groups of a panel.
    groups: usize,
}

impl<'a> Grouped<'a> {
    pub(super) fn new(w: &'a Groups, inputs: usize) -> Grouped<'a> {
        let layout = w.layout();
        Grouped { w, layout, groups: inputs / layout.group }
    }

    /// The codes of input `k` of a panel, and the scales of its group.
    ///
    /// # Safety
    /// Panel and input lie in the matrix.
    #[inline(always)]
    unsafe fn at(&self, panel: usize, k: usize) -> [*const u8; 2] {
        let Layout { group, panel: lanes, bits, .. } = self.layout;
        // SAFETY: the caller keeps the contract.
        unsafe {
            let unit = self.w.start().add((panel * self.groups + k / group) * self.layout.unit());
            [unit.add(k % group * lanes * bits / 8), unit.add(self.layout.codes())]
        }
    }

    /// The same, with scales that are f16.
    ///
    /// # Safety
    /// As for [`Codes`]; panel and input lie in the matrix.
    #[inline(always)]
    unsafe fn at_f16<S: Codes>(&self, panel: usize, k: usize) -> (*const u8, [S::F; 2]) {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let [codes, scales] = self.at(panel, k);
            (codes, [S::load_f16(scales.cast()), S::load_f16(scales.cast::<u16>().add(S::LANES))])
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Int8<'a>(pub(super) Grouped<'a>);
#[derive(Clone, Copy)]
pub(super) struct Int4<'a>(pub(super) Grouped<'a>);
#[derive(Clone, Copy)]
pub(super) struct Mxfp4<'a>(pub(super) Grouped<'a>);

impl Decoder for Int8<'_> {
    type Scales<S: Codes> = [S::F; 2];
    const QUAD: usize = 8;

    #[inline(always)]
    unsafe fn at<S: Codes>(&self, panel: usize, k: usize) -> (*const u8, [S::F; 2]) {
        // SAFETY: the caller keeps the contract.
        unsafe { self.0.at_f16::<S>(panel, k) }
    }

    #[inline(always)]
    unsafe fn quad<S: Codes>(codes: *const u8, scales: &[S::F; 2]) -> Quad<S> {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let (low, high) = (S::load_quads(codes), S::load_quads(codes.add(4 * S::LANES)));
            [
                [S::mul(S::byte::<24>(low), scales[0]), S::mul(S::byte::<24>(high), scales[1])],
                [S::mul(S::byte::<16>(low), scales[0]), S::mul(S::byte::<16>(high), scales[1])],
                [S::mul(S::byte::<8>(low), scales[0]), S::mul(S::byte::<8>(high), scales[1])],
                [S::mul(S::byte::<0>(low), scales[0]), S::mul(S::byte::<0>(high), scales[1])],
            ]
        }
    }
}

impl Decoder for Int4<'_> {
    /// The scales, and the weights of the lowest code: (code - 8) * scale is then one step, and exact, since no term of it
    /// needs more bits than an f32 has.
    type Scales<S: Codes> = [[S::F; 2]; 2];
    const QUAD: usize = 4;

    #[inline(always)]
    unsafe fn at<S: Codes>(&self, panel: usize, k: usize) -> (*const u8, [[S::F; 2]; 2]) {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let (codes, scales) = self.0.at_f16::<S>(panel, k);
            let eight = S::splat(-8.0);
            (codes, [scales, [S::mul(eight, scales[0]), S::mul(eight, scales[1])]])
        }
    }

    #[inline(always)]
    unsafe fn quad<S: Codes>(codes: *const u8, [scales, lowest]: &[[S::F; 2]; 2]) -> Quad<S> {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let quads = S::load_quads(codes);
            let [a, b] = *scales;
            let [c, d] = *lowest;
            [
                [S::fma(S::nibble::<0>(quads), a, c), S::fma(S::nibble::<4>(quads), b, d)],
                [S::fma(S::nibble::<8>(quads), a, c), S::fma(S::nibble::<12>(quads), b, d)],
                [S::fma(S::nibble::<16>(quads), a, c), S::fma(S::nibble::<20>(quads), b, d)],
                [S::fma(S::nibble::<24>(quads), a, c), S::fma(S::nibble::<28>(quads), b, d)],
            ]
        }
    }
}

impl Decoder for Mxfp4<'_> {
    type Scales<S: Codes> = [S::F; 2];
    const QUAD: usize = 4;

    #[inline(always)]
    unsafe fn at<S: Codes>(&self, panel: usize, k: usize) -> (*const u8, [S::F; 2]) {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let [codes, scales] = self.0.at(panel, k);
            (codes, [S::load_e8m0(scales), S::load_e8m0(scales.add(S::LANES))])
        }
    }

    #[inline(always)]
    unsafe fn quad<S: Codes>(codes: *const u8, scales: &[S::F; 2]) -> Quad<S> {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let quads = S::load_quads(codes);
            let [a, b] = *scales;
            [
                [S::mul(S::e2m1::<0>(quads), a), S::mul(S::e2m1::<4>(quads), b)],
                [S::mul(S::e2m1::<8>(quads), a), S::mul(S::e2m1::<12>(quads), b)],
                [S::mul(S::e2m1::<16>(quads), a), S::mul(S::e2m1::<20>(quads), b)],
                [S::mul(S::e2m1::<24>(quads), a), S::mul(S::e2m1::<28>(quads), b)],
            ]
        }
    }
}

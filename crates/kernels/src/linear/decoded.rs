//! Weights that are codes, with float activations: 32 inputs of a few panels are decoded into a scratch in the nearest
//! cache, where all rows pass over them. Nothing wider than the codes ever leaves that cache.
//!
//! The sums go on from scratch to scratch, so that an output is still one chain over k.

use super::{Product, by_panels, tiles};
use crate::packed::{Fp8, Fp8Scales, Groups, Layout};
use crate::simd::{Codes, MAX_LANES, Simd, for_isa, load_up_to, store_up_to};
use crate::team::Team;

/// Inputs that are decoded at once: part of a group, and of a block of fp8.
const CHUNK: usize = 32;

/// Panels that one or two rows take at once.
const PANELS: usize = 4;

/// Rows whose accumulators stay in registers together.
const TILE: usize = 6;

/// Room for the weights of a chunk, `[panel][input][lane]`.
#[repr(align(64))]
struct Scratch([f32; PANELS * CHUNK * 2 * MAX_LANES]);

/// Where the weights of a format come from.
trait Decoder: Copy {
    /// Writes the inputs `k..k + n` of a panel, `[input][lane]`. `k` is a multiple of [`CHUNK`], `n` at most as much.
    ///
    /// # Safety
    /// As for [`Codes`]; panel and inputs lie in the matrix.
    unsafe fn decode<S: Codes>(&self, panel: usize, k: usize, n: usize, to: *mut f32);

    /// A factor for each output of a panel, applied to the whole sum.
    ///
    /// # Safety
    /// As for [`Codes`].
    unsafe fn factor<S: Codes>(&self, _panel: usize) -> Option<[S::F; 2]> {
        None
    }
}

#[derive(Clone, Copy)]
struct Job<D> {
    product: Product,
    weights: D,
}

/// The product with an fp8 matrix.
///
/// # Safety
/// The pointers cover the shapes.
pub(super) unsafe fn fp8(job: &Product, w: &Fp8, team: &Team) {
    let (isa, inputs) = (team.isa(), job.inputs);
    by_panels(job, team, &|product, start, end| {
        let job = Job { product, weights: Minifloats { w, inputs } };
        // SAFETY: the caller keeps the contract, and each part writes the columns of its panels.
        unsafe { panels_on(isa, &job, start, end) }
    });
}

/// The product with an int8, int4 or mxfp4 matrix.
///
/// # Safety
/// The pointers cover the shapes.
pub(super) unsafe fn groups(job: &Product, w: &Groups, team: &Team) {
    let (isa, layout) = (team.isa(), w.layout());
    let groups = job.inputs / layout.group;
    by_panels(job, team, &|product, start, end| {
        let weights = Grouped { w, layout, groups };
        // SAFETY: the caller keeps the contract, and each part writes the columns of its panels.
        unsafe {
            match (layout.bits, layout.scale) {
                (8, _) => panels_on(isa, &Job { product, weights: Int8(weights) }, start, end),
                (_, 1) => panels_on(isa, &Job { product, weights: Mxfp4(weights) }, start, end),
                _ => panels_on(isa, &Job { product, weights: Int4(weights) }, start, end),
            }
        }
    });
}

for_isa!(fn panels_on[D: Decoder](job: &Job<D>, start: usize, end: usize) = panels);

/// All rows of the panels `start..end`.
///
/// # Safety
/// The pointers of `job` cover its shapes, and nobody else writes these panels' columns of `y`.
#[inline(always)]
unsafe fn panels<S: Codes, D: Decoder>(job: &Job<D>, start: usize, end: usize) {
    let mut scratch = Scratch([0.0; PANELS * CHUNK * 2 * MAX_LANES]);
    let scratch = scratch.0.as_mut_ptr();
    let Product { rows, inputs, .. } = job.product;
    let mut panel = start;
    while panel < end {
        let step = if rows <= 2 { PANELS.min(end - panel) } else { 1 };
        for k in (0..inputs).step_by(CHUNK) {
            let n = CHUNK.min(inputs - k);
            for p in 0..step {
                // SAFETY: the caller keeps the contract, and the scratch has room for so many panels.
                unsafe { job.weights.decode::<S>(panel + p, k, n, scratch.add(p * CHUNK * 2 * S::LANES)) }
            }
            let piece = Piece { product: job.product, w: scratch, k, n };
            // SAFETY: as above.
            unsafe { pass::<S>(&piece, panel, step) }
        }
        for panel in panel..panel + step {
            // SAFETY: as above.
            unsafe { finish::<S, D>(job, panel) }
        }
        panel += step;
    }
}

/// A chunk of decoded weights that all rows pass over.
struct Piece {
    product: Product,
    w: *const f32,
    k: usize,
    n: usize,
}

/// # Safety
/// As for [`panels`].
#[inline(always)]
unsafe fn pass<S: Simd>(piece: &Piece, panel: usize, step: usize) {
    for (row, rows) in tiles(piece.product.rows, TILE) {
        // SAFETY: the caller keeps the contract; `rows <= TILE`.
        unsafe {
            match (rows, step) {
                (1, 4) => block::<S, 1, 4>(piece, panel, row),
                (1, 3) => block::<S, 1, 3>(piece, panel, row),
                (1, 2) => block::<S, 1, 2>(piece, panel, row),
                (1, _) => block::<S, 1, 1>(piece, panel, row),
                (2, 4) => {
                    block::<S, 2, 2>(piece, panel, row);
                    let rest = Piece { w: piece.w.add(2 * CHUNK * 2 * S::LANES), ..*piece };
                    block::<S, 2, 2>(&rest, panel + 2, row);
                }
                (2, 3) => block::<S, 2, 3>(piece, panel, row),
                (2, 2) => block::<S, 2, 2>(piece, panel, row),
                (2, _) => block::<S, 2, 1>(piece, panel, row),
                (3, _) => block::<S, 3, 1>(piece, panel, row),
                (4, _) => block::<S, 4, 1>(piece, panel, row),
                (5, _) => block::<S, 5, 1>(piece, panel, row),
                _ => block::<S, TILE, 1>(piece, panel, row),
            }
        }
    }
}

/// Adds the products of a chunk to what `y` has of `R` rows and `P` panels.
///
/// # Safety
/// As for [`panels`].
#[inline(always)]
unsafe fn block<S: Simd, const R: usize, const P: usize>(piece: &Piece, panel: usize, row: usize) {
    let Product { x, y, inputs, outputs, .. } = piece.product;
    // SAFETY: the caller keeps the contract.
    unsafe {
        let width = 2 * S::LANES;
        let x = x.add(row * inputs + piece.k);
        let place =
            |r: usize, p: usize| (y.add((row + r) * outputs + (panel + p) * width), outputs - (panel + p) * width);
        let mut acc = [[[S::splat(0.0); 2]; P]; R];
        if piece.k > 0 {
            for r in 0..R {
                for p in 0..P {
                    let (y, left) = place(r, p);
                    acc[r][p] = load_panel::<S>(y, left);
                }
            }
        }
        for k in 0..piece.n {
            for p in 0..P {
                let weights = piece.w.add((p * CHUNK + k) * width);
                let (low, high) = (S::load(weights), S::load(weights.add(S::LANES)));
                for r in 0..R {
                    let x = S::splat(*x.add(r * inputs + k));
                    acc[r][p][0] = S::fma(low, x, acc[r][p][0]);
                    acc[r][p][1] = S::fma(high, x, acc[r][p][1]);
                }
            }
        }
        for r in 0..R {
            for p in 0..P {
                let (y, left) = place(r, p);
                store_panel::<S>(y, left, acc[r][p]);
            }
        }
    }
}

/// Applies the factors of a panel to all rows.
///
/// # Safety
/// As for [`panels`].
#[inline(always)]
unsafe fn finish<S: Codes, D: Decoder>(job: &Job<D>, panel: usize) {
    let Product { y, rows, outputs, .. } = job.product;
    // SAFETY: the caller keeps the contract.
    unsafe {
        let Some([low, high]) = job.weights.factor::<S>(panel) else { return };
        let column = panel * 2 * S::LANES;
        for row in 0..rows {
            let (y, left) = (y.add(row * outputs + column), outputs - column);
            let sums = load_panel::<S>(y, left);
            store_panel::<S>(y, left, [S::mul(sums[0], low), S::mul(sums[1], high)]);
        }
    }
}

/// The first `left` lanes of a panel.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn load_panel<S: Simd>(y: *const f32, left: usize) -> [S::F; 2] {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let high = if left > S::LANES { load_up_to::<S>(y.add(S::LANES), left - S::LANES) } else { S::splat(0.0) };
        [load_up_to::<S>(y, left), high]
    }
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn store_panel<S: Simd>(y: *mut f32, left: usize, sums: [S::F; 2]) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        store_up_to::<S>(y, left, sums[0]);
        if left > S::LANES {
            store_up_to::<S>(y.add(S::LANES), left - S::LANES, sums[1]);
        }
    }
}

/// E4M3 codes.
#[derive(Clone, Copy)]
struct Minifloats<'a> {
    w: &'a Fp8,
    inputs: usize,
}

impl Decoder for Minifloats<'_> {
    #[inline(always)]
    unsafe fn decode<S: Codes>(&self, panel: usize, k: usize, n: usize, to: *mut f32) {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let width = 2 * S::LANES;
            let codes = self.w.codes().add((panel * self.inputs + k) * width);
            let scales = match self.w.scales() {
                Fp8Scales::Outputs(_) => None,
                Fp8Scales::Blocks(blocks) => {
                    let mut scales = [0.0; 2 * MAX_LANES];
                    for (lane, scale) in scales.iter_mut().enumerate().take(width) {
                        *scale = blocks.scale(panel * width + lane, k);
                    }
                    Some([S::load(scales.as_ptr()), S::load(scales.as_ptr().add(S::LANES))])
                }
            };
            for input in 0..n {
                let [mut low, mut high] = S::load_e4m3(codes.add(input * width));
                if let Some(scales) = scales {
                    (low, high) = (S::mul(low, scales[0]), S::mul(high, scales[1]));
                }
                S::store(to.add(input * width), low);
                S::store(to.add(input * width + S::LANES), high);
            }
        }
    }

    #[inline(always)]
    unsafe fn factor<S: Codes>(&self, panel: usize) -> Option<[S::F; 2]> {
        let Fp8Scales::Outputs(scales) = self.w.scales() else { return None };
        // SAFETY: there is a scale for every output of every panel.
        unsafe {
            let scales = scales.as_ptr().add(panel * 2 * S::LANES);
            Some([S::load(scales), S::load(scales.add(S::LANES))])
        }
    }
}

/// Codes in groups.
#[derive(Clone, Copy)]
struct Grouped<'a> {
    w: &'a Groups,
    layout: Layout,
    /// Groups of a panel.
    groups: usize,
}

impl Grouped<'_> {
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
}

#[derive(Clone, Copy)]
struct Int8<'a>(Grouped<'a>);
#[derive(Clone, Copy)]
struct Int4<'a>(Grouped<'a>);
#[derive(Clone, Copy)]
struct Mxfp4<'a>(Grouped<'a>);

/// Stores the weights of a panel at four inputs.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn store_quad<S: Simd>(to: *mut f32, weights: [[S::F; 2]; 4]) {
    for (input, [low, high]) in weights.into_iter().enumerate() {
        // SAFETY: the caller keeps the contract.
        unsafe {
            S::store(to.add(2 * input * S::LANES), low);
            S::store(to.add((2 * input + 1) * S::LANES), high);
        }
    }
}

impl Decoder for Int8<'_> {
    #[inline(always)]
    unsafe fn decode<S: Codes>(&self, panel: usize, k: usize, n: usize, to: *mut f32) {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let [codes, scales] = self.0.at(panel, k);
            let scales = [S::load_f16(scales.cast()), S::load_f16(scales.cast::<u16>().add(S::LANES))];
            for quad in 0..n / 4 {
                let codes = codes.add(quad * 8 * S::LANES);
                let quads = [S::load_quads(codes), S::load_quads(codes.add(4 * S::LANES))];
                let scaled = |values: [S::F; 2]| [S::mul(values[0], scales[0]), S::mul(values[1], scales[1])];
                let weights = [
                    scaled(quads.map(|quads| S::byte::<24>(quads))),
                    scaled(quads.map(|quads| S::byte::<16>(quads))),
                    scaled(quads.map(|quads| S::byte::<8>(quads))),
                    scaled(quads.map(|quads| S::byte::<0>(quads))),
                ];
                store_quad::<S>(to.add(quad * 8 * S::LANES), weights);
            }
        }
    }
}

impl Decoder for Int4<'_> {
    #[inline(always)]
    unsafe fn decode<S: Codes>(&self, panel: usize, k: usize, n: usize, to: *mut f32) {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let [codes, scales] = self.0.at(panel, k);
            let scales = [S::load_f16(scales.cast()), S::load_f16(scales.cast::<u16>().add(S::LANES))];
            // (code - 8) * scale in one step: no term of it needs more bits than an f32 has.
            let lowest = scales.map(|scale| S::mul(S::splat(-8.0), scale));
            for quad in 0..n / 4 {
                let quads = S::load_quads(codes.add(quad * 4 * S::LANES));
                let scaled = |low, high| [S::fma(low, scales[0], lowest[0]), S::fma(high, scales[1], lowest[1])];
                let weights = [
                    scaled(S::nibble::<0>(quads), S::nibble::<4>(quads)),
                    scaled(S::nibble::<8>(quads), S::nibble::<12>(quads)),
                    scaled(S::nibble::<16>(quads), S::nibble::<20>(quads)),
                    scaled(S::nibble::<24>(quads), S::nibble::<28>(quads)),
                ];
                store_quad::<S>(to.add(quad * 8 * S::LANES), weights);
            }
        }
    }
}

impl Decoder for Mxfp4<'_> {
    #[inline(always)]
    unsafe fn decode<S: Codes>(&self, panel: usize, k: usize, n: usize, to: *mut f32) {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let [codes, scales] = self.0.at(panel, k);
            let scales = [S::load_e8m0(scales), S::load_e8m0(scales.add(S::LANES))];
            for quad in 0..n / 4 {
                let quads = S::load_quads(codes.add(quad * 4 * S::LANES));
                let scaled = |low, high| [S::mul(low, scales[0]), S::mul(high, scales[1])];
                let weights = [
                    scaled(S::e2m1::<0>(quads), S::e2m1::<4>(quads)),
                    scaled(S::e2m1::<8>(quads), S::e2m1::<12>(quads)),
                    scaled(S::e2m1::<16>(quads), S::e2m1::<20>(quads)),
                    scaled(S::e2m1::<24>(quads), S::e2m1::<28>(quads)),
                ];
                store_quad::<S>(to.add(quad * 8 * S::LANES), weights);
            }
        }
    }
}

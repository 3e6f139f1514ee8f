//! Weights that are codes, with float activations. For one or two rows they are decoded into registers. For more, some
//! inputs of a panel are decoded into a scratch in the nearest cache, where all rows pass over them: nothing wider than the
//! codes ever leaves that cache.
//!
//! Sums go on where the inputs before ended, so that an output is one chain over k in either way.

use super::decoder::{ByBlock, ByChannel, DECODED, Decoder, Grouped, Int4, Int8, Mxfp4};
use super::{Product, by_panels, tiles};
use crate::packed::{Fp8, Fp8Scales, Groups};
use crate::simd::{Codes, Simd, for_isa, load_up_to, store_up_to};
use crate::team::Team;

/// Floats of the scratch: half of a nearest cache of 32 KiB. With fewer inputs of more panels, sums would be loaded and
/// stored more often, and rows that lie a power of two apart would push each other out of the cache.
const SCRATCH: usize = 4096;

/// Rows that decode into registers.
const FEW: usize = 2;

/// Rows whose accumulators stay in registers together.
const TILE: usize = 6;

/// Room for decoded weights, `[input][lane]`.
#[repr(align(64))]
struct Scratch([f32; SCRATCH]);

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
    let (isa, codes, inputs) = (team.isa(), w, job.inputs);
    by_panels(job, team, &|product, start, end| {
        // SAFETY: the caller keeps the contract, and each part writes the columns of its panels.
        unsafe {
            match w.scales() {
                Fp8Scales::Outputs(scales) => {
                    panels_on(isa, &Job { product, weights: ByChannel { codes, scales, inputs } }, start, end);
                }
                Fp8Scales::Blocks(blocks) => {
                    panels_on(isa, &Job { product, weights: ByBlock { codes, blocks, inputs } }, start, end);
                }
            }
        }
    });
}

/// The product with an int8, int4 or mxfp4 matrix.
///
/// # Safety
/// The pointers cover the shapes.
pub(super) unsafe fn groups(job: &Product, w: &Groups, team: &Team) {
    let (isa, layout, inputs) = (team.isa(), w.layout(), job.inputs);
    by_panels(job, team, &|product, start, end| {
        let weights = Grouped::new(w, inputs);
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
    let mut scratch = Scratch([0.0; SCRATCH]);
    let scratch = scratch.0.as_mut_ptr();
    let Product { rows, inputs, .. } = job.product;
    let (few, width) = (rows <= FEW, 2 * S::LANES);
    // Few rows leave only what does not fill a whole decoding to the scratch.
    let from = if few { inputs / DECODED * DECODED } else { 0 };
    if few {
        // SAFETY: the caller keeps the contract.
        unsafe { registers::<S, D>(job, start, end, from) }
    }
    let room = SCRATCH / width / DECODED * DECODED;
    for panel in start..end {
        for k in (from..inputs).step_by(room) {
            let n = room.min(inputs - k);
            for at in (0..n).step_by(DECODED) {
                // SAFETY: the caller keeps the contract, and the scratch has room for so many inputs.
                unsafe { job.weights.decode::<S>(panel, k + at, DECODED.min(n - at), scratch.add(at * width)) }
            }
            let piece = Piece { product: job.product, w: scratch, k, n };
            // SAFETY: as above.
            unsafe { pass::<S>(&piece, panel) }
        }
        // SAFETY: as above.
        unsafe { finish::<S, D>(job, panel) }
    }
}

/// The first `inputs` inputs of the panels `start..end`, of one or two rows, with the weights in registers.
///
/// # Safety
/// As for [`panels`]; `inputs` is a multiple of [`DECODED`].
#[inline(always)]
unsafe fn registers<S: Codes, D: Decoder>(job: &Job<D>, start: usize, end: usize, inputs: usize) {
    let mut panel = start;
    while panel < end {
        // Several panels at once keep the units busy: a panel alone has two chains of additions a row.
        // SAFETY: the caller keeps the contract, and `panel` and those after it lie before `end`.
        panel += unsafe {
            match (job.product.rows, end - panel) {
                (1, 4..) if S::PANELS == 4 => decoding::<S, D, 1, 4>(job, panel, inputs),
                (1, 2..) => decoding::<S, D, 1, 2>(job, panel, inputs),
                (1, _) => decoding::<S, D, 1, 1>(job, panel, inputs),
                (_, 2..) => decoding::<S, D, FEW, 2>(job, panel, inputs),
                _ => decoding::<S, D, FEW, 1>(job, panel, inputs),
            }
        };
    }
}

/// `R` rows, which are all, times the first `inputs` inputs of `P` panels; returns `P`.
///
/// # Safety
/// As for [`registers`].
#[inline(always)]
unsafe fn decoding<S: Codes, D: Decoder, const R: usize, const P: usize>(
    job: &Job<D>,
    panel: usize,
    inputs: usize,
) -> usize {
    let Product { x, y, inputs: stride, outputs, .. } = job.product;
    // SAFETY: the caller keeps the contract.
    unsafe {
        let mut acc = [[[S::splat(0.0); 2]; P]; R];
        for k in (0..inputs).step_by(DECODED) {
            let runs: [_; P] = std::array::from_fn(|p| job.weights.at::<S>(panel + p, k));
            for quad in 0..DECODED / 4 {
                for (p, (codes, scales)) in runs.iter().enumerate() {
                    let weights = D::quad::<S>(codes.add(quad * D::QUAD * S::LANES), scales);
                    for (input, [low, high]) in weights.into_iter().enumerate() {
                        for (r, acc) in acc.iter_mut().enumerate() {
                            let x = S::splat(*x.add(r * stride + k + 4 * quad + input));
                            acc[p] = [S::fma(low, x, acc[p][0]), S::fma(high, x, acc[p][1])];
                        }
                    }
                }
            }
        }
        for (r, acc) in acc.into_iter().enumerate() {
            for (p, acc) in acc.into_iter().enumerate() {
                let column = (panel + p) * 2 * S::LANES;
                store_panel::<S>(y.add(r * outputs + column), outputs - column, acc);
            }
        }
    }
    P
}

/// Decoded weights that all rows pass over: the inputs `k..k + n`.
struct Piece {
    product: Product,
    /// `[n][lane]`
    w: *const f32,
    k: usize,
    n: usize,
}

/// # Safety
/// As for [`panels`].
#[inline(always)]
unsafe fn pass<S: Simd>(piece: &Piece, panel: usize) {
    for (row, rows) in tiles(piece.product.rows, TILE) {
        // SAFETY: the caller keeps the contract; `rows <= TILE`.
        unsafe {
            match rows {
                1 => block::<S, 1>(piece, panel, row),
                2 => block::<S, 2>(piece, panel, row),
                3 => block::<S, 3>(piece, panel, row),
                4 => block::<S, 4>(piece, panel, row),
                5 => block::<S, 5>(piece, panel, row),
                _ => block::<S, TILE>(piece, panel, row),
            }
        }
    }
}

/// Adds the products of a piece to what `y` has of `R` rows of a panel.
///
/// # Safety
/// As for [`panels`].
#[inline(always)]
unsafe fn block<S: Simd, const R: usize>(piece: &Piece, panel: usize, row: usize) {
    let Product { x, y, inputs, outputs, .. } = piece.product;
    // SAFETY: the caller keeps the contract.
    unsafe {
        let column = panel * 2 * S::LANES;
        let (x, y, left) = (x.add(row * inputs + piece.k), y.add(row * outputs + column), outputs - column);
        let mut acc = [[S::splat(0.0); 2]; R];
        if piece.k > 0 {
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = load_panel::<S>(y.add(r * outputs), left);
            }
        }
        for k in 0..piece.n {
            let weights = piece.w.add(k * 2 * S::LANES);
            let (low, high) = (S::load(weights), S::load(weights.add(S::LANES)));
            for r in 0..R {
                let x = S::splat(*x.add(r * inputs + k));
                acc[r] = [S::fma(low, x, acc[r][0]), S::fma(high, x, acc[r][1])];
            }
        }
        for (r, acc) in acc.into_iter().enumerate() {
            store_panel::<S>(y.add(r * outputs), left, acc);
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

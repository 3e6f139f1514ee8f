//! Many rows: some inputs of a panel are widened into a scratch in the nearest cache, where all rows pass over them. Nothing
//! wider than the stored codes ever leaves that cache.
//!
//! Sums go on where the inputs before ended, so that an output is the same chain as with few rows.

use std::mem::MaybeUninit;

use super::Product;
use super::rows::{TILE, tiles};
use crate::simd::{Codes, Simd, for_isa, load_up_to, store_up_to};

/// Floats of the scratch: half of a nearest cache of 32 KiB. The other half is left to the rows.
const SCRATCH: usize = 4096;

/// Tiles that pass over a scratch one after another: their inputs of one scratch stay in the second cache while panel after
/// panel is widened.
const TILES: usize = 26;

/// Room for weights, `[input][lane]`.
#[repr(align(64))]
struct Scratch {
    _floats: [f32; SCRATCH],
}

/// The weights of a matrix, panel by panel.
pub(super) trait Panels: Copy + Send + Sync {
    /// Inputs whose products are summed before the sum is scaled: a power of two of at most 128, or all of them.
    fn span(&self) -> usize;

    /// The inputs `k..k + n` of a panel as `[input][lane]`, to be scaled: written to `to`, or where they lie if that is how
    /// they are stored. `k` is a multiple of the span, if there are several, and so is `n` unless the inputs end.
    ///
    /// # Safety
    /// As for [`Codes`]; panel and inputs lie in the matrix, and `to` has room.
    unsafe fn widened<S: Codes>(&self, panel: usize, k: usize, n: usize, to: *mut f32) -> *const f32;

    /// What the sum of the span with input `k` is multiplied with, for the lanes of a panel.
    ///
    /// # Safety
    /// As for [`Codes`]; panel and input lie in the matrix.
    unsafe fn scales<S: Codes>(&self, panel: usize, k: usize) -> Option<[S::F; 2]>;
}

/// A product with such weights; its activations are tiled.
#[derive(Clone, Copy)]
pub(super) struct Job<P> {
    pub(super) product: Product,
    pub(super) weights: P,
}

for_isa!(pub(super) fn many_on[P: Panels](job: &Job<P>, start: usize, end: usize) = many);

/// All rows of the panels `start..end`.
///
/// # Safety
/// The pointers of `job` cover its shapes, and nobody else writes these panels' columns of `y`.
#[inline(always)]
unsafe fn many<S: Codes, P: Panels>(job: &Job<P>, start: usize, end: usize) {
    let mut scratch = MaybeUninit::<Scratch>::uninit();
    let scratch = scratch.as_mut_ptr().cast::<f32>();
    let Product { rows, inputs, .. } = job.product;
    // A multiple of every span.
    let room = SCRATCH / (2 * S::LANES);
    let all: Vec<_> = tiles(rows, TILE).collect();
    for (tiles, k) in all.chunks(TILES).flat_map(|tiles| (0..inputs).step_by(room).map(move |k| (tiles, k))) {
        let n = room.min(inputs - k);
        for panel in start..end {
            // SAFETY: the caller keeps the contract, and the scratch has room for so many inputs.
            let w = unsafe { job.weights.widened::<S>(panel, k, n, scratch) };
            let piece = Piece { job, panel, k, n, w };
            for tile in tiles {
                // SAFETY: as above; a tile has at most [`TILE`] rows.
                unsafe {
                    match tile.len() {
                        1 => piece.add::<S, 1>(tile.start),
                        2 => piece.add::<S, 2>(tile.start),
                        3 => piece.add::<S, 3>(tile.start),
                        4 => piece.add::<S, 4>(tile.start),
                        _ => piece.add::<S, TILE>(tile.start),
                    }
                }
            }
        }
    }
}

/// Widened weights that all rows pass over: the inputs `k..k + n` of a panel.
struct Piece<'a, P> {
    job: &'a Job<P>,
    panel: usize,
    k: usize,
    n: usize,
    /// `[n][lane]`
    w: *const f32,
}

impl<P: Panels> Piece<'_, P> {
    /// Adds the piece to the sums of a tile of `R` rows.
    ///
    /// # Safety
    /// As for [`many`].
    #[inline(always)]
    unsafe fn add<S: Codes, const R: usize>(&self, row: usize) {
        let (Product { x, y, inputs, outputs, .. }, weights) = (self.job.product, &self.job.weights);
        let span = weights.span();
        // SAFETY: the caller keeps the contract.
        unsafe {
            let x = x.add(row * inputs + self.k * R);
            let column = self.panel * 2 * S::LANES;
            let (y, left) = (y.add(row * outputs + column), outputs - column);
            let mut sums = [[S::splat(0.0); 2]; R];
            if self.k > 0 {
                for (r, sums) in sums.iter_mut().enumerate() {
                    *sums = load_panel::<S>(y.add(r * outputs), left);
                }
            }
            if span >= inputs {
                chain::<S, R>(self.w, x, self.n, &mut sums);
                if self.k + self.n == inputs
                    && let Some(scales) = weights.scales::<S>(self.panel, 0)
                {
                    sums = sums.map(|sums| scaled::<S>(sums, scales, None));
                }
            } else {
                for from in (0..self.n).step_by(span) {
                    let mut part = [[S::splat(0.0); 2]; R];
                    chain::<S, R>(self.w.add(from * 2 * S::LANES), x.add(from * R), span.min(self.n - from), &mut part);
                    let Some(scales) = weights.scales::<S>(self.panel, self.k + from) else { continue };
                    for (sums, part) in sums.iter_mut().zip(part) {
                        *sums = scaled::<S>(part, scales, (self.k + from > 0).then_some(*sums));
                    }
                }
            }
            for (r, sums) in sums.into_iter().enumerate() {
                store_panel::<S>(y.add(r * outputs), left, sums);
            }
        }
    }
}

/// Adds the products of `n` inputs to the sums of `R` rows.
///
/// # Safety
/// As for [`Simd`]; `w` is `[n][lane]`, `x` is `[n][R]`.
#[inline(always)]
unsafe fn chain<S: Simd, const R: usize>(w: *const f32, x: *const f32, n: usize, sums: &mut [[S::F; 2]; R]) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let mut acc = *sums;
        for k in 0..n {
            let weights = w.add(k * 2 * S::LANES);
            let (low, high) = (S::load(weights), S::load(weights.add(S::LANES)));
            for r in 0..R {
                let x = S::splat(*x.add(k * R + r));
                acc[r] = [S::fma(low, x, acc[r][0]), S::fma(high, x, acc[r][1])];
            }
        }
        *sums = acc;
    }
}

/// The scaled sum of a span, added to that of the spans before it.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn scaled<S: Simd>(part: [S::F; 2], scales: [S::F; 2], before: Option<[S::F; 2]>) -> [S::F; 2] {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match before {
            None => [S::mul(part[0], scales[0]), S::mul(part[1], scales[1])],
            Some(sums) => [S::fma(part[0], scales[0], sums[0]), S::fma(part[1], scales[1], sums[1])],
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

/// Stores the first `left` lanes of a panel.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn store_panel<S: Simd>(y: *mut f32, left: usize, sums: [S::F; 2]) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        store_up_to::<S>(y, left, sums[0]);
        if left > S::LANES {
            store_up_to::<S>(y.add(S::LANES), left - S::LANES, sums[1]);
        }
    }
}

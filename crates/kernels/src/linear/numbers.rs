//! Weights that are numbers in panels, `[panel][input][lane]`: floats, and E4M3 with its scales apart. A few rows widen them
//! in registers.

use super::many::{Job, Panels, many_on, scaled, store_panel};
use super::rows::{TILE, tiled, tiles};
use super::{Product, by_panels};
use crate::packed::{BLOCK, Blocks, Fp8, Fp8Scales};
use crate::simd::{Codes, E4m3, MAX_LANES, Simd, Stored, for_isa};
use crate::team::Team;

/// How far ahead memory is asked for where a thread reads a single panel: a page, where the hardware's own looking ahead
/// stops.
const AHEAD: usize = 4096;

/// Rows that widen in registers, once for each tile.
const FEW: usize = 6 * TILE;

/// The scales of numbers, if they have any.
trait Scaling: Copy + Send + Sync {
    /// As [`Panels::span`].
    fn span(&self) -> usize;

    /// As [`Panels::scales`].
    ///
    /// # Safety
    /// As for [`Panels::scales`].
    unsafe fn of<S: Codes>(&self, panel: usize, k: usize) -> Option<[S::F; 2]>;
}

#[derive(Clone, Copy)]
struct Unscaled;

/// One scale for each output, panels filled up.
#[derive(Clone, Copy)]
struct ByOutput<'a>(&'a [f32]);

#[derive(Clone, Copy)]
struct ByBlock<'a>(&'a Blocks);

impl Scaling for Unscaled {
    fn span(&self) -> usize {
        usize::MAX
    }
    #[inline(always)]
    unsafe fn of<S: Codes>(&self, _panel: usize, _k: usize) -> Option<[S::F; 2]> {
        None
    }
}

impl Scaling for ByOutput<'_> {
    fn span(&self) -> usize {
        usize::MAX
    }
    #[inline(always)]
    unsafe fn of<S: Codes>(&self, panel: usize, _k: usize) -> Option<[S::F; 2]> {
        // SAFETY: there is a scale for every output of every panel.
        unsafe {
            let scales = self.0.as_ptr().add(panel * 2 * S::LANES);
            Some([S::load(scales), S::load(scales.add(S::LANES))])
        }
    }
}

impl Scaling for ByBlock<'_> {
    fn span(&self) -> usize {
        BLOCK
    }
    #[inline(always)]
    unsafe fn of<S: Codes>(&self, panel: usize, k: usize) -> Option<[S::F; 2]> {
        let width = 2 * S::LANES;
        let scales = self.0.scales_of::<{ 2 * MAX_LANES }>(panel * width, width, k);
        // SAFETY: two vectors are read of an array that has room for the widest.
        unsafe { Some([S::load(scales.as_ptr()), S::load(scales.as_ptr().add(S::LANES))]) }
    }
}

/// Numbers and what scales them.
#[derive(Clone, Copy)]
struct Numbers<E, C> {
    w: *const E,
    inputs: usize,
    scaling: C,
}

// SAFETY: the weights are only read.
unsafe impl<E: Stored, C: Send> Send for Numbers<E, C> {}
// SAFETY: as above.
unsafe impl<E: Stored, C: Sync> Sync for Numbers<E, C> {}

impl<E: Stored, C: Scaling> Panels for Numbers<E, C> {
    fn span(&self) -> usize {
        self.scaling.span()
    }

    #[inline(always)]
    unsafe fn widened<S: Codes>(&self, panel: usize, k: usize, n: usize, to: *mut f32) -> *const f32 {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let w = self.w.add((panel * self.inputs + k) * 2 * S::LANES);
            if let Some(w) = E::wide(w) {
                return w;
            }
            for vector in 0..2 * n {
                S::store(to.add(vector * S::LANES), E::load::<S>(w.add(vector * S::LANES)));
            }
            to
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Codes>(&self, panel: usize, k: usize) -> Option<[S::F; 2]> {
        // SAFETY: the caller keeps the contract.
        unsafe { self.scaling.of::<S>(panel, k) }
    }
}

/// The product with a matrix of floats.
///
/// # Safety
/// The pointers cover the shapes; `w` holds whole panels.
pub(super) unsafe fn floats<E: Stored>(job: &Product, w: *const E, team: &Team) {
    // SAFETY: the caller keeps the contract.
    unsafe { product(job, Numbers { w, inputs: job.inputs, scaling: Unscaled }, team) }
}

/// The product with an fp8 matrix.
///
/// # Safety
/// The pointers cover the shapes.
pub(super) unsafe fn fp8(job: &Product, fp8: &Fp8, team: &Team) {
    let (w, inputs) = (fp8.codes().cast::<E4m3>(), job.inputs);
    // SAFETY: the caller keeps the contract.
    unsafe {
        match fp8.scales() {
            Fp8Scales::Outputs(scales) => product(job, Numbers { w, inputs, scaling: ByOutput(scales) }, team),
            Fp8Scales::Blocks(blocks) => product(job, Numbers { w, inputs, scaling: ByBlock(blocks) }, team),
        }
    }
}

/// # Safety
/// The pointers cover the shapes.
unsafe fn product<E: Stored, C: Scaling>(job: &Product, weights: Numbers<E, C>, team: &Team) {
    // SAFETY: the caller keeps the contract.
    let x = unsafe { std::slice::from_raw_parts(job.x, job.rows * job.inputs) };
    let x = tiled(x, job.inputs, E::ACTIVATIONS, team);
    let (isa, few) = (team.isa(), job.rows <= FEW);
    by_panels(&Product { x: x.as_ptr(), ..*job }, team, &|product, start, end| {
        let job = Job { product, weights };
        // SAFETY: the caller keeps the contract, and each part writes the columns of its panels.
        unsafe { if few { few_on(isa, &job, start, end) } else { many_on(isa, &job, start, end) } }
    });
}

for_isa!(fn few_on[E: Stored, C: Scaling](job: &Job<Numbers<E, C>>, start: usize, end: usize) = few);

/// All rows of the panels `start..end`; a panel stays in a near cache while the tiles pass.
///
/// # Safety
/// The pointers of `job` cover its shapes, and nobody else writes these panels' columns of `y`.
#[inline(always)]
unsafe fn few<S: Codes, E: Stored, C: Scaling>(job: &Job<Numbers<E, C>>, start: usize, end: usize) {
    let (rows, mut panel) = (job.product.rows, start);
    while panel < end {
        // One row alone has only two chains of additions per panel, so that it takes several panels to keep the units
        // busy; two rows take two.
        let step = match (rows, end - panel) {
            (1, 4..) => S::PANELS,
            (1..=2, 2..) => 2,
            _ => 1,
        };
        for tile in tiles(rows, TILE) {
            // SAFETY: the caller keeps the contract; a tile has at most [`TILE`] rows, and `panel + step <= end`.
            unsafe {
                match (tile.len(), step) {
                    (1, 4) => block::<S, E, C, 1, 4>(job, panel, tile.start),
                    (1, 2) => block::<S, E, C, 1, 2>(job, panel, tile.start),
                    (1, _) => block::<S, E, C, 1, 1>(job, panel, tile.start),
                    (2, 2) => block::<S, E, C, 2, 2>(job, panel, tile.start),
                    (2, _) => block::<S, E, C, 2, 1>(job, panel, tile.start),
                    (3, _) => block::<S, E, C, 3, 1>(job, panel, tile.start),
                    (4, _) => block::<S, E, C, 4, 1>(job, panel, tile.start),
                    _ => block::<S, E, C, TILE, 1>(job, panel, tile.start),
                }
            }
        }
        panel += step;
    }
}

/// A tile of `R` rows times `P` panels.
///
/// # Safety
/// As for [`few`].
#[inline(always)]
unsafe fn block<S: Codes, E: Stored, C: Scaling, const R: usize, const P: usize>(
    job: &Job<Numbers<E, C>>,
    panel: usize,
    row: usize,
) {
    let (Product { x, y, inputs, outputs, .. }, weights) = (job.product, &job.weights);
    let (width, span) = (2 * S::LANES, weights.scaling.span());
    // SAFETY: the caller keeps the contract.
    unsafe {
        let (w, x, y) = (weights.w.add(panel * inputs * width), x.add(row * inputs), y.add(row * outputs));
        let mut sums = [[[S::splat(0.0); 2]; P]; R];
        let mut k = 0;
        while k < inputs {
            let end = k.saturating_add(span).min(inputs);
            let mut part = [[[S::splat(0.0); 2]; P]; R];
            chain::<S, E, R, P>(w, x, (k, end, inputs), &mut part);
            for p in 0..P {
                let scales = weights.scaling.of::<S>(panel + p, k);
                for r in 0..R {
                    sums[r][p] = match scales {
                        None => part[r][p],
                        Some(scales) => scaled::<S>(part[r][p], scales, (k > 0).then_some(sums[r][p])),
                    };
                }
            }
            k = end;
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (p, sums) in sums.into_iter().enumerate() {
                let column = (panel + p) * width;
                store_panel::<S>(y.add(r * outputs + column), outputs - column, sums);
            }
        }
    }
}

/// Adds the products of the inputs `k..end` to the sums of `R` rows and `P` panels, the first of which begins at `w`.
///
/// # Safety
/// As for [`few`].
#[inline(always)]
unsafe fn chain<S: Simd, E: Stored, const R: usize, const P: usize>(
    w: *const E,
    x: *const f32,
    (k, end, inputs): (usize, usize, usize),
    sums: &mut [[[S::F; 2]; P]; R],
) {
    let width = 2 * S::LANES;
    // SAFETY: the caller keeps the contract.
    unsafe {
        let mut acc = *sums;
        let mut at = w.add(k * width);
        for k in k..end {
            if P == 1 {
                S::prefetch(at.cast::<u8>().wrapping_add(AHEAD));
            }
            for p in 0..P {
                let w = at.add(p * inputs * width);
                let (low, high) = (E::load::<S>(w), E::load::<S>(w.add(S::LANES)));
                for r in 0..R {
                    let x = S::splat(*x.add(k * R + r));
                    acc[r][p] = [S::fma(low, x, acc[r][p][0]), S::fma(high, x, acc[r][p][1])];
                }
            }
            at = at.add(width);
        }
        *sums = acc;
    }
}

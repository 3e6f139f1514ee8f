//! Weights that are floats: widened as they are loaded.

use super::{Product, by_panels, tiles};
use crate::simd::{Element, Simd, for_isa, store_up_to};
use crate::team::Team;

/// Rows whose accumulators stay in registers together: 6 rows of two vectors leave four of 16 registers.
const TILE: usize = 6;

/// One product, with its weights `[panel][input][lane]`.
#[derive(Clone, Copy)]
struct Job<E> {
    product: Product,
    w: *const E,
}

/// # Safety
/// The pointers cover the shapes; `w` holds whole panels.
pub(super) unsafe fn product<E: Element>(job: &Product, w: *const E, team: &Team) {
    let (isa, w) = (team.isa(), w as usize);
    by_panels(job, team, &|product, start, end| {
        let job = Job { product, w: w as *const E };
        // SAFETY: the caller keeps the contract, and each part writes the columns of its panels.
        unsafe { panels_on::<E>(isa, &job, start, end) }
    });
}

for_isa!(fn panels_on[E: Element](job: &Job<E>, start: usize, end: usize) = panels);

/// All rows of the panels `start..end`; a panel stays in the nearest cache while the rows pass.
///
/// # Safety
/// The pointers of `job` cover its shapes, and nobody else writes these panels' columns of `y`.
#[inline(always)]
unsafe fn panels<S: Simd, E: Element>(job: &Job<E>, start: usize, end: usize) {
    let mut panel = start;
    while panel < end {
        // One row alone has only two chains of additions per panel, so that it takes several panels to keep the units
        // busy; two rows take two. Three rows ran faster on one panel at a time.
        let step = match (job.product.rows, end - panel) {
            (1, 4..) => S::PANELS,
            (1..=2, 2..) => 2,
            _ => 1,
        };
        for (row, rows) in tiles(job.product.rows, TILE) {
            // SAFETY: the caller keeps the contract; `rows <= TILE`, and `panel + step <= end`.
            unsafe {
                match (rows, step) {
                    (1, 4) => block::<S, E, 1, 4>(job, panel, row),
                    (1, 2) => block::<S, E, 1, 2>(job, panel, row),
                    (1, _) => block::<S, E, 1, 1>(job, panel, row),
                    (2, 2) => block::<S, E, 2, 2>(job, panel, row),
                    (2, _) => block::<S, E, 2, 1>(job, panel, row),
                    (3, _) => block::<S, E, 3, 1>(job, panel, row),
                    (4, _) => block::<S, E, 4, 1>(job, panel, row),
                    (5, _) => block::<S, E, 5, 1>(job, panel, row),
                    _ => block::<S, E, TILE, 1>(job, panel, row),
                }
            }
        }
        panel += step;
    }
}

/// `R` rows from `row` times `P` panels from `panel`.
///
/// # Safety
/// As for [`panels`], for these rows and panels.
#[inline(always)]
unsafe fn block<S: Simd, E: Element, const R: usize, const P: usize>(job: &Job<E>, panel: usize, row: usize) {
    let Product { x, y, inputs, outputs, .. } = job.product;
    // SAFETY: the caller keeps the contract.
    unsafe {
        let width = 2 * S::LANES;
        let x = x.add(row * inputs);
        let mut w = job.w.add(panel * inputs * width);
        let mut acc = [[[S::splat(0.0); 2]; P]; R];
        for k in 0..inputs {
            for p in 0..P {
                let weights = w.add(p * inputs * width);
                let (low, high) = (E::load::<S>(weights), E::load::<S>(weights.add(S::LANES)));
                for r in 0..R {
                    let x = S::splat(*x.add(r * inputs + k));
                    acc[r][p][0] = S::fma(low, x, acc[r][p][0]);
                    acc[r][p][1] = S::fma(high, x, acc[r][p][1]);
                }
            }
            w = w.add(width);
        }
        for r in 0..R {
            for p in 0..P {
                let column = (panel + p) * width;
                let y = y.add((row + r) * outputs + column);
                let left = outputs - column;
                store_up_to::<S>(y, left, acc[r][p][0]);
                if left > S::LANES {
                    store_up_to::<S>(y.add(S::LANES), left - S::LANES, acc[r][p][1]);
                }
            }
        }
    }
}

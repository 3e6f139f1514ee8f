//! Weights and activations that are integers: activations are rounded to int8 in groups of 32, and each group's dot product
//! is exact. Groups are added up in order, `acc = (w scale * x scale) * dot + acc`.

use super::many::store_panel;
use super::rows::{TILE, tiles};
use super::{Product, by_panels};
use crate::packed::Groups;
use crate::simd::{Codes, DOT, for_isa, offset};
use crate::team::{Output, Team};

/// The largest magnitude of an activation's code.
const MOST: f32 = 127.0;

/// Groups with nothing larger than this are taken as zero: the reciprocal of their scale would be infinite.
const LEAST: f32 = 1e-36;

/// Activations as integers.
struct Activations {
    /// `[rows, inputs]`
    codes: Vec<i8>,
    /// `[rows, inputs / 32]`
    scales: Vec<f32>,
    /// The [`offset`] of each group.
    offsets: Vec<i32>,
}

struct Job<'a> {
    product: Product,
    w: &'a Groups,
    x: &'a Activations,
}

/// The product of int8 or int4 weights and rounded activations.
///
/// # Safety
/// The pointers cover the shapes, and the groups of `w` have [`DOT`] inputs.
pub(super) unsafe fn product(job: &Product, w: &Groups, team: &Team) {
    let isa = team.isa();
    // SAFETY: the caller keeps the contract.
    let x = unsafe { rounded(std::slice::from_raw_parts(job.x, job.rows * job.inputs), job.inputs, team) };
    by_panels(job, team, &|product, start, end| {
        let job = Job { product, w, x: &x };
        // SAFETY: the caller keeps the contract, and each part writes the columns of its panels.
        unsafe {
            if w.layout().bits == 8 {
                panels_on::<Int8>(isa, &job, start, end);
            } else {
                panels_on::<Int4>(isa, &job, start, end);
            }
        }
    });
}

/// Rounds groups of activations to nearest, the one of largest magnitude to 127.
fn rounded(x: &[f32], inputs: usize, team: &Team) -> Activations {
    let groups = x.len() / DOT;
    let mut activations = Activations { codes: vec![0; x.len()], scales: vec![0.0; groups], offsets: vec![0; groups] };
    let codes = Output::new(activations.codes.as_mut_ptr());
    let scales = Output::new(activations.scales.as_mut_ptr());
    let offsets = Output::new(activations.offsets.as_mut_ptr());
    let isa = team.isa();
    // A row is the least that a thread takes, and rounding a number costs about a multiply-add.
    team.split(x.len() / inputs, inputs, &|rows| {
        for group in rows.start * inputs / DOT..rows.end * inputs / DOT {
            // SAFETY: groups are disjoint and lie in the vectors.
            unsafe {
                let (x, codes) = (x.as_ptr().add(group * DOT), codes.get().add(group * DOT));
                round_on(isa, x, codes, scales.get().add(group), offsets.get().add(group));
            }
        }
    });
    activations
}

for_isa!(fn round_on[](x: *const f32, codes: *mut i8, scale: *mut f32, to_offset: *mut i32) = round);

/// # Safety
/// `x` and `codes` cover a group.
#[inline(always)]
unsafe fn round<S: Codes>(x: *const f32, codes: *mut i8, scale: *mut f32, to_offset: *mut i32) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let (mut most, mut wrong) = (S::splat(0.0), S::splat(0.0));
        for at in (0..DOT).step_by(S::LANES) {
            let v = S::load(x.add(at));
            most = S::max(S::max(v, S::sub(S::splat(0.0), v)), most);
            // Zero, unless something is infinite or NaN, which the maximum might not show.
            wrong = S::fma(v, S::splat(0.0), wrong);
        }
        let most = S::largest(most);
        let inverse = if most > LEAST { MOST / most } else { 0.0 };
        let mut rounded = [0f32; DOT];
        for at in (0..DOT).step_by(S::LANES) {
            let v = S::mul(S::load(x.add(at)), S::splat(inverse));
            S::store(rounded.as_mut_ptr().add(at), S::round(v));
        }
        // A number that was infinite or NaN has some code, and its scale says so.
        let rounded = rounded.map(|value| value as i32 as i8);
        codes.cast::<[i8; DOT]>().write_unaligned(rounded);
        *to_offset = offset(&rounded);
        *scale = if inverse == 0.0 { 0.0 } else { most / MOST } + S::sum(wrong);
    }
}

/// The dot products of a format.
trait Dots: Copy + Send + Sync + 'static {
    /// As [`Codes::dots_int8`].
    ///
    /// # Safety
    /// As for [`Codes`].
    unsafe fn dots<S: Codes, const R: usize>(w: *const u8, x: [*const i8; R], offsets: [i32; R]) -> [[S::I; 2]; R];
}

#[derive(Clone, Copy)]
struct Int8;
#[derive(Clone, Copy)]
struct Int4;

impl Dots for Int8 {
    #[inline(always)]
    unsafe fn dots<S: Codes, const R: usize>(w: *const u8, x: [*const i8; R], offsets: [i32; R]) -> [[S::I; 2]; R] {
        // SAFETY: the caller keeps the contract.
        unsafe { S::dots_int8::<R>(w, x, offsets) }
    }
}

impl Dots for Int4 {
    #[inline(always)]
    unsafe fn dots<S: Codes, const R: usize>(w: *const u8, x: [*const i8; R], offsets: [i32; R]) -> [[S::I; 2]; R] {
        // SAFETY: the caller keeps the contract.
        unsafe { S::dots_int4::<R>(w, x, offsets) }
    }
}

for_isa!(fn panels_on[D: Dots](job: &Job<'_>, start: usize, end: usize) = panels);

/// All rows of the panels `start..end`.
///
/// # Safety
/// The pointers of `job` cover its shapes, and nobody else writes these panels' columns of `y`.
#[inline(always)]
unsafe fn panels<S: Codes, D: Dots>(job: &Job<'_>, start: usize, end: usize) {
    let (rows, mut panel) = (job.product.rows, start);
    while panel < end {
        // A single row reads two panels at once: memory answers several streams sooner than one.
        if rows == 1 && end - panel > 1 {
            // SAFETY: the caller keeps the contract, and both panels lie before `end`.
            unsafe { block::<S, D, 1, 2>(job, panel, 0) };
            panel += 2;
            continue;
        }
        for tile in tiles(rows, TILE) {
            // SAFETY: the caller keeps the contract; a tile has at most [`TILE`] rows.
            unsafe {
                match tile.len() {
                    1 => block::<S, D, 1, 1>(job, panel, tile.start),
                    2 => block::<S, D, 2, 1>(job, panel, tile.start),
                    3 => block::<S, D, 3, 1>(job, panel, tile.start),
                    4 => block::<S, D, 4, 1>(job, panel, tile.start),
                    _ => block::<S, D, TILE, 1>(job, panel, tile.start),
                }
            }
        }
        panel += 1;
    }
}

/// `R` rows from `row` times `P` panels.
///
/// # Safety
/// As for [`panels`].
#[inline(always)]
unsafe fn block<S: Codes, D: Dots, const R: usize, const P: usize>(job: &Job<'_>, panel: usize, row: usize) {
    let (Product { y, inputs, outputs, .. }, layout) = (job.product, job.w.layout());
    let groups = inputs / DOT;
    // SAFETY: the caller keeps the contract.
    unsafe {
        let mut acc = [[[S::splat(0.0); 2]; R]; P];
        for group in 0..groups {
            let x = std::array::from_fn(|r| job.x.codes.as_ptr().add((row + r) * inputs + group * DOT));
            let offsets = std::array::from_fn(|r| *job.x.offsets.as_ptr().add((row + r) * groups + group));
            for (p, acc) in acc.iter_mut().enumerate() {
                let unit = job.w.start().add(((panel + p) * groups + group) * layout.unit());
                let dots = D::dots::<S, R>(unit, x, offsets);
                let scales = unit.add(layout.codes()).cast::<u16>();
                let scales = [S::load_f16(scales), S::load_f16(scales.add(S::LANES))];
                for r in 0..R {
                    let x = S::splat(*job.x.scales.as_ptr().add((row + r) * groups + group));
                    for half in 0..2 {
                        let dot = S::to_floats(dots[r][half]);
                        acc[r][half] = S::fma(S::mul(scales[half], x), dot, acc[r][half]);
                    }
                }
            }
        }
        for (p, acc) in acc.into_iter().enumerate() {
            let column = (panel + p) * 2 * S::LANES;
            for (r, acc) in acc.into_iter().enumerate() {
                store_panel::<S>(y.add((row + r) * outputs + column), outputs - column, acc);
            }
        }
    }
}

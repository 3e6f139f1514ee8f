//! Weights that are codes in groups, with float activations: int8, int4 and mxfp4. A group's products with its codes are
//! summed in a chain, and the sums, scaled, are added in order.

use std::marker::PhantomData;

use super::many::{Job, Panels, many_on, scaled, store_panel};
use super::rows::tiled;
use super::{Product, by_panels};
use crate::packed::{Groups, Layout};
use crate::simd::{Codes, for_isa};
use crate::team::Team;

/// How far ahead memory is asked for: a page, where the hardware stops looking ahead.
const AHEAD: usize = 4096;

/// Rows that decode in registers.
const FEW: usize = 2;

/// What the codes of a format mean.
trait Coding: Copy + Send + Sync {
    /// Bytes of the codes of four inputs, for each lane of one vector.
    const QUAD: usize;

    /// The codes of input `I` of four as numbers, for the lanes of a panel.
    ///
    /// # Safety
    /// As for [`Codes`].
    unsafe fn input<S: Codes, const I: usize>(quad: *const u8) -> [S::F; 2];

    /// The scales of a panel's lanes.
    ///
    /// # Safety
    /// As for [`Codes`].
    #[inline(always)]
    unsafe fn scales<S: Codes>(scales: *const u8) -> [S::F; 2] {
        // SAFETY: the caller keeps the contract.
        unsafe { [S::load_f16(scales.cast()), S::load_f16(scales.cast::<u16>().add(S::LANES))] }
    }
}

#[derive(Clone, Copy)]
struct Int8;
#[derive(Clone, Copy)]
struct Int4;
#[derive(Clone, Copy)]
struct Mxfp4;

impl Coding for Int8 {
    const QUAD: usize = 8;

    #[inline(always)]
    unsafe fn input<S: Codes, const I: usize>(quad: *const u8) -> [S::F; 2] {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let (low, high) = (S::load_quads(quad), S::load_quads(quad.add(4 * S::LANES)));
            match I {
                0 => [S::byte::<24>(low), S::byte::<24>(high)],
                1 => [S::byte::<16>(low), S::byte::<16>(high)],
                2 => [S::byte::<8>(low), S::byte::<8>(high)],
                _ => [S::byte::<0>(low), S::byte::<0>(high)],
            }
        }
    }
}

impl Coding for Int4 {
    const QUAD: usize = 4;

    #[inline(always)]
    unsafe fn input<S: Codes, const I: usize>(quad: *const u8) -> [S::F; 2] {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let quad = S::load_quads(quad);
            match I {
                0 => [S::nibble::<0>(quad), S::nibble::<4>(quad)],
                1 => [S::nibble::<8>(quad), S::nibble::<12>(quad)],
                2 => [S::nibble::<16>(quad), S::nibble::<20>(quad)],
                _ => [S::nibble::<24>(quad), S::nibble::<28>(quad)],
            }
        }
    }
}

impl Coding for Mxfp4 {
    const QUAD: usize = 4;

    #[inline(always)]
    unsafe fn input<S: Codes, const I: usize>(quad: *const u8) -> [S::F; 2] {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let quad = S::load_quads(quad);
            match I {
                0 => [S::e2m1::<0>(quad), S::e2m1::<4>(quad)],
                1 => [S::e2m1::<8>(quad), S::e2m1::<12>(quad)],
                2 => [S::e2m1::<16>(quad), S::e2m1::<20>(quad)],
                _ => [S::e2m1::<24>(quad), S::e2m1::<28>(quad)],
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Codes>(scales: *const u8) -> [S::F; 2] {
        // SAFETY: the caller keeps the contract.
        unsafe { [S::load_e8m0(scales), S::load_e8m0(scales.add(S::LANES))] }
    }
}

/// Codes in groups, and what they mean.
#[derive(Clone, Copy)]
struct Coded<'a, C> {
    w: &'a Groups,
    layout: Layout,
    /// Groups of a panel.
    groups: usize,
    coding: PhantomData<C>,
}

impl<C: Coding> Coded<'_, C> {
    /// The group of a panel, of which the codes come first.
    ///
    /// # Safety
    /// Panel and group lie in the matrix.
    #[inline(always)]
    unsafe fn unit(&self, panel: usize, group: usize) -> *const u8 {
        // SAFETY: the caller keeps the contract.
        unsafe { self.w.start().add((panel * self.groups + group) * self.layout.unit()) }
    }
}

impl<C: Coding> Panels for Coded<'_, C> {
    fn span(&self) -> usize {
        self.layout.group
    }

    #[inline(always)]
    unsafe fn widened<S: Codes>(&self, panel: usize, k: usize, n: usize, to: *mut f32) -> *const f32 {
        let group = self.layout.group;
        // SAFETY: the caller keeps the contract; `k` and `n` are multiples of the group.
        unsafe {
            let mut at = to;
            for index in k / group..(k + n) / group {
                let unit = self.unit(panel, index);
                for quad in 0..group / 4 {
                    let quad = unit.add(quad * C::QUAD * S::LANES);
                    store::<S>(at, C::input::<S, 0>(quad));
                    store::<S>(at.add(2 * S::LANES), C::input::<S, 1>(quad));
                    store::<S>(at.add(4 * S::LANES), C::input::<S, 2>(quad));
                    store::<S>(at.add(6 * S::LANES), C::input::<S, 3>(quad));
                    at = at.add(8 * S::LANES);
                }
            }
        }
        to
    }

    #[inline(always)]
    unsafe fn scales<S: Codes>(&self, panel: usize, k: usize) -> Option<[S::F; 2]> {
        // SAFETY: the caller keeps the contract.
        unsafe { Some(C::scales::<S>(self.unit(panel, k / self.layout.group).add(self.layout.codes()))) }
    }
}

/// # Safety
/// As for [`Codes`].
#[inline(always)]
unsafe fn store<S: Codes>(to: *mut f32, [low, high]: [S::F; 2]) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        S::store(to, low);
        S::store(to.add(S::LANES), high);
    }
}

/// The product with an int8, int4 or mxfp4 matrix.
///
/// # Safety
/// The pointers cover the shapes.
pub(super) unsafe fn product(job: &Product, w: &Groups, team: &Team) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match (w.layout().bits, w.layout().scale) {
            (8, _) => coded::<Int8>(job, w, team),
            (_, 1) => coded::<Mxfp4>(job, w, team),
            _ => coded::<Int4>(job, w, team),
        }
    }
}

/// # Safety
/// As for [`product`]; the codes are those of `C`.
unsafe fn coded<C: Coding>(job: &Product, w: &Groups, team: &Team) {
    let layout = w.layout();
    let weights = Coded::<C> { w, layout, groups: job.inputs / layout.group, coding: PhantomData };
    // SAFETY: the caller keeps the contract.
    let x = unsafe { std::slice::from_raw_parts(job.x, job.rows * job.inputs) };
    let x = tiled(x, job.inputs, 1.0, team);
    let (isa, few) = (team.isa(), job.rows <= FEW);
    by_panels(&Product { x: x.as_ptr(), ..*job }, team, &|product, start, end| {
        let job = Job { product, weights };
        // SAFETY: the caller keeps the contract, and each part writes the columns of its panels.
        unsafe { if few { few_on(isa, &job, start, end) } else { many_on(isa, &job, start, end) } }
    });
}

for_isa!(fn few_on[C: Coding](job: &Job<Coded<'_, C>>, start: usize, end: usize) = few);

/// All rows, at most [`FEW`], of the panels `start..end`.
///
/// # Safety
/// The pointers of `job` cover its shapes, and nobody else writes these panels' columns of `y`.
#[inline(always)]
unsafe fn few<S: Codes, C: Coding>(job: &Job<Coded<'_, C>>, start: usize, end: usize) {
    let mut panel = start;
    while panel < end {
        // Two panels at once keep the units busy: a panel alone has two chains of additions a row.
        // SAFETY: the caller keeps the contract, and `panel` and the one after it lie before `end`.
        panel += unsafe {
            match (job.product.rows, end - panel) {
                (1, 2..) => block::<S, C, 1, 2>(job, panel),
                (1, _) => block::<S, C, 1, 1>(job, panel),
                _ => block::<S, C, FEW, 1>(job, panel),
            }
        };
    }
}

/// `R` rows, which are all, times `P` panels; returns `P`.
///
/// # Safety
/// As for [`few`].
#[inline(always)]
unsafe fn block<S: Codes, C: Coding, const R: usize, const P: usize>(job: &Job<Coded<'_, C>>, panel: usize) -> usize {
    let (Product { x, y, outputs, .. }, weights) = (job.product, &job.weights);
    let group = weights.layout.group;
    // SAFETY: the caller keeps the contract.
    unsafe {
        let mut sums = [[[S::splat(0.0); 2]; P]; R];
        for index in 0..weights.groups {
            let units: [_; P] = std::array::from_fn(|p| weights.unit(panel + p, index));
            let x = x.add(index * group * R);
            let mut part = [[[S::splat(0.0); 2]; P]; R];
            for quad in 0..group / 4 {
                for (p, unit) in units.iter().enumerate() {
                    let (codes, x) = (unit.add(quad * C::QUAD * S::LANES), x.add(4 * quad * R));
                    S::prefetch(codes.wrapping_add(AHEAD));
                    add::<S, R, P>(C::input::<S, 0>(codes), x, p, &mut part);
                    add::<S, R, P>(C::input::<S, 1>(codes), x.add(R), p, &mut part);
                    add::<S, R, P>(C::input::<S, 2>(codes), x.add(2 * R), p, &mut part);
                    add::<S, R, P>(C::input::<S, 3>(codes), x.add(3 * R), p, &mut part);
                }
            }
            for (p, unit) in units.iter().enumerate() {
                let scales = C::scales::<S>(unit.add(weights.layout.codes()));
                for (sums, part) in sums.iter_mut().zip(part) {
                    sums[p] = scaled::<S>(part[p], scales, (index > 0).then_some(sums[p]));
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (p, sums) in sums.into_iter().enumerate() {
                let column = (panel + p) * 2 * S::LANES;
                store_panel::<S>(y.add(r * outputs + column), outputs - column, sums);
            }
        }
    }
    P
}

/// Adds the products of an input of panel `p` to the sums of `R` rows.
///
/// # Safety
/// As for [`Codes`]; `x` has `R` numbers.
#[inline(always)]
unsafe fn add<S: Codes, const R: usize, const P: usize>(
    [low, high]: [S::F; 2],
    x: *const f32,
    p: usize,
    sums: &mut [[[S::F; 2]; P]; R],
) {
    for (r, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller keeps the contract.
        unsafe {
            let x = S::splat(*x.add(r));
            sums[p] = [S::fma(low, x, sums[p][0]), S::fma(high, x, sums[p][1])];
        }
    }
}

//! The product of activations with a packed matrix.
//!
//! Per output one chain `acc = w[k] * x[k] + acc` over k = 0, 1, .., in every format and for every number of rows:
//! outputs lie in lanes, rows and panels are blocked in registers, threads take panels.

use half::{bf16, f16};
use specquant_core::WeightFormat;

use crate::packed::PackedMatrix;
use crate::simd::{Element, Simd, for_isa, store_up_to};
use crate::team::{Output, Team};

/// Rows whose accumulators stay in registers together: 6 rows of two vectors leave four of 16 registers.
const TILE: usize = 6;

/// One product, as the kernels see it.
#[derive(Clone, Copy)]
struct Product<E> {
    /// `[rows, inputs]`
    x: *const f32,
    /// `[panel][input][lane]`
    w: *const E,
    /// `[rows, outputs]`
    y: *mut f32,
    rows: usize,
    inputs: usize,
    outputs: usize,
}

/// `x` `[rows, inputs]` times the transpose of `w`, to `y` `[rows, outputs]`, all of which is written.
///
/// # Safety
/// `y` must be valid for writes of `rows * outputs` elements.
pub(crate) unsafe fn linear(x: &[f32], w: &PackedMatrix, team: &Team, y: *mut f32) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        match w.format() {
            WeightFormat::F32 => product::<f32>(x, w, team, y),
            WeightFormat::F16 => product::<f16>(x, w, team, y),
            WeightFormat::Bf16 => product::<bf16>(x, w, team, y),
        }
    }
}

/// # Safety
/// As for [`linear`], and `E` is the element type of `w`.
unsafe fn product<E: Element>(x: &[f32], w: &PackedMatrix, team: &Team, y: *mut f32) {
    let (inputs, outputs, isa) = (w.inputs(), w.outputs(), team.isa());
    assert_eq!(w.panel(), isa.panel(), "the matrix was packed for another instruction set");
    assert_eq!(x.len() % inputs, 0, "the activations are not rows of {inputs}");
    let rows = x.len() / inputs;
    let panels = outputs.div_ceil(w.panel());
    // A single row runs four panels at once; parts are whole fours, several for each thread if there are enough.
    let four = panels.div_ceil(4);
    let parts = four.min(team.threads() * 4);
    let y = Output::new(y);
    team.run(rows * inputs * outputs, parts, &|part| {
        let start = (part * four / parts) * 4;
        let end = ((part + 1) * four / parts * 4).min(panels);
        let job = Product { x: x.as_ptr(), w: w.elements::<E>(), y: y.get(), rows, inputs, outputs };
        // SAFETY: the shapes were checked, `w` holds whole panels, and each part writes the columns of its panels.
        unsafe { panels_on::<E>(isa, &job, start, end) }
    });
}

for_isa!(fn panels_on[E: Element](job: &Product<E>, start: usize, end: usize) = panels);

/// All rows of the panels `start..end`; a panel stays in the nearest cache while the rows pass.
///
/// # Safety
/// The pointers of `job` cover its shapes, and nobody else writes these panels' columns of `y`.
#[inline(always)]
unsafe fn panels<S: Simd, E: Element>(job: &Product<E>, start: usize, end: usize) {
    let tiles = job.rows.div_ceil(TILE);
    let mut panel = start;
    while panel < end {
        // One row alone has only two chains of additions per panel, so that it takes several panels to keep the units
        // busy; two rows take two. Three rows ran faster on one panel at a time.
        let step = match (job.rows, end - panel) {
            (1, 4..) => S::PANELS,
            (1..=2, 2..) => 2,
            _ => 1,
        };
        for tile in 0..tiles {
            // Tiles of nearly equal size: a lone last row would run at a sixth of the speed.
            let row = tile * job.rows / tiles;
            let rows = (tile + 1) * job.rows / tiles - row;
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
unsafe fn block<S: Simd, E: Element, const R: usize, const P: usize>(job: &Product<E>, panel: usize, row: usize) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let (inputs, width) = (job.inputs, 2 * S::LANES);
        let x = job.x.add(row * inputs);
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
                let y = job.y.add((row + r) * job.outputs + column);
                let left = job.outputs - column;
                store_up_to::<S>(y, left, acc[r][p][0]);
                if left > S::LANES {
                    store_up_to::<S>(y.add(S::LANES), left - S::LANES, acc[r][p][1]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;
    use half::{bf16, f16};
    use proptest::prelude::*;
    use specquant_core::WeightFormat;

    use crate::testing::{bits, close, host, numbers, teams, tensor};
    use crate::{Backend, DenseMatrix, Dtype, Isa, PackedMatrix, Team};

    const FORMATS: [WeightFormat; 3] = [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16];

    /// The weights as `format` holds them.
    fn rounded(weights: &[f32], format: WeightFormat) -> Vec<f32> {
        let round = |w: &f32| match format {
            WeightFormat::F32 => *w,
            WeightFormat::F16 => f16::from_f32(*w).to_f32(),
            WeightFormat::Bf16 => bf16::from_f32(*w).to_f32(),
        };
        weights.iter().map(round).collect()
    }

    fn packed(weights: &[f32], inputs: usize, format: WeightFormat, team: &Team) -> PackedMatrix {
        let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        let outputs = weights.len() / inputs;
        let matrix = DenseMatrix { name: "w", outputs, inputs, dtype: Dtype::F32, bytes: &bytes };
        Flex::pack(&[matrix], format, team).unwrap()
    }

    /// The documented order, one element at a time; `pieces` sums of K are added up in the end.
    fn chain(x: &[f32], weights: &[f32], isa: Isa, pieces: usize) -> Vec<f32> {
        let inputs = weights.len() / (weights.len() / x.len());
        let dot = |w: &[f32]| {
            let sum = |range: std::ops::Range<usize>| {
                range.fold(0f32, |acc, k| match isa {
                    Isa::Scalar => w[k] * x[k] + acc,
                    Isa::Avx2 | Isa::Avx512 => w[k].mul_add(x[k], acc),
                })
            };
            let cut = |piece: usize| piece * inputs / pieces;
            (0..pieces).map(|piece| sum(cut(piece)..cut(piece + 1))).reduce(|a, b| a + b).unwrap()
        };
        weights.chunks_exact(inputs).map(dot).collect()
    }

    fn check(team: &Team, format: WeightFormat, [rows, inputs, outputs]: [usize; 3]) {
        let what = format!("{team:?} {format} [{rows}, {inputs}] -> {outputs}");
        let (x, weights) = (numbers(1, rows * inputs), numbers(2, outputs * inputs));
        let w = packed(&weights, inputs, format, team);
        let y = host(Flex::linear(tensor(&x, inputs), &w, team));
        let weights = rounded(&weights, format);
        for (row, x) in x.chunks_exact(inputs).enumerate() {
            let y = &y[row * outputs..][..outputs];
            assert_eq!(bits(y), bits(&chain(x, &weights, team.isa(), 1)), "{what}, row {row}");
            let alone = host(Flex::linear(tensor(x, inputs), &w, team));
            assert_eq!(bits(y), bits(&alone), "{what}, row {row} alone");
            let products = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).collect::<Vec<_>>();
            let exact: Vec<f64> = weights.chunks_exact(inputs).map(|w| products(w).iter().sum()).collect();
            let size = weights.chunks_exact(inputs).map(|w| products(w).iter().map(|p| p.abs()).sum::<f64>());
            let bound = size.fold(0.0, f64::max) * (inputs as f64).sqrt() * f64::from(f32::EPSILON);
            close(&what, y, &exact, bound);
        }
    }

    #[test]
    fn every_element_is_one_chain_over_k_for_every_shape_format_path_and_thread_count() {
        for team in teams(&[1, 2, 3]) {
            for format in FORMATS {
                for inputs in [1, 7, 256, 2048] {
                    for outputs in [1, 15, 16, 33, 129] {
                        check(&team, format, [2, inputs, outputs]);
                    }
                }
                for rows in 1..=17 {
                    check(&team, format, [rows, 37, 83]);
                }
            }
        }
    }

    #[test]
    fn a_sum_over_k_in_two_pieces_has_other_bits() {
        let (x, weights) = (numbers(1, 256), numbers(2, 64 * 256));
        for team in teams(&[1]) {
            let whole = chain(&x, &weights, team.isa(), 1);
            assert_ne!(bits(&whole), bits(&chain(&x, &weights, team.isa(), 2)), "{team:?}");
        }
    }

    #[test]
    fn paths_agree_to_rounding() {
        let (x, weights) = (numbers(1, 3 * 2048), numbers(2, 100 * 2048));
        let results: Vec<Vec<f32>> = teams(&[2])
            .iter()
            .map(|team| host(Flex::linear(tensor(&x, 2048), &packed(&weights, 2048, WeightFormat::F16, team), team)))
            .collect();
        for other in &results[1..] {
            let expected: Vec<f64> = other.iter().map(|y| f64::from(*y)).collect();
            close("scalar against a vector path", &results[0], &expected, 2e-3);
        }
    }

    #[test]
    fn parts_are_stacked_along_the_outputs() {
        let (inputs, q, k) = (24, numbers(1, 20 * 24), numbers(2, 5 * 24));
        let bytes = |w: &[f32]| w.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let (q_bytes, k_bytes) = (bytes(&q), bytes(&k));
        let part = |outputs, bytes| DenseMatrix { name: "part", outputs, inputs, dtype: Dtype::F32, bytes };
        let stacked: Vec<f32> = [q.clone(), k.clone()].concat();
        for team in teams(&[1, 3]) {
            for format in FORMATS {
                let w = Flex::pack(&[part(20, &q_bytes), part(5, &k_bytes)], format, &team).unwrap();
                let x = numbers(3, inputs);
                let y = host(Flex::linear(tensor(&x, inputs), &w, &team));
                assert_eq!(bits(&y), bits(&chain(&x, &rounded(&stacked, format), team.isa(), 1)));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn bits_never_depend_on_the_shape_of_the_call(
            rows in 1usize..20, inputs in 1usize..300, outputs in 1usize..200, threads in 1usize..4, format in 0usize..3
        ) {
            for team in teams(&[threads]) {
                check(&team, FORMATS[format], [rows, inputs, outputs]);
            }
        }
    }
}

//! The product of activations with a packed matrix.
//!
//! Per output and scale one chain `sum = w[k] * x[k] + sum` over its inputs in order, and one over the scaled sums, for every
//! number of rows: outputs lie in lanes, rows and panels are blocked in registers, threads take panels. The formats with
//! int8 activations have exact integer sums in place of the inner chains.

mod groups;
mod integer;
mod many;
mod numbers;
mod rows;

use half::{bf16, f16};
use specquant_core::WeightFormat;

use crate::packed::{PackedMatrix, Weights};
use crate::team::{Output, Team};

/// Activations, result and shape of one product, as the kernels see them.
#[derive(Clone, Copy)]
struct Product {
    /// `[rows, inputs]`, or tiled.
    x: *const f32,
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
    let (inputs, outputs) = (w.inputs(), w.outputs());
    assert_eq!(w.panel(), team.isa().panel(), "the matrix was packed for another instruction set");
    assert_eq!(x.len() % inputs, 0, "the activations are not rows of {inputs}");
    let job = Product { x: x.as_ptr(), y, rows: x.len() / inputs, inputs, outputs };
    // SAFETY: the shapes were checked, and the buffer holds whole panels of the format.
    unsafe {
        match (w.format(), w.weights()) {
            (WeightFormat::F32, Weights::Float(w)) => numbers::floats::<f32>(&job, w.start().cast(), team),
            (WeightFormat::F16, Weights::Float(w)) => numbers::floats::<f16>(&job, w.start().cast(), team),
            (_, Weights::Float(w)) => numbers::floats::<bf16>(&job, w.start().cast(), team),
            (_, Weights::Fp8(w)) => numbers::fp8(&job, w, team),
            (WeightFormat::Int8A8 | WeightFormat::Int4A8, Weights::Groups(w)) => integer::product(&job, w, team),
            (_, Weights::Groups(w)) => groups::product(&job, w, team),
        }
    }
}

/// Calls `part` with ranges of whole fours of panels, so that a single row may run four at once; several parts for each
/// thread if there are enough panels.
fn by_panels(job: &Product, team: &Team, part: &(dyn Fn(Product, usize, usize) + Sync)) {
    let panels = job.outputs.div_ceil(team.isa().panel());
    let four = panels.div_ceil(4);
    let parts = four.min(team.threads() * 4);
    let (x, y) = (job.x as usize, Output::new(job.y));
    let Product { rows, inputs, outputs, .. } = *job;
    team.run(rows * inputs * outputs, parts, &|index| {
        let start = (index * four / parts) * 4;
        let end = ((index + 1) * four / parts * 4).min(panels);
        part(Product { x: x as *const f32, y: y.get(), rows, inputs, outputs }, start, end);
    });
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;
    use proptest::prelude::*;
    use specquant_core::{Quantizer, WeightFormat};

    use crate::testing::{Quantized, bits, close, host, numbers, quantized, teams, tensor};
    use crate::{Backend, DenseMatrix, Dtype, Isa, PackedMatrix, Team};

    const FLOATS: [WeightFormat; 3] = [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16];

    fn packed(weights: &[f32], inputs: usize, format: WeightFormat, team: &Team) -> PackedMatrix {
        let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        let outputs = weights.len() / inputs;
        let matrix = DenseMatrix { name: "w", outputs, inputs, dtype: Dtype::F32, bytes: &bytes };
        Flex::pack(&[matrix], format, Quantizer::Mse, team).unwrap()
    }

    fn add_product(isa: Isa, a: f32, b: f32, c: f32) -> f32 {
        match isa {
            Isa::Scalar => a * b + c,
            Isa::Avx2 | Isa::Avx512 => a.mul_add(b, c),
        }
    }

    /// The documented order, one element at a time; `pieces` sums of K are added up in the end.
    fn chain(x: &[f32], weights: &[f32], isa: Isa, pieces: usize) -> Vec<f32> {
        let inputs = weights.len() / (weights.len() / x.len());
        let dot = |w: &[f32]| {
            let sum = |range: std::ops::Range<usize>| range.fold(0f32, |acc, k| add_product(isa, w[k], x[k], acc));
            let cut = |piece: usize| piece * inputs / pieces;
            (0..pieces).map(|piece| sum(cut(piece)..cut(piece + 1))).reduce(|a, b| a + b).unwrap()
        };
        weights.chunks_exact(inputs).map(dot).collect()
    }

    /// The documented rounding of activations, and groups of exact products in order.
    fn integer_chain(x: &[f32], codes: &[i8], scales: &[f32], isa: Isa) -> Vec<f32> {
        let rounded: Vec<(f32, Vec<i32>)> = x
            .chunks(32)
            .map(|x| {
                let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
                let inverse = if most == 0.0 { 0.0 } else { 127.0 / most };
                (most / 127.0, x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect())
            })
            .collect();
        let output = |(codes, scales): (&[i8], &[f32])| {
            codes.chunks(32).zip(scales).zip(&rounded).fold(0f32, |acc, ((codes, scale), (x_scale, x))| {
                let dot: i32 = codes.iter().zip(x).map(|(w, x)| i32::from(*w) * x).sum();
                add_product(isa, scale * x_scale, dot as f32, acc)
            })
        };
        codes.chunks(x.len()).zip(scales.chunks(x.len() / 32)).map(output).collect()
    }

    /// Chains of spans, scaled and added in order.
    fn spans(x: &[f32], quantized: &Quantized, isa: Isa) -> Vec<f32> {
        let Some(scales) = &quantized.scales else { return chain(x, &quantized.values, isa, 1) };
        let output = |(values, scales): (&[f32], &[f32])| {
            let spans = values.chunks(quantized.span).zip(x.chunks(quantized.span)).zip(scales);
            let add = |before: Option<f32>, ((w, x), scale): ((&[f32], &[f32]), &f32)| {
                let sum = w.iter().zip(x).fold(0.0, |sum, (w, x)| add_product(isa, *w, *x, sum));
                Some(before.map_or(sum * scale, |before| add_product(isa, sum, *scale, before)))
            };
            spans.fold(None, add).unwrap()
        };
        let per_output = x.len().div_ceil(quantized.span);
        quantized.values.chunks(x.len()).zip(scales.chunks(per_output)).map(output).collect()
    }

    /// What a row of activations must give, to the bit.
    fn expected(x: &[f32], quantized: &Quantized, isa: Isa) -> Vec<f32> {
        match (&quantized.integers, &quantized.scales) {
            (Some(codes), Some(scales)) => integer_chain(x, codes, scales, isa),
            _ => spans(x, quantized, isa),
        }
    }

    fn check(team: &Team, format: WeightFormat, [rows, inputs, outputs]: [usize; 3]) {
        let what = format!("{team:?} {format} [{rows}, {inputs}] -> {outputs}");
        let (x, weights) = (numbers(1, rows * inputs), numbers(2, outputs * inputs));
        let w = packed(&weights, inputs, format, team);
        let y = host(Flex::linear(tensor(&x, inputs), &w, team));
        let quantized = quantized(&weights, inputs, format, Quantizer::Mse);
        for (row, x) in x.chunks_exact(inputs).enumerate() {
            let y = &y[row * outputs..][..outputs];
            assert_eq!(bits(y), bits(&expected(x, &quantized, team.isa())), "{what}, row {row}");
            let alone = host(Flex::linear(tensor(x, inputs), &w, team));
            assert_eq!(bits(y), bits(&alone), "{what}, row {row} alone");
            let weights = quantized.weights(inputs);
            let products = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).collect::<Vec<_>>();
            let outputs = || weights.chunks_exact(inputs).map(products);
            let exact: Vec<f64> = outputs().map(|products| products.iter().sum()).collect();
            let size = outputs().map(|products| products.iter().map(|p| p.abs()).sum::<f64>()).fold(0.0, f64::max);
            // Activations in int8 are off by half a step of 1/127 of the largest at most, usually in both directions.
            let step = if quantized.integers.is_some() { 0.5 / 127.0 * 3.0 } else { f64::from(f32::EPSILON) };
            close(&what, y, &exact, size * (inputs as f64).sqrt() * step);
        }
    }

    /// Numbers of inputs that a format can have.
    fn inputs_of(format: WeightFormat) -> [usize; 4] {
        match format.group() {
            None => [1, 7, 256, 2048],
            Some(group) => [group, 3 * group, 256, 2048],
        }
    }

    #[test]
    fn every_element_is_one_chain_over_k_for_every_shape_format_path_and_thread_count() {
        for team in teams(&[1, 2, 3]) {
            for format in WeightFormat::ALL {
                for inputs in inputs_of(format) {
                    for outputs in [1, 15, 16, 33, 129] {
                        if format != WeightFormat::Fp8Block || inputs * outputs < 20_000 {
                            check(&team, format, [2, inputs, outputs]);
                        }
                    }
                }
                for rows in 1..=17 {
                    check(&team, format, [rows, format.group().unwrap_or(37), 83]);
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
        for format in WeightFormat::ALL.into_iter().filter(|format| *format != WeightFormat::Fp8Block) {
            let product =
                |team: &Team| host(Flex::linear(tensor(&x, 2048), &packed(&weights, 2048, format, team), team));
            let results: Vec<Vec<f32>> = teams(&[2]).iter().map(product).collect();
            for other in &results[1..] {
                let expected: Vec<f64> = other.iter().map(|y| f64::from(*y)).collect();
                close(&format!("scalar {format} against a vector path"), &results[0], &expected, 2e-3);
            }
        }
    }

    #[test]
    fn integer_products_are_the_same_on_every_path() {
        // A single group with powers of two as scales leaves nothing to round.
        let (weights, x) = (numbers(3, 40 * 32), numbers(4, 5 * 32));
        for (most, format) in [(127.0, WeightFormat::Int8A8), (8.0, WeightFormat::Int4A8)] {
            let whole = |x: f32| (x * 40.0).round().clamp(-126.0, 126.0);
            let mut weights: Vec<f32> = weights.iter().map(|w| whole(*w).rem_euclid(7.0) - 3.0).collect();
            let mut x: Vec<f32> = x.iter().map(|x| whole(*x)).collect();
            weights.chunks_mut(32).for_each(|row| row[3] = -most);
            x.chunks_mut(32).for_each(|row| row[7] = 127.0);
            let exact: Vec<f32> = x
                .chunks(32)
                .flat_map(|x| {
                    weights.chunks(32).map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum()).collect::<Vec<f32>>()
                })
                .collect();
            for team in teams(&[1, 2]) {
                let w = packed(&weights, 32, format, &team);
                assert_eq!(host(Flex::linear(tensor(&x, 32), &w, &team)), exact, "{team:?} {format}");
            }
        }
    }

    #[test]
    fn activations_that_are_not_finite_make_results_that_are_not() {
        for team in teams(&[1]) {
            for format in [WeightFormat::Int8A8, WeightFormat::Int4A8, WeightFormat::Int4 { group: 32 }] {
                let w = packed(&numbers(1, 20 * 64), 64, format, &team);
                for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    for at in [0, 40, 63] {
                        let mut x = numbers(2, 64);
                        x[at] = value;
                        let y = host(Flex::linear(tensor(&x, 64), &w, &team));
                        assert!(y.iter().all(|y| !y.is_finite()), "{team:?} {format}: {value} at {at} gives {y:?}");
                    }
                }
                // Nothing at all, and numbers too small for a reciprocal.
                for value in [0.0, 1e-40, 2e-38, 1e-37] {
                    let y = host(Flex::linear(tensor(&[value; 64], 64), &w, &team));
                    assert!(y.iter().all(|y| y.abs() < 1e-35), "{team:?} {format}: {y:?}");
                }
            }
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
            for format in FLOATS {
                let parts = [part(20, &q_bytes), part(5, &k_bytes)];
                let w = Flex::pack(&parts, format, Quantizer::Mse, &team).unwrap();
                let x = numbers(3, inputs);
                let y = host(Flex::linear(tensor(&x, inputs), &w, &team));
                let weights = quantized(&stacked, inputs, format, Quantizer::Mse).values;
                assert_eq!(bits(&y), bits(&chain(&x, &weights, team.isa(), 1)));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn bits_never_depend_on_the_shape_of_the_call(
            rows in 1usize..20, inputs in 1usize..300, outputs in 1usize..100, threads in 1usize..4, format in 0usize..12
        ) {
            let format = WeightFormat::ALL[format];
            let inputs = format.group().map_or(inputs, |group| inputs.div_ceil(group) * group);
            for team in teams(&[threads]) {
                check(&team, format, [rows, inputs, outputs]);
            }
        }
    }
}

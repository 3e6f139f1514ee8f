//! What the kernels' tests share: teams on every path of this CPU, numbers from a seed, tensors to and from the host.

use burn::backend::Flex;
use burn::tensor::{Tensor, TensorData};
use half::{bf16, f16};
use specquant_core::{Quantizer, WeightFormat};

use crate::codec::{E2M1, e4m3_from_f32, e4m3_to_f32, e8m0_to_f32};
use crate::packed::{Fp8Scales, PackedMatrix, Weights};
use crate::quantize::{Codes, integers, microscaled};
use crate::simd::Element;
use crate::{Isa, Team};

/// A team for each path of this CPU and each thread count; says which paths are missing.
pub(crate) fn teams(threads: &[usize]) -> Vec<Team> {
    let mut teams = Vec::new();
    for isa in Isa::ALL {
        if !isa.is_available() {
            eprintln!("{isa}: not on this CPU, not tested");
            continue;
        }
        teams.extend(threads.iter().map(|n| Team::new(*n, isa).unwrap()));
    }
    teams
}

/// `n` numbers from about -3 to 3, denser around 0, the same for the same seed.
pub(crate) fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 24) as f32
    };
    (0..n).map(|_| (uniform() + uniform() + uniform() - 1.5) * 2.0).collect()
}

pub(crate) fn tensor(values: &[f32], columns: usize) -> Tensor<Flex, 2> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len() / columns, columns]), &Default::default())
}

pub(crate) fn host<const D: usize>(tensor: Tensor<Flex, D>) -> Vec<f32> {
    tensor.into_data().into_vec().unwrap()
}

/// For comparisons that tell -0 from 0 and print what differs.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Panics unless every value is within `bound` of what is expected.
pub(crate) fn close(what: &str, values: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(values.len(), expected.len(), "{what}");
    for (i, (value, expected)) in values.iter().zip(expected).enumerate() {
        let error = (f64::from(*value) - expected).abs();
        assert!(error <= bound, "{what}: element {i} is {value}, expected {expected}, off by {error:e}");
    }
}

/// The weights of a matrix as it holds them, `[outputs, inputs]`, read one code at a time.
pub(crate) fn unpacked(w: &PackedMatrix) -> Vec<f32> {
    let (inputs, panel) = (w.inputs(), w.panel());
    let all = || (0..w.outputs()).flat_map(move |output| (0..inputs).map(move |k| (output, k)));
    let at = |output: usize, k: usize| output / panel * panel * inputs + k * panel + output % panel;
    // SAFETY: reads of what the layouts say is there.
    unsafe {
        match w.weights() {
            Weights::Float(data) => all()
                .map(|(output, k)| match w.format() {
                    WeightFormat::F32 => data.start().cast::<f32>().add(at(output, k)).read(),
                    WeightFormat::F16 => data.start().cast::<f16>().add(at(output, k)).read().widen(),
                    _ => data.start().cast::<bf16>().add(at(output, k)).read().widen(),
                })
                .collect(),
            Weights::Fp8(fp8) => all()
                .map(|(output, k)| {
                    let scale = match fp8.scales() {
                        Fp8Scales::Outputs(scales) => scales[output],
                        Fp8Scales::Blocks(blocks) => blocks.scale(output, k),
                    };
                    e4m3_to_f32(fp8.codes().add(at(output, k)).read()) * (scale / 256.0)
                })
                .collect(),
            Weights::Groups(groups) => all()
                .map(|(output, k)| {
                    let layout = groups.layout();
                    let unit = output / panel * (inputs / layout.group) + k / layout.group;
                    let unit = groups.start().add(unit * layout.unit());
                    let (byte, shift) = layout.code(k % layout.group, output % panel);
                    let (byte, scale) = (unit.add(byte).read(), unit.add(layout.codes()));
                    let f16_scale = || scale.cast::<f16>().add(output % panel).read_unaligned().to_f32();
                    match (layout.bits, layout.scale) {
                        (8, _) => f32::from(byte as i8) * f16_scale(),
                        (_, 1) => E2M1[usize::from(byte >> shift & 15)] * e8m0_to_f32(scale.add(output % panel).read()),
                        _ => (f32::from(byte >> shift & 15) - 8.0) * f16_scale(),
                    }
                })
                .collect(),
        }
    }
}

/// What `format` makes of `[outputs, inputs]` float weights, computed without any layout. The two scales of E4M3 are left
/// out of `weights` for `fp8:channel`, where they are applied to the sums.
pub(crate) struct Quantized {
    pub(crate) weights: Vec<f32>,
    /// What each output's sum is multiplied with.
    pub(crate) factors: Option<Vec<f32>>,
    /// Codes and scales of the formats with integer activations.
    pub(crate) integers: Option<(Vec<i8>, Vec<f32>)>,
}

pub(crate) fn quantized(weights: &[f32], inputs: usize, format: WeightFormat, quantizer: Quantizer) -> Quantized {
    let simple = |weights| Quantized { weights, factors: None, integers: None };
    let largest = |weights: &mut dyn Iterator<Item = f32>| weights.fold(0f32, |most, w| most.max(w.abs()));
    let code = |w: f32, scale: f32| e4m3_to_f32(e4m3_from_f32(w / scale));
    match format {
        WeightFormat::F32 => simple(weights.to_vec()),
        WeightFormat::F16 => simple(weights.iter().map(|w| f16::from_f32(*w).to_f32()).collect()),
        WeightFormat::Bf16 => simple(weights.iter().map(|w| bf16::from_f32(*w).to_f32()).collect()),
        WeightFormat::Fp8Channel => {
            let scales = weights.chunks(inputs).map(|row| largest(&mut row.iter().copied()) / 448.0);
            let scales: Vec<f32> = scales.collect();
            let codes = weights.iter().enumerate().map(|(i, w)| code(*w, scales[i / inputs]) / 256.0).collect();
            let factors = Some(scales.iter().map(|scale| scale * 256.0).collect());
            Quantized { weights: codes, factors, integers: None }
        }
        WeightFormat::Fp8Block => {
            let value = |(i, w): (usize, &f32)| {
                let block = |i: usize| [i / inputs / 128, i % inputs / 128];
                let mut mates = weights.iter().enumerate().filter(|(j, _)| block(*j) == block(i)).map(|(_, w)| *w);
                let scale = largest(&mut mates) / 448.0;
                code(*w, scale) / 256.0 * (scale * 256.0)
            };
            simple(weights.iter().enumerate().map(value).collect())
        }
        WeightFormat::Mxfp4 => {
            let mut codes = [0; 32];
            let mut value = |weights: &[f32]| {
                let scale = e8m0_to_f32(microscaled(weights, quantizer, &mut codes));
                codes.map(|code| E2M1[usize::from(code)] * scale)
            };
            simple(weights.chunks(32).flat_map(&mut value).collect())
        }
        _ => {
            let wide = matches!(format, WeightFormat::Int8 | WeightFormat::Int8A8);
            let group = format.group().unwrap();
            let (mut codes, mut scales) = (vec![0; weights.len()], Vec::new());
            for (weights, codes) in weights.chunks(group).zip(codes.chunks_mut(group)) {
                let range = if wide { Codes::INT8 } else { Codes::INT4 };
                scales.push(integers(weights, range, quantizer, codes).to_f32());
            }
            let values = codes.iter().enumerate().map(|(i, code)| f32::from(*code) * scales[i / group]).collect();
            let with_integers = matches!(format, WeightFormat::Int8A8 | WeightFormat::Int4A8);
            Quantized { weights: values, factors: None, integers: with_integers.then_some((codes, scales)) }
        }
    }
}

/// `n` numbers of the standard normal distribution, the same for the same seed.
pub(crate) fn gaussian(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    // Box and Muller.
    (0..n)
        .map(|_| ((-2.0 * (1.0 - uniform()).ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()) as f32)
        .collect()
}

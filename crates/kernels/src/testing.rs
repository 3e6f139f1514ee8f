//! What the kernels' tests share: teams on every path of this CPU, numbers from a seed, tensors to and from the host.

use burn::backend::Flex;
use burn::tensor::{Tensor, TensorData};
use half::{bf16, f16};
use specquant_core::{Quantizer, WeightFormat};

use crate::codec::{E2M1, e4m3_from_f32, e4m3_to_f32, e8m0_to_f32};
use crate::packed::{Fp8Scales, PackedMatrix, Weights};
use crate::quantize::{Codes, integers, microscaled};
use crate::simd::{E4m3, Element};
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
                    e4m3_to_f32(fp8.codes().add(at(output, k)).read()) * (scale / E4m3::SCALES)
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

/// What `format` makes of `[outputs, inputs]` float weights, computed without any layout.
pub(crate) struct Quantized {
    /// Weights, or codes as numbers.
    pub(crate) values: Vec<f32>,
    /// Inputs whose sum is scaled together.
    pub(crate) span: usize,
    /// `[outputs, spans]`
    pub(crate) scales: Option<Vec<f32>>,
    /// The codes of the formats with integer activations.
    pub(crate) integers: Option<Vec<i8>>,
}

impl Quantized {
    /// Values times scales.
    pub(crate) fn weights(&self, inputs: usize) -> Vec<f32> {
        let spans = inputs.div_ceil(self.span);
        let scale = |i: usize| self.scales.as_ref().map_or(1.0, |s| s[i / inputs * spans + i % inputs / self.span]);
        self.values.iter().enumerate().map(|(i, value)| value * scale(i)).collect()
    }
}

pub(crate) fn quantized(weights: &[f32], inputs: usize, format: WeightFormat, quantizer: Quantizer) -> Quantized {
    let simple = |values| Quantized { values, span: inputs, scales: None, integers: None };
    let scaled = |values, span, scales| Quantized { values, span, scales: Some(scales), integers: None };
    let largest = |weights: &mut dyn Iterator<Item = f32>| weights.fold(0f32, |most, w| most.max(w.abs()));
    let code = |w: f32, scale: f32| e4m3_to_f32(e4m3_from_f32(w / scale));
    match format {
        WeightFormat::F32 => simple(weights.to_vec()),
        WeightFormat::F16 => simple(weights.iter().map(|w| f16::from_f32(*w).to_f32()).collect()),
        WeightFormat::Bf16 => simple(weights.iter().map(|w| bf16::from_f32(*w).to_f32()).collect()),
        WeightFormat::Fp8Channel => {
            let scales = weights.chunks(inputs).map(|row| largest(&mut row.iter().copied()) / 448.0);
            let scales: Vec<f32> = scales.collect();
            let codes = weights.iter().enumerate().map(|(i, w)| code(*w, scales[i / inputs])).collect();
            scaled(codes, inputs, scales)
        }
        WeightFormat::Fp8Block => {
            let spans = inputs.div_ceil(128);
            let scale = |(i, span): (usize, usize)| {
                let mates = weights.iter().enumerate();
                let mates = mates.filter(|(j, _)| j / inputs / 128 == i / 128 && j % inputs / 128 == span);
                largest(&mut mates.map(|(_, w)| *w)) / 448.0
            };
            let places = (0..weights.len() / inputs).flat_map(|output| (0..spans).map(move |span| (output, span)));
            let scales: Vec<f32> = places.map(scale).collect();
            let value = |(i, w): (usize, &f32)| code(*w, scales[i / inputs * spans + i % inputs / 128]);
            scaled(weights.iter().enumerate().map(value).collect(), 128, scales.clone())
        }
        WeightFormat::Mxfp4 => {
            let (mut values, mut scales, mut codes) = (Vec::new(), Vec::new(), [0; 32]);
            for weights in weights.chunks(32) {
                scales.push(e8m0_to_f32(microscaled(weights, quantizer, &mut codes)));
                values.extend(codes.map(|code| E2M1[usize::from(code)]));
            }
            scaled(values, 32, scales)
        }
        _ => {
            let wide = matches!(format, WeightFormat::Int8 | WeightFormat::Int8A8);
            let group = format.group().unwrap();
            let (mut codes, mut scales) = (vec![0; weights.len()], Vec::new());
            for (weights, codes) in weights.chunks(group).zip(codes.chunks_mut(group)) {
                let range = if wide { Codes::INT8 } else { Codes::INT4 };
                scales.push(integers(weights, range, quantizer, codes).to_f32());
            }
            let values = codes.iter().map(|code| f32::from(*code)).collect();
            let with_integers = matches!(format, WeightFormat::Int8A8 | WeightFormat::Int4A8);
            Quantized { values, span: group, scales: Some(scales), integers: with_integers.then_some(codes) }
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

//! What the kernels' tests share: teams on every path of this CPU, numbers from a seed, tensors to and from the host.

use burn::backend::Flex;
use burn::tensor::{Tensor, TensorData};
use half::{bf16, f16};
use specquant_core::WeightFormat;

use crate::packed::PackedMatrix;
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

/// The elements of a matrix, widened, `[outputs, inputs]`.
pub(crate) fn unpacked(w: &PackedMatrix) -> Vec<f32> {
    fn read<E: Element>(w: &PackedMatrix) -> Vec<f32> {
        let (inputs, panel) = (w.inputs(), w.panel());
        let at = |row: usize, k: usize| (row / panel * inputs + k) * panel + row % panel;
        let places = (0..w.outputs()).flat_map(|row| (0..inputs).map(move |k| at(row, k)));
        // SAFETY: `row` and `k` lie within the matrix, and `E` is its element type.
        places.map(|at| unsafe { (*w.elements::<E>().add(at)).widen() }).collect()
    }
    match w.format() {
        WeightFormat::F32 => read::<f32>(w),
        WeightFormat::F16 => read::<f16>(w),
        WeightFormat::Bf16 => read::<bf16>(w),
    }
}

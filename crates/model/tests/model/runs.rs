//! Loading a model and running one sequence through it, as the other tests need it.

use specquant_core::{Batch, KvDtype, Model, Quantizer, Run, Score, Scores, WeightFormat};
use specquant_kernels::{Isa, Team};
use specquant_model::{LoadOptions, ModelFiles, load};

pub(crate) const SLOTS: usize = 1024;

/// A model on the fastest path of this machine.
pub(crate) fn loaded(files: &ModelFiles, weights: WeightFormat, kv_dtype: KvDtype, threads: usize) -> Box<dyn Model> {
    let team = Team::new(threads, Isa::detect()).unwrap();
    load(files, &LoadOptions { weights, quantizer: Quantizer::Mse, kv_dtype, kv_slots: SLOTS, team }).unwrap()
}

/// One step of one sequence: `tokens` at `start..`, whose keys are in the first of `slots`.
pub(crate) fn step(model: &mut dyn Model, tokens: &[u32], start: usize, slots: &[u32]) -> Vec<Vec<f32>> {
    let score = Score::Logits { rows: tokens.len() };
    let run = Run { seq: 0, tokens, start, slots: &slots[..start + tokens.len()], score };
    match model.forward(&Batch { runs: vec![run] }).unwrap().remove(0) {
        Scores::Logits(rows) => rows,
        Scores::Greedy(_) => panic!("logits were asked for"),
    }
}

/// Logits of every position, `chunk` tokens a step.
pub(crate) fn in_chunks(model: &mut dyn Model, tokens: &[u32], chunk: usize, slots: &[u32]) -> Vec<Vec<f32>> {
    let steps = tokens.chunks(chunk).enumerate();
    steps.flat_map(|(i, tokens)| step(model, tokens, i * chunk, slots)).collect()
}

/// The largest difference of two sets of rows.
pub(crate) fn max_diff(a: &[Vec<f32>], b: &[Vec<f64>]) -> f64 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().zip(b).flat_map(|(a, b)| {
        assert_eq!(a.len(), b.len());
        a.iter().zip(b)
    });
    // A NaN must not pass for agreement.
    pairs.map(|(&a, &b)| (f64::from(a) - b).abs()).fold(0.0, |max, diff| if diff <= max { max } else { diff })
}

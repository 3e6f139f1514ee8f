//! Steps of the bundled target: `cargo bench --bench model`. Prefill of a prompt, decode of one row for each sequence, and
//! verification of several rows of one sequence.
//!
//! The model is smaller than a cache, so that bytes per second are those of a cache.

use anyhow::Result;
use criterion::{Criterion, criterion_group, criterion_main};
use specquant_benches::{Bench, Work};
use specquant_core::{Batch, KvDtype, Model, Quantizer, Run, Score, WeightFormat};
use specquant_kernels::Team;
use specquant_model::{LoadOptions, bundled, load};

/// Positions of each sequence; tokens before the new ones are in the cache.
const CONTEXT: usize = 256;

/// Sequences and rows of each for one case.
type Case = (usize, usize);

fn formats() -> Vec<WeightFormat> {
    let some = ["f16", "int8-a8:g32", "int4-a8:g32"].map(|name| name.parse().expect("a format"));
    if cfg!(feature = "full-benches") { WeightFormat::ALL.to_vec() } else { some.to_vec() }
}

fn prefill(criterion: &mut Criterion) {
    group(criterion, "prefill", &[(1, 128)], &[(1, 16), (1, 128), (4, 128)]).expect("the bundled model runs");
}

fn decode(criterion: &mut Criterion) {
    group(criterion, "decode", &[(1, 1), (8, 1)], &[(1, 1), (2, 1), (8, 1), (32, 1)]).expect("the bundled model runs");
}

fn verify_rows(criterion: &mut Criterion) {
    group(criterion, "verify-rows", &[(1, 2), (1, 5), (1, 9)], &[(1, 2), (1, 3), (1, 5), (1, 9), (8, 5)])
        .expect("the bundled model runs");
}

fn group(criterion: &mut Criterion, name: &str, some: &[Case], more: &[Case]) -> Result<()> {
    let cases = if cfg!(feature = "full-benches") { more } else { some };
    let mut bench = Bench::new(criterion, name, cases.len() * formats().len())?;
    for format in formats() {
        for (sequences, rows) in cases.iter().copied() {
            let mut model = target(format, sequences * CONTEXT, &bench.team)?;
            // Of a prompt only the last row is scored.
            let (start, scored) = if name == "prefill" { (0, 1) } else { (CONTEXT - rows, rows) };
            let (info, tokens) = (model.info(), sequences * rows);
            let operations =
                tokens * info.work.row_flops as usize + sequences * scored * info.work.scored_flops as usize;
            let work = Work { bytes: info.memory.matrices as usize, operations, tokens };
            step(model.as_mut(), sequences, (0, start.max(1)), 1)?;
            bench.case(&format!("{format} {sequences} x {rows}"), work, || {
                step(model.as_mut(), sequences, (start, rows), scored).expect("a step");
            });
        }
    }
    Ok(())
}

fn target(weights: WeightFormat, kv_slots: usize, team: &Team) -> Result<Box<dyn Model>> {
    let (kv_dtype, quantizer) = (KvDtype::F16, Quantizer::Rtn);
    load(&bundled("target")?, &LoadOptions { weights, quantizer, kv_dtype, kv_slots, team: team.clone() })
}

/// Runs so many rows of each sequence from a position on, and scores the last ones.
fn step(model: &mut dyn Model, sequences: usize, (start, rows): (usize, usize), scored: usize) -> Result<()> {
    let tokens: Vec<u32> = (0..rows).map(|row| 100 + row as u32 * 7 % 1000).collect();
    let slots: Vec<u32> = (0..(sequences * CONTEXT) as u32).collect();
    let run = |seq: usize| Run {
        seq: seq as u64,
        tokens: &tokens,
        start,
        slots: &slots[seq * CONTEXT..][..start + rows],
        score: Score::Greedy { rows: scored },
    };
    model.forward(&Batch { runs: (0..sequences).map(run).collect() })?;
    Ok(())
}

criterion_group!(benches, prefill, decode, verify_rows);
criterion_main!(benches);

//! The master equivalence test: whatever the allocator, batch, speculation, weight formats of target and draft, thread
//! count and prompt chunk, the bundled target gives the same tokens and the same bits of every logit as a plain loop over one token at a
//! time.
//!
//! All pairs of axis values run by default, every combination with the feature `full-equivalence`.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use anyhow::{Result, ensure};
use specquant_core::{
    Batch, Kv, Model, ModelInfo, Quantizer, Request, Reserve, Run, Sampling, Score, Scores, SlotCopy, Text,
    WeightFormat, greedy,
};
use specquant_engine::{Arrivals, DraftModel, Engine, NoDraft, Parts, Policy, Proposer, Wall, drive};
use specquant_kernels::{Isa, Team};
use specquant_kv::allocator;
use specquant_model::{LoadOptions, Tokenizer, bundled, load};

/// Tokens generated for each prompt.
const OUTPUT: usize = 24;
/// KV slots of each model: eight sequences at their longest.
const SLOTS: usize = 8 * 320;

/// One value of each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    kv: Kv,
    batch: usize,
    depth: usize,
    weights: WeightFormat,
    draft_weights: WeightFormat,
    threads: usize,
    chunk: usize,
}

/// Indices into the axes, in the order of the fields.
type Point = [usize; 6];

const KV: [Kv; 5] = [
    Kv::Contiguous,
    Kv::Buddy { reserve: Reserve::Oracle },
    Kv::Paged { block: 16 },
    Kv::Paged { block: 1 },
    Kv::Prefix { block: 16 },
];
const BATCH: [usize; 3] = [1, 3, 8];
const DEPTH: [usize; 5] = [0, 1, 2, 4, 8];
const WEIGHTS: [WeightFormat; 12] = WeightFormat::ALL;
const THREADS: [usize; 2] = [1, 2];
const CHUNK: [usize; 4] = [1, 7, 64, 512];
const SIZES: Point = [KV.len(), BATCH.len(), DEPTH.len(), WEIGHTS.len(), THREADS.len(), CHUNK.len()];

impl Case {
    fn at([kv, batch, depth, weights, threads, chunk]: Point) -> Case {
        Case {
            kv: KV[kv],
            batch: BATCH[batch],
            depth: DEPTH[depth],
            weights: WEIGHTS[weights],
            // The target's format, and with more draft tokens one that lies further from it.
            draft_weights: WEIGHTS[(weights + 3 * depth.saturating_sub(1)) % WEIGHTS.len()],
            threads: THREADS[threads],
            chunk: CHUNK[chunk],
        }
    }
}

/// Every combination.
fn all_points() -> Vec<Point> {
    let mut points = vec![[0; 6]];
    for axis in 0..6 {
        let set = |point: Point, value| {
            let mut point = point;
            point[axis] = value;
            point
        };
        points = points.iter().flat_map(|&point| (0..SIZES[axis]).map(move |value| set(point, value))).collect();
    }
    points
}

/// Few combinations that hold every pair of values of two axes: greedily the one with the most new pairs.
fn pairwise_points() -> Vec<Point> {
    let pairs_of = |point: &Point| -> Vec<(usize, usize, usize, usize)> {
        let pairs = (0..6).flat_map(|a| (a + 1..6).map(move |b| (a, b)));
        pairs.map(|(a, b)| (a, point[a], b, point[b])).collect()
    };
    let points = all_points();
    let mut missing: std::collections::HashSet<_> = points.iter().flat_map(&pairs_of).collect();
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let new = |point: &&Point| pairs_of(point).iter().filter(|pair| missing.contains(pair)).count();
        let best = *points.iter().max_by_key(new).unwrap();
        for pair in pairs_of(&best) {
            missing.remove(&pair);
        }
        chosen.push(best);
    }
    chosen
}

/// A model that notes the bits of every row of logits that it answers, by sequence and position.
struct Recording {
    inner: Box<dyn Model>,
    rows: HashMap<(u64, usize), u64>,
    /// The mutation: flips the last bit of one logit wherever more than one row is scored.
    disturbed: bool,
}

impl Recording {
    fn new(inner: Box<dyn Model>) -> Recording {
        Recording { inner, rows: HashMap::new(), disturbed: false }
    }
}

impl Model for Recording {
    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Scores>> {
        let asked = Batch { runs: batch.runs.iter().map(with_logits).collect() };
        let mut answers = self.inner.forward(&asked)?;
        for (run, answer) in batch.runs.iter().zip(&mut answers) {
            let Scores::Logits(rows) = answer else { continue };
            if self.disturbed && rows.len() > 1 {
                rows[0][7] = f32::from_bits(rows[0][7].to_bits() ^ 1);
            }
            let first = run.start + run.tokens.len() - rows.len();
            for (i, row) in rows.iter().enumerate() {
                self.rows.insert((run.seq, first + i), bits(row));
            }
            if matches!(run.score, Score::Greedy { .. }) {
                *answer = Scores::Greedy(rows.iter().map(|row| greedy(row)).collect());
            }
        }
        Ok(answers)
    }

    fn copy_kv(&mut self, copies: &[SlotCopy]) -> Result<()> {
        self.inner.copy_kv(copies)
    }
}

/// The same run, answered by all logits.
fn with_logits<'a>(run: &Run<'a>) -> Run<'a> {
    let score = if run.score.rows() > 0 { Score::Logits { rows: run.score.rows() } } else { Score::Nothing };
    Run { score, ..run.clone() }
}

fn bits(row: &[f32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    row.iter().for_each(|logit| logit.to_bits().hash(&mut hasher));
    hasher.finish()
}

/// What a sequence must come to: its tokens, and the bits of the logits behind each of them.
#[derive(Debug, PartialEq, Eq)]
struct Expected {
    tokens: Vec<u32>,
    rows: Vec<u64>,
}

fn model(role: &str, weights: WeightFormat, threads: usize) -> Box<dyn Model> {
    let team = Team::new(threads, Isa::detect()).unwrap();
    let options =
        LoadOptions { weights, quantizer: Quantizer::Mse, kv_dtype: weights.default_kv_dtype(), kv_slots: SLOTS, team };
    load(&bundled(role).unwrap(), &options).unwrap()
}

/// Nine prompts of unequal length, so that a batch of eight is refilled.
fn prompts(text: &Tokenizer) -> Vec<Vec<u32>> {
    let prompts = specquant_workload::bundled().unwrap();
    let chosen = specquant_workload::choose(prompts, 9).unwrap();
    chosen.iter().map(|prompt| text.encode(&prompt.text).unwrap()).collect()
}

/// The plain loop: one sequence, one token at a time, one thread, slots in order.
fn reference(weights: WeightFormat, prompts: &[Vec<u32>]) -> Vec<Expected> {
    let mut model = model("target", weights, 1);
    let slots: Vec<u32> = (0..SLOTS as u32).collect();
    let mut outputs = Vec::new();
    for prompt in prompts {
        let (mut tokens, mut rows) = (prompt.clone(), Vec::new());
        for at in 0..prompt.len() + OUTPUT - 1 {
            let score = if at + 1 < prompt.len() { Score::Nothing } else { Score::Logits { rows: 1 } };
            let run = Run { seq: 0, tokens: &tokens[at..=at], start: at, slots: &slots[..=at], score };
            let answer = model.forward(&Batch { runs: vec![run] }).unwrap();
            if let Scores::Logits(logits) = &answer[0] {
                rows.push(bits(&logits[0]));
                tokens.push(greedy(&logits[0]).id);
            }
        }
        outputs.push(Expected { tokens: tokens.split_off(prompt.len()), rows });
    }
    outputs
}

/// Runs the prompts through the engine and says where it differs from the reference, if it does.
fn check(case: Case, disturbed: bool, text: &Tokenizer, prompts: &[Vec<u32>], expected: &[Expected]) -> Result<()> {
    let mut target = Recording { disturbed, ..Recording::new(model("target", case.weights, case.threads)) };
    let mut draft = model("draft", case.draft_weights, case.threads);
    let proposer: Box<dyn Proposer + '_> = match case.depth {
        0 => Box::new(NoDraft),
        _ => Box::new(DraftModel::new(&mut *draft, allocator(case.kv, SLOTS))),
    };
    let (kv, clock) = (allocator(case.kv, SLOTS), Wall::start());
    let parts = Parts { target: &mut target, kv, proposer, text, clock: &clock };
    let policy = Policy { limit: case.batch, wait: None, chunk: case.chunk, depth: case.depth };
    let requests = (0..).zip(prompts).map(|(id, prompt)| Request {
        id,
        arrival: 0,
        prompt: prompt.clone(),
        max_new_tokens: OUTPUT,
        ignore_eos: true,
        stop: Vec::new(),
        sampling: Sampling::GREEDY,
        seed: 0,
    });
    let outputs = drive(&mut Engine::new(parts, policy), requests.collect(), Arrivals::Scheduled, &|| false)?.unwrap();
    ensure!(outputs.len() == prompts.len(), "{} outputs", outputs.len());
    for (i, (output, expected)) in outputs.iter().zip(expected).enumerate() {
        ensure!(output.tokens == expected.tokens, "tokens of request {i}");
        // The row that predicts output token j stands at the position before it.
        let rows = (0..OUTPUT).map(|j| target.rows[&(i as u64, prompts[i].len() - 1 + j)]);
        let differs = rows.zip(&expected.rows).position(|(got, expected)| got != *expected);
        ensure!(differs.is_none(), "logit bits of request {i} at output token {differs:?}");
    }
    Ok(())
}

#[test]
fn every_way_of_running_gives_the_bits_of_the_plain_loop() {
    let text = bundled("target").unwrap().tokenizer().unwrap();
    let prompts = prompts(&text);
    let expected = WEIGHTS.map(|weights| reference(weights, &prompts));
    let points = if cfg!(feature = "full-equivalence") { all_points() } else { pairwise_points() };
    println!("{} of {} combinations on {}", points.len(), all_points().len(), Isa::detect());
    for point in points {
        let case = Case::at(point);
        check(case, false, &text, &prompts, &expected[point[3]]).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
    // One flipped bit in a verified row, and the test must see it.
    let case = Case::at([1, 1, 3, 1, 1, 3]);
    let error = check(case, true, &text, &prompts, &expected[1]).unwrap_err().to_string();
    assert!(error.contains("logit bits"), "{error}");
}

#[test]
fn the_chosen_points_hold_every_pair() {
    let chosen = pairwise_points();
    for (a, b) in (0..6).flat_map(|a| (a + 1..6).map(move |b| (a, b))) {
        for (x, y) in (0..SIZES[a]).flat_map(|x| (0..SIZES[b]).map(move |y| (x, y))) {
            assert!(chosen.iter().any(|point| point[a] == x && point[b] == y), "{a}={x}, {b}={y}");
        }
    }
    assert!(chosen.len() < 80, "{}", chosen.len());
}

//! What a session found, as it is stored: every measurement, both commands, and what decides about their speed.
//!
//! Ratios are ours / theirs of the same turn; above 1 ours is faster.

use serde::Serialize;
use specquant_machine::{Conditions, Machine};
use specquant_metrics::Paired;

use super::files::GgufFile;
use super::ours::Ours;
use super::pair::{Pair, Work};
use super::theirs::{TheirSample, Theirs};

/// A session.
#[derive(Debug, Serialize)]
pub(crate) struct Record {
    /// The model's folder.
    pub(crate) model: String,
    /// Where it was measured.
    pub(crate) machine: Machine,
    /// Vector instructions that the processor has.
    pub(crate) simd: Vec<String>,
    /// Load average of the minute before.
    pub(crate) load_before: Option<f64>,
    /// What the machine was doing meanwhile.
    pub(crate) conditions: Conditions,
    /// Threads of each side.
    pub(crate) threads: usize,
    /// Measurements of each side.
    pub(crate) turns: usize,
    /// Our program.
    pub(crate) ours: Ours,
    /// llama.cpp's.
    pub(crate) theirs: Theirs,
    /// The GGUF files, in the order of the pairs.
    pub(crate) files: Vec<GgufFile>,
    /// One for each pair and work.
    pub(crate) rows: Vec<Row>,
}

/// A pair at one work.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    /// The formats.
    pub(crate) pair: Pair,
    /// What was timed.
    pub(crate) work: Work,
    /// Ours / theirs over turns.
    pub(crate) ratio: Paired,
    /// Tokens per second of each turn.
    pub(crate) ours_tok_s: Vec<f64>,
    /// Tokens per second of each turn.
    pub(crate) theirs_tok_s: Vec<f64>,
    /// Tokens per second without and with flash attention, before the turns; the faster setting took part.
    pub(crate) their_probe_tok_s: [f64; 2],
    /// The command that was run in each turn.
    pub(crate) our_command: String,
    /// The command that was run in each turn.
    pub(crate) their_command: String,
    /// Such as `cpu avx2, 2 threads`.
    pub(crate) our_device: String,
    /// Type of keys and values.
    pub(crate) our_kv: String,
    /// What llama-bench said of itself in the last turn.
    pub(crate) their_sample: TheirSample,
}

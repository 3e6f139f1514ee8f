//! What a model is told: new tokens of some sequences, where their keys and values go, and which rows to score.
//!
//! Prefill, chunked prefill, decode, draft and verification are all this one thing; a model cannot tell them apart.

/// Names a sequence for as long as it lives; the engine counts up and never reuses one.
pub type SeqId = u64;

/// One sequence's share of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// The sequence that the tokens continue.
    pub seq: SeqId,
    /// The new tokens, at positions `start..start + tokens.len()`; never empty.
    pub tokens: &'a [u32],
    /// Position of the first new token; the positions before it are in the KV cache.
    pub start: usize,
    /// The KV slot of every position `0..start + tokens.len()`.
    pub slots: &'a [u32],
    /// What the model answers for these tokens.
    pub score: Score,
}

/// Which of a run's rows the model scores, and how it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Score {
    /// No row: the tokens only enter the KV cache.
    Nothing,
    /// The last `rows` rows, each answered by its highest logit.
    Greedy {
        /// Rows counted from the run's end, `1..=tokens.len()`.
        rows: usize,
    },
    /// The last `rows` rows, each answered by all its logits.
    Logits {
        /// Rows counted from the run's end, `1..=tokens.len()`.
        rows: usize,
    },
}

/// One step: at most one run for each sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch<'a> {
    /// The runs, in the order in which the answers come back.
    pub runs: Vec<Run<'a>>,
}

/// Copies the keys and values of one slot to another, in every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCopy {
    /// Read from here.
    pub from: u32,
    /// Written to here.
    pub to: u32,
}

impl Score {
    /// How many rows are scored.
    pub fn rows(self) -> usize {
        match self {
            Score::Nothing => 0,
            Score::Greedy { rows } | Score::Logits { rows } => rows,
        }
    }
}

impl Batch<'_> {
    /// New tokens of all runs.
    pub fn tokens(&self) -> usize {
        self.runs.iter().map(|run| run.tokens.len()).sum()
    }
}

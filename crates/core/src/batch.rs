//! What a model is told: new tokens of some sequences, where their keys and values go, and which rows to score.
//!
//! Prefill, chunked prefill, decode, draft and verification are all this one thing; a model cannot tell them apart.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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

/// How far the rows of a step reach. With the rows themselves it says how much work a forward is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Reach {
    /// Keys that a row attends to, its own among them, summed over rows.
    pub keys: usize,
    /// Tokens whose keys and values are read, summed over sequences. Rows of one sequence share them.
    pub context: usize,
    /// Rows that are scored.
    pub scored: usize,
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

    /// How far the rows of all runs reach.
    pub fn reach(&self) -> Reach {
        let mut reach = Reach::default();
        for run in &self.runs {
            let (new, end) = (run.tokens.len(), run.start + run.tokens.len());
            // The row at position p attends to p + 1 keys.
            reach.keys += new * run.start + new * (new + 1) / 2;
            reach.context += end;
            reach.scored += run.score.rows();
        }
        reach
    }
}

impl Reach {
    /// Adds the reach of another step.
    pub fn merge(&mut self, other: &Reach) {
        self.keys += other.keys;
        self.context += other.context;
        self.scored += other.scored;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs are (start, tokens, scored rows).
    fn check(runs: &[(usize, usize, usize)], expected: Reach) {
        let (tokens, slots) = ([0; 64], [0; 64]);
        let run = |&(start, n, rows): &(usize, usize, usize)| {
            let score = if rows == 0 { Score::Nothing } else { Score::Greedy { rows } };
            Run { seq: 0, tokens: &tokens[..n], start, slots: &slots[..start + n], score }
        };
        let batch = Batch { runs: runs.iter().map(run).collect() };
        assert_eq!(batch.reach(), expected, "{runs:?}");
        // Row by row, as a model lays them out.
        let keys =
            |run: &Run<'_>| (run.start..run.start + run.tokens.len()).map(|position| position + 1).sum::<usize>();
        assert_eq!(batch.runs.iter().map(keys).sum::<usize>(), expected.keys);
    }

    #[test]
    fn rows_reach_back_to_the_first_token_of_their_own_sequence() {
        check(&[], Reach::default());
        // A prompt of 4, then a chunk of 3 after it: 1 + 2 + 3 + 4 and 5 + 6 + 7.
        check(&[(0, 4, 0)], Reach { keys: 10, context: 4, scored: 0 });
        check(&[(4, 3, 1)], Reach { keys: 18, context: 7, scored: 1 });
        // A decode row beside a verification of two draft tokens: 10, and 21 + 22 + 23.
        check(&[(9, 1, 1), (20, 3, 3)], Reach { keys: 76, context: 33, scored: 4 });
    }
}

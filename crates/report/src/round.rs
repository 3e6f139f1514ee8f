//! What a run writes down as it goes: one line for what it is, one for each round that ended, one for why it ended.
//!
//! These lines are the only thing that is measured; the record and every table are derived from them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use specquant_machine::Conditions;
use specquant_metrics::Pass;

use crate::run::Run;

/// One line of `rounds.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// What is run. The first line.
    Run(Box<Run>),
    /// A round that ended.
    Round(Box<Round>),
    /// The run went on after it had been cut off; rounds that follow were measured from this time on, UTC.
    Resumed(String),
    /// Why there is no further round. A log without it was cut off.
    Ended(Ended),
}

/// A run as it was written down.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// What was run.
    pub run: Run,
    /// The rounds that ended.
    pub rounds: Vec<Round>,
    /// Times, UTC, at which it was taken up again.
    pub resumed: Vec<String>,
    /// Why it ended; `None` while it runs or if it was cut off.
    pub ended: Option<Ended>,
    /// What of the rounds cannot have been measured, if they were read all the same.
    pub invalid: Vec<String>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It made as many rounds as were asked for.
    Rounds,
    /// Every interval was as narrow as asked for.
    Precise,
    /// Another round would have overrun the time budget.
    TimeBudget,
    /// The user interrupted it.
    Interrupted,
}

/// One pass of every arm over the same prompts and seeds: the unit in which arms are compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Counted from 1.
    pub number: usize,
    /// For each part of the requests the arms in the order in which they ran.
    pub order: Vec<Vec<usize>>,
    /// What the machine was doing meanwhile.
    pub conditions: Conditions,
    /// One pass for each arm: the cells, then the control once more.
    pub passes: Vec<ArmPass>,
}

/// One arm's part of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmPass {
    /// What happened.
    pub pass: Pass,
    /// What came out, for each request that finished.
    pub digests: Vec<Digest>,
    /// Whether it was right.
    pub check: Check,
}

/// One request's output in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Number of the request.
    pub request: u64,
    /// Tokens of output.
    pub tokens: usize,
    /// Hash over token ids and, for greedy decoding, the bits of their logits; hexadecimal.
    pub digest: String,
}

/// Whether an arm's output is what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "check", rename_all = "snake_case")]
pub enum Check {
    /// It is what others are compared with.
    Reference,
    /// Tokens and logit bits equal the reference's: for a speculative arm its control in the same round, for a plain
    /// arm its own first round.
    SameBits,
    /// Tokens are sampled, so a speculative arm's output is another draw from the same distribution. It equals the
    /// arm's own first round.
    Sampled,
    /// It differs from the reference, first at this token of this request.
    Differs {
        /// The first request that differs.
        request: u64,
        /// Its first output token that differs in id or, where ids agree throughout, 0.
        token: usize,
    },
}

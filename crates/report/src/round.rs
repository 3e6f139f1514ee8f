//! One pass of every arm over the same prompts and seeds: the unit in which arms are compared.

use serde::{Deserialize, Serialize};
use specquant_metrics::Pass;

/// What one round measured. Stored as one line of JSON as soon as it has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Counted from 1.
    pub number: usize,
    /// Arms in the order in which they ran.
    pub order: Vec<usize>,
    /// One pass for each arm, in the order of the arms.
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

//! What a proposer offers for one sequence, and what verification makes of it.

use specquant_core::Dist;

/// Draft tokens that continue a sequence, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    /// The proposed tokens; none is a draft too.
    pub tokens: Vec<u32>,
    /// For each token the distribution that it was drawn from: the very value, never one computed again.
    pub dists: Vec<Dist>,
}

/// How much of a draft is right, and what comes after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The first tokens of the draft, this many, stand.
    pub accepted: usize,
    /// The token after them: the replacement of a rejected one, or the bonus after a draft that stood whole.
    pub next: u32,
    /// Draft tokens that were tried: the accepted ones and at most one that was rejected.
    pub evaluated: usize,
}

impl Verdict {
    /// Whether a draft token was rejected.
    pub fn rejected(&self) -> bool {
        self.evaluated > self.accepted
    }
}

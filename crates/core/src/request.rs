//! One request: a prompt, how to continue it, and when to stop.

use crate::dist::Sampling;

/// A prompt to be continued. Its `id` numbers it within a run and selects its random numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// Number within the run.
    pub id: u64,
    /// When it arrives, in nanoseconds from the start of the run.
    pub arrival: u64,
    /// Token ids of the prompt; never empty.
    pub prompt: Vec<u32>,
    /// The most tokens to generate, at least 1.
    pub max_new_tokens: usize,
    /// Whether an end-of-text token is a token like any other.
    pub ignore_eos: bool,
    /// Texts that end the output; the output is cut before them.
    pub stop: Vec<String>,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// Seed of this request's random numbers.
    pub seed: u64,
}

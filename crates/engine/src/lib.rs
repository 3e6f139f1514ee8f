//! Requests in, tokens and events out: one loop for plain and speculative decoding, prefill and verification.
//!
//! A step proposes 0..k draft tokens for each sequence, runs one target forward, verifies, and keeps what was right.
//! Plain decoding is the same step with an empty draft.

mod admission;
mod clock;
mod draft;
mod draft_model;
mod drive;
mod engine;
#[cfg(test)]
mod fake;
mod proposer;
mod quality;
mod sequence;
mod sweep;
#[cfg(test)]
mod tests;
mod verify;

pub use clock::{Virtual, Wall};
pub use draft::{Draft, Verdict};
pub use draft_model::DraftModel;
pub use drive::{Arrivals, drive};
pub use engine::{Engine, Parts, Policy};
pub use proposer::{Ask, NoDraft, Proposer};
pub use quality::{Chunk, Chunks, finite, perplexity, study};
pub use sequence::{Output, Sequence};
pub use sweep::Sweep;
pub use verify::{accept_probability, residual, verify};

//! Where drafts come from.

use anyhow::Result;
use specquant_core::{Model, Rng, Sampling, SeqId};
use specquant_kv::{Full, Usage};

use crate::{Draft, Sequence};

/// Offers draft tokens. It can slow a request down but never change it, and fails it only where a draft cannot be measured at
/// all, as with broken weights.
pub trait Proposer {
    /// Starts a sequence. On `Full` there is no room for it yet; it runs without drafts and may be opened later.
    fn open(&mut self, seq: &Sequence) -> Result<(), Full>;

    /// One draft for each question, in order; an empty one where none can be made.
    fn propose(&mut self, target: &mut dyn Model, asks: &[Ask<'_>]) -> Result<Vec<Draft>>;

    /// Notes what became of the last draft: `seq` holds the tokens that stand.
    fn keep(&mut self, seq: &Sequence);

    /// The slots of its own KV cache; none where it has no cache.
    fn usage(&self) -> Usage {
        Usage::default()
    }

    /// Ends a sequence.
    fn close(&mut self, seq: SeqId);
}

/// A question for draft tokens.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// All its tokens up to the place where the draft begins.
    pub tokens: &'a [u32],
    /// The most draft tokens that are of use; 0 only takes the tokens in.
    pub max: usize,
    /// How draft tokens are drawn.
    pub sampling: Sampling,
    /// The request's random numbers.
    pub rng: Rng,
}

/// No drafts: plain decoding.
pub struct NoDraft;

impl Proposer for NoDraft {
    fn open(&mut self, _: &Sequence) -> Result<(), Full> {
        Ok(())
    }

    fn propose(&mut self, _: &mut dyn Model, asks: &[Ask<'_>]) -> Result<Vec<Draft>> {
        Ok(vec![Draft::default(); asks.len()])
    }

    fn keep(&mut self, _: &Sequence) {}

    fn close(&mut self, _: SeqId) {}
}

//! The only mutable state of a request: its tokens, its slots, and how much of it the target's cache holds.
//!
//! Between steps `computed < tokens.len()` and `slots.len() == computed`: the newest token has not been run.

use anyhow::Result;
use specquant_core::{Decoder, Reason, Request, Rng, SeqId, Text};
use specquant_kv::Limit;

/// A request that is waiting or running.
pub struct Sequence {
    /// Its name in batches and allocators.
    pub id: SeqId,
    /// What was asked.
    pub request: Request,
    /// Prompt and output.
    pub tokens: Vec<u32>,
    /// The first tokens, this many, are in the target's KV cache.
    pub computed: usize,
    /// The slot of each computed token.
    pub slots: Vec<u32>,
    /// Slots that it was last seen to hold.
    pub(crate) holds: usize,
    /// The most tokens that `tokens` may come to hold.
    longest: usize,
    /// Whether the proposer has opened it.
    pub(crate) drafted: bool,
    decoder: Decoder,
    text: String,
    digest: u64,
}

/// A finished request.
#[derive(Clone, Debug, PartialEq)]
pub struct Output {
    /// Number of the request.
    pub request: u64,
    /// The generated tokens, an end-of-text token included.
    pub tokens: Vec<u32>,
    /// Their text, without a stop string and what follows it.
    pub text: String,
    /// Why it ended.
    pub reason: Reason,
    /// A hash over each token's id and, where the target answered greedily, the bits of its logit.
    pub digest: u64,
}

impl Sequence {
    /// A sequence at the start of its request, in a model with this many positions.
    pub fn new(id: SeqId, request: Request, context: usize) -> Sequence {
        let tokens = request.prompt.clone();
        let longest = context.min(tokens.len() + request.max_new_tokens);
        let decoder = Decoder::new(&request.stop);
        let (computed, slots, holds, drafted, text) = (0, Vec::new(), 0, false, String::new());
        // The offset basis of FNV-1a.
        let digest = 0xcbf2_9ce4_8422_2325;
        Sequence { id, request, tokens, computed, slots, holds, longest, drafted, decoder, text, digest }
    }

    /// Tokens that have been generated.
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.request.prompt.len()..]
    }

    /// Tokens that may still be generated.
    pub fn remaining(&self) -> usize {
        self.longest - self.tokens.len()
    }

    /// Slots at its longest: the last token ends it and is never run.
    pub(crate) fn most_slots(&self) -> usize {
        self.longest.saturating_sub(1)
    }

    /// What an allocator may know of its length.
    pub(crate) fn limit(&self) -> Limit {
        let Request { ignore_eos, stop, .. } = &self.request;
        let max_len = self.most_slots();
        Limit { max_len, oracle_len: (*ignore_eos && stop.is_empty()).then_some(max_len) }
    }

    /// The request's random numbers.
    pub fn rng(&self) -> Rng {
        Rng { seed: self.request.seed, request: self.request.id }
    }

    /// Appends one generated token; `logit` is its logit where it is known. Returns why the sequence ends with it.
    pub(crate) fn push(&mut self, id: u32, logit: f32, eos: &[u32], text: &dyn Text) -> Result<Option<Reason>> {
        self.tokens.push(id);
        self.hash(id);
        self.hash(logit.to_bits());
        if eos.contains(&id) && !self.request.ignore_eos {
            return Ok(Some(Reason::Eos));
        }
        let decoded = self.decoder.push(text, id)?;
        self.text.push_str(&decoded.text);
        Ok(if decoded.stopped {
            Some(Reason::Stop)
        } else if self.generated().len() == self.request.max_new_tokens {
            Some(Reason::Length)
        } else if self.remaining() == 0 {
            Some(Reason::Context)
        } else {
            None
        })
    }

    /// Forgets what the cache held, so that everything is computed again.
    pub(crate) fn reset(&mut self) {
        self.computed = 0;
        self.slots.clear();
        self.holds = 0;
        self.drafted = false;
    }

    /// The finished request. Its text is taken out of it.
    pub(crate) fn finish(&mut self, reason: Reason) -> Output {
        let mut text = std::mem::take(&mut self.text);
        if reason != Reason::Stop {
            text.push_str(&self.decoder.finish());
        }
        Output { request: self.request.id, tokens: self.generated().to_vec(), text, reason, digest: self.digest }
    }

    /// One step of FNV-1a over four bytes.
    fn hash(&mut self, word: u32) {
        for byte in word.to_le_bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

//! Drafts from a smaller model with a KV cache of its own.
//!
//! The cache holds tokens of the sequence only, never a rejected one: `cached` of them, which may lag behind the
//! target by the last accepted token, because a draft token that ends a draft is never run.
//!
//! The vocabularies may be padded to different sizes. An id that the target does not have is never drafted, and a sequence with
//! an id that the draft model does not have gets no drafts from then on; the target's ids are all reached.

use std::collections::HashMap;

use anyhow::{Context, Result};
use specquant_core::{Batch, Model, ModelInfo, Run, Score, Scores, SeqId, SlotCopy, Use};
use specquant_kv::{Allocator, Full, Grant, Keep, Limit, Usage};

use crate::quality::overflow;
use crate::{Ask, Draft, Proposer, Sequence};

/// Proposes what a draft model generates.
pub struct DraftModel<'a> {
    model: &'a mut dyn Model,
    kv: Box<dyn Allocator>,
    states: HashMap<SeqId, State>,
    /// To be run before the next forward, which may write the slots that they read.
    copies: Vec<SlotCopy>,
}

/// What the draft cache holds of one sequence.
struct State {
    cached: usize,
    committed: usize,
    slots: Vec<u32>,
}

/// A draft in the making.
struct Making<'a> {
    /// Index of the question.
    ask: usize,
    seq: SeqId,
    /// Tokens to run next.
    feed: Vec<u32>,
    /// Draft tokens still wanted after the next run.
    wanted: usize,
    question: &'a Ask<'a>,
}

impl<'a> DraftModel<'a> {
    /// Drafts from `model`, whose KV cache `kv` hands out.
    pub fn new(model: &'a mut dyn Model, kv: Box<dyn Allocator>) -> DraftModel<'a> {
        DraftModel { model, kv, states: HashMap::new(), copies: Vec::new() }
    }

    /// Grants slots for a question. `None` if nothing is to be run, or cannot be because no room or context is left or the
    /// draft model does not know a token.
    fn begin<'q>(&mut self, index: usize, ask: &'q Ask<'q>) -> Option<Making<'q>> {
        let ModelInfo { context, vocab, .. } = *self.model.info();
        let state = self.states.get_mut(&ask.seq)?;
        let feed = ask.tokens.get(state.cached..).filter(|feed| !feed.is_empty())?;
        if feed.iter().any(|&id| id as usize >= vocab) {
            return None;
        }
        // The last draft token is never run, so it needs neither a position nor a slot.
        let wanted = ask.max.min((context + 1).checked_sub(ask.tokens.len())?);
        let positions = ask.tokens.len() + wanted.saturating_sub(1);
        if positions > context || (ask.max > 0 && wanted == 0) {
            return None;
        }
        let grant = self.kv.extend(ask.seq, positions - state.cached).ok()?;
        state.slots.extend(grant.slots);
        self.copies.extend(grant.copies);
        Some(Making { ask: index, seq: ask.seq, feed: feed.to_vec(), wanted, question: ask })
    }

    /// Runs the tokens at hand of every draft in the making and returns the answers, over ids below `vocab` only.
    fn run(&mut self, makings: &[Making<'_>], vocab: usize) -> Result<Vec<Scores>> {
        let wider = self.model.info().vocab > vocab;
        let runs = makings.iter().map(|making| {
            let state = &self.states[&making.seq];
            let score = match (making.wanted, making.question.sampling.is_greedy()) {
                (0, _) => Score::Nothing,
                (_, true) if !wider => Score::Greedy { rows: 1 },
                _ => Score::Logits { rows: 1 },
            };
            let end = state.cached + making.feed.len();
            Run { seq: making.seq, tokens: &making.feed, start: state.cached, slots: &state.slots[..end], score }
        });
        if !self.copies.is_empty() {
            self.model.copy_kv(&std::mem::take(&mut self.copies))?;
        }
        let mut scores = self.model.forward(&Batch { runs: runs.collect() })?;
        for scores in scores.iter_mut().filter(|_| wider) {
            if let Scores::Logits(rows) = scores {
                rows.iter_mut().for_each(|row| row.truncate(vocab));
            }
        }
        for making in makings {
            if let Some(state) = self.states.get_mut(&making.seq) {
                state.cached += making.feed.len();
            }
        }
        Ok(scores)
    }
}

/// Draws the next draft token of `making` from its scores, where these are of tokens.
///
/// # Errors
/// When the scores are not finite: such a draft would only look like a bad one.
fn draw(making: &mut Making<'_>, draft: &mut Draft, scores: &Scores, model: &ModelInfo) -> Result<()> {
    let ask = making.question;
    let position = ask.tokens.len() + draft.tokens.len();
    let dists = scores.dists(&ask.sampling).with_context(|| {
        format!(
            "{} in {}: the draft's logits are not finite at position {position}: {}",
            model.name,
            model.weights,
            overflow(model)
        )
    })?;
    let Some(dist) = dists.into_iter().next() else { return Ok(()) };
    let token = dist.sample(ask.rng.uniform(position, Use::Draft));
    draft.tokens.push(token);
    draft.dists.push(dist);
    making.feed = vec![token];
    making.wanted -= 1;
    Ok(())
}

impl Proposer for DraftModel<'_> {
    fn open(&mut self, seq: &Sequence) -> Result<(), Full> {
        let context = self.model.info().context;
        if seq.tokens.len() > context {
            return Err(Full);
        }
        let Limit { max_len, oracle_len } = seq.limit();
        let limit = Limit { max_len: max_len.min(context), oracle_len: oracle_len.map(|len| len.min(context)) };
        let Grant { slots, copies } = self.kv.open(seq.id, &seq.tokens, limit)?;
        self.copies.extend(copies);
        self.states.insert(seq.id, State { cached: slots.len(), committed: slots.len(), slots });
        Ok(())
    }

    fn propose(&mut self, target: &mut dyn Model, asks: &[Ask<'_>]) -> Result<Vec<Draft>> {
        let mut drafts = vec![Draft::default(); asks.len()];
        let mut makings: Vec<_> = asks.iter().enumerate().filter_map(|(i, ask)| self.begin(i, ask)).collect();
        while !makings.is_empty() {
            let scores = self.run(&makings, target.info().vocab)?;
            for (making, scores) in makings.iter_mut().zip(&scores) {
                draw(making, &mut drafts[making.ask], scores, self.model.info())?;
            }
            makings.retain(|making| making.wanted > 0);
        }
        Ok(drafts)
    }

    fn keep(&mut self, seq: &Sequence) {
        if let Some(state) = self.states.get_mut(&seq.id) {
            // The newest token has not been run by either model, and a rejected one stands beyond it.
            // What was found in the cache may be ahead of the target, which enters the same tokens.
            state.cached = state.cached.min(seq.computed.max(state.committed));
            state.slots.truncate(state.cached);
            for moved in self.kv.commit(seq.id, &seq.tokens[state.committed..state.cached]) {
                state.slots[moved.at] = moved.slot;
            }
            state.committed = state.cached;
            self.copies.extend(self.kv.keep(seq.id, Keep::Len(state.cached)));
        }
    }

    fn usage(&self) -> Usage {
        self.kv.usage()
    }

    fn close(&mut self, seq: SeqId) {
        if self.states.remove(&seq).is_some() {
            self.kv.free(seq);
        }
    }
}

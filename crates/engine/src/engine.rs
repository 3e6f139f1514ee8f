//! The step: propose, forward, verify, keep. One batch, one target forward, whatever the sequences are doing.
//!
//! The output of a sequence depends on its own tokens, sampling and seed alone: for greedy decoding neither on the drafts
//! nor on its neighbours. A sampled one takes other random numbers of its own, under the same law, where neighbours in a
//! full pool cost it a draft.

use std::collections::VecDeque;

use anyhow::{Context, Result};
use specquant_core::{
    Batch, Clock, Dist, Event, EventKind, Held, KvUsage, Model, PhaseTimes, Reach, Reason, Rows, Run, Score, Scores,
    SeqId, SlotCopy, Text, TextSize,
};
use specquant_kv::{Allocator, Keep};

use crate::quality::overflow;
use crate::{Ask, Draft, Output, Proposer, Sequence, Verdict, verify};

/// What an engine runs on.
pub struct Parts<'a> {
    /// The model whose output is wanted.
    pub target: &'a mut dyn Model,
    /// The slots of the target's KV cache.
    pub kv: Box<dyn Allocator>,
    /// Where drafts come from.
    pub proposer: Box<dyn Proposer + 'a>,
    /// The target's tokenizer, for stop strings and output text.
    pub text: &'a dyn Text,
    /// Stamps events.
    pub clock: &'a dyn Clock,
}

/// How an engine shares its steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The most sequences that run together.
    pub limit: usize,
    /// Static batching: a batch starts when no other runs and it is full, or its first request arrived so many nanoseconds ago.
    /// `None` is continuous batching: a request may join at every step.
    pub wait: Option<u64>,
    /// The most prompt tokens of a sequence in one step.
    pub chunk: usize,
    /// Draft tokens asked for in one step.
    pub depth: usize,
}

/// Runs requests step by step.
pub struct Engine<'a> {
    pub(crate) parts: Parts<'a>,
    pub(crate) policy: Policy,
    pub(crate) waiting: VecDeque<Sequence>,
    /// In order of admission, so the last is the youngest.
    pub(crate) running: Vec<Sequence>,
    /// In static batching, those of the running batch that are finished and keep their slots.
    pub(crate) ended: Vec<Sequence>,
    pub(crate) held: Option<(u64, Held)>,
    pub(crate) next_seq: SeqId,
    /// To be run before the next forward, which may write the slots that they read.
    pub(crate) copies: Vec<SlotCopy>,
    events: Vec<Event>,
}

/// What one running sequence does in this step.
#[derive(Clone, Copy)]
struct Share {
    /// Tokens of the sequence to run.
    pending: usize,
    /// Draft tokens that are of use.
    wanted: usize,
    /// Draft tokens that there is room for.
    depth: usize,
    /// Whether its newest token is among the pending ones, so that a token comes out.
    scored: bool,
    /// Whether it enters a prompt, or a preempted sequence, into the cache.
    prefill: bool,
}

/// Splits a step's time into phases, without a gap between them.
struct Stopwatch<'a> {
    clock: &'a dyn Clock,
    last: u64,
}

impl Stopwatch<'_> {
    /// Adds the time since the last lap to `phase`.
    fn lap(&mut self, phase: &mut u64) {
        let now = self.clock.now();
        *phase += now - self.last;
        self.last = now;
    }
}

impl<'a> Engine<'a> {
    /// An engine with nothing to do.
    pub fn new(parts: Parts<'a>, policy: Policy) -> Engine<'a> {
        let (waiting, running, ended) = (VecDeque::new(), Vec::new(), Vec::new());
        let (copies, events) = (Vec::new(), Vec::new());
        Engine { parts, policy, waiting, running, ended, held: None, next_seq: 0, copies, events }
    }

    /// Whether no request is waiting or running.
    pub fn is_idle(&self) -> bool {
        self.in_flight() == 0
    }

    /// Requests that are waiting or running.
    pub fn in_flight(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// The engine's time.
    pub fn now(&self) -> u64 {
        self.parts.clock.now()
    }

    /// Lets time pass until `at`.
    pub fn wait_until(&self, at: u64) {
        self.parts.clock.wait_until(at);
    }

    /// What has happened since the last call.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Slots of the target's cache by state.
    pub fn kv_usage(&self) -> KvUsage {
        let mut usage = self.parts.kv.usage();
        for seq in &self.ended {
            let slots = self.parts.kv.holding(seq.id).slots;
            let live = usage.live.min(seq.computed);
            let reserved = usage.reserved.min(slots.saturating_sub(live));
            usage.live -= live;
            usage.reserved -= reserved;
            usage.ended += live + reserved;
        }
        usage
    }

    /// Runs one step, if a request may run, and returns the requests that it finished. After an error nothing is running or
    /// waiting.
    pub fn step(&mut self) -> Result<Vec<Output>> {
        let outcome = self.try_step();
        if let Err(error) = &outcome {
            let why = format!("{error:#}");
            self.copies.clear();
            self.end_batch();
            for seq in std::mem::take(&mut self.running).into_iter().chain(std::mem::take(&mut self.waiting)) {
                self.release(&seq);
                self.log(EventKind::Failed { request: seq.request.id, why: why.clone() });
            }
        }
        outcome
    }

    fn try_step(&mut self) -> Result<Vec<Output>> {
        let clock = self.parts.clock;
        let (mut watch, mut times) = (Stopwatch { clock, last: clock.now() }, PhaseTimes::default());
        self.admit();
        if self.running.is_empty() {
            return Ok(Vec::new());
        }
        let shares = self.grant();
        watch.lap(&mut times.other);
        let mut drafts = vec![Draft::default(); shares.len()];
        self.propose(&shares, &mut drafts, |share| share.depth == 0 && share.prefill)?;
        watch.lap(&mut times.draft_prefill);
        self.propose(&shares, &mut drafts, |share| share.depth > 0)?;
        self.note_skipped(&shares, &drafts);
        let (kv, draft_kv) = (self.kv_usage(), self.parts.proposer.usage());
        watch.lap(&mut times.draft);
        let (scores, reach) = self.forward(&shares, &drafts)?;
        watch.lap(&mut times.target);
        let dists = self.distributions(&scores)?;
        watch.lap(&mut times.sample);
        let verdicts = self.judge(&drafts, &dists);
        watch.lap(&mut times.verify);
        let reasons = self.append(&drafts, &scores, &verdicts)?;
        watch.lap(&mut times.other);
        let outputs = self.settle(&shares, reasons);
        watch.lap(&mut times.keep);
        self.log_at(watch.last, EventKind::Step { rows: rows(&shares, &drafts), reach, times, kv, draft_kv });
        Ok(outputs)
    }

    /// Decides each running sequence's share and grants its slots, drafts included.
    fn grant(&mut self) -> Vec<Share> {
        let mut shares = Vec::new();
        while shares.len() < self.running.len() {
            let at = shares.len();
            let mut share = self.share(&self.running[at]);
            let with_draft = self.parts.kv.extend(self.running[at].id, share.pending + share.depth);
            let grant = with_draft.ok().or_else(|| {
                // A draft is never worth another sequence's place.
                share.depth = 0;
                self.grant_or_preempt(at, share.pending)
            });
            if let Some(grant) = grant {
                self.running[at].slots.extend(grant.slots);
                self.copies.extend(grant.copies);
                self.note_holding(at);
                shares.push(share);
            }
        }
        shares
    }

    fn note_holding(&mut self, at: usize) {
        let seq = &mut self.running[at];
        let slots = self.parts.kv.holding(seq.id).slots;
        if seq.holds != slots {
            seq.holds = slots;
            let request = seq.request.id;
            self.log(EventKind::Holds { request, slots });
        }
    }

    fn share(&self, seq: &Sequence) -> Share {
        let left = seq.tokens.len() - seq.computed;
        let pending = left.min(self.policy.chunk);
        let prefill = seq.generated().is_empty() || left > 1;
        let wanted = if prefill { 0 } else { self.policy.depth.min(seq.remaining() - 1) };
        Share { pending, wanted, depth: wanted, scored: pending == left, prefill }
    }

    /// Fills the drafts of the sequences whose share is `chosen`.
    fn propose(&mut self, shares: &[Share], drafts: &mut [Draft], chosen: impl Fn(&Share) -> bool) -> Result<()> {
        let proposer = &mut self.parts.proposer;
        for (seq, _) in self.running.iter_mut().zip(shares).filter(|(seq, share)| !seq.drafted && chosen(share)) {
            seq.drafted = proposer.open(seq).is_ok();
        }
        let (mut asks, mut places) = (Vec::new(), Vec::new());
        for (at, (seq, share)) in self.running.iter().zip(shares).enumerate() {
            if seq.drafted && chosen(share) {
                let tokens = &seq.tokens[..seq.computed + share.pending];
                let (max, sampling, rng) = (share.depth, seq.request.sampling, seq.rng());
                asks.push(Ask { seq: seq.id, tokens, max, sampling, rng });
                places.push(at);
            }
        }
        if asks.is_empty() {
            return Ok(());
        }
        for (at, draft) in places.into_iter().zip(proposer.propose(self.parts.target, &asks)?) {
            drafts[at] = draft;
        }
        Ok(())
    }

    fn note_skipped(&mut self, shares: &[Share], drafts: &[Draft]) {
        for (at, (share, draft)) in shares.iter().zip(drafts).enumerate() {
            if share.wanted > 0 && draft.tokens.is_empty() {
                self.log(EventKind::DraftSkipped { request: self.running[at].request.id });
            }
        }
    }

    /// The target's answers, and how far the rows reach that it ran for them.
    fn forward(&mut self, shares: &[Share], drafts: &[Draft]) -> Result<(Vec<Scores>, Reach)> {
        let work = || self.running.iter().zip(shares).zip(drafts);
        let feeds: Vec<Vec<u32>> = work()
            .map(|((seq, share), draft)| [&seq.tokens[seq.computed..][..share.pending], &draft.tokens].concat())
            .collect();
        let runs = work().zip(&feeds).map(|(((seq, share), draft), tokens)| {
            let score = match (share.scored, seq.request.sampling.is_greedy()) {
                (false, _) => Score::Nothing,
                (true, true) => Score::Greedy { rows: draft.tokens.len() + 1 },
                (true, false) => Score::Logits { rows: draft.tokens.len() + 1 },
            };
            Run { seq: seq.id, tokens, start: seq.computed, slots: &seq.slots[..seq.computed + tokens.len()], score }
        });
        let batch = Batch { runs: runs.collect() };
        if !self.copies.is_empty() {
            self.parts.target.copy_kv(&std::mem::take(&mut self.copies))?;
        }
        let scores = if batch.runs.is_empty() { Vec::new() } else { self.parts.target.forward(&batch)? };
        Ok((scores, batch.reach()))
    }

    /// The target's distributions for each sequence; none for one that was not scored.
    fn distributions(&self, scores: &[Scores]) -> Result<Vec<Vec<Dist>>> {
        let of = |(seq, scores): (&Sequence, &Scores)| {
            scores.dists(&seq.request.sampling).with_context(|| {
                format!(
                    "{}: the target's logits are not finite at position {} of request {}: {}",
                    self.parts.target.info().name,
                    seq.tokens.len(),
                    seq.request.id,
                    overflow(self.parts.target.info())
                )
            })
        };
        self.running.iter().zip(scores).map(of).collect()
    }

    /// One verdict for each sequence that was scored.
    fn judge(&self, drafts: &[Draft], dists: &[Vec<Dist>]) -> Vec<Option<Verdict>> {
        let judge = |((seq, draft), dists): ((&Sequence, &Draft), &Vec<Dist>)| {
            (!dists.is_empty()).then(|| verify(draft, dists, seq.rng(), seq.tokens.len()))
        };
        self.running.iter().zip(drafts).zip(dists).map(judge).collect()
    }

    /// Appends what stands to each sequence, up to the token that ends it. Returns why sequences end.
    fn append(
        &mut self,
        drafts: &[Draft],
        scores: &[Scores],
        verdicts: &[Option<Verdict>],
    ) -> Result<Vec<Option<Reason>>> {
        let eos = &self.parts.target.info().eos;
        let (mut reasons, mut emitted) = (vec![None; verdicts.len()], Vec::new());
        for (at, verdict) in verdicts.iter().enumerate() {
            let (seq, draft, Some(verdict)) = (&mut self.running[at], &drafts[at], verdict) else { continue };
            let stands = draft.tokens[..verdict.accepted].iter().copied().chain([verdict.next]);
            let mut n = 0;
            for (row, id) in stands.enumerate() {
                reasons[at] = seq.push(id, logit(&scores[at], row), eos, self.parts.text)?;
                n += 1;
                if reasons[at].is_some() {
                    break;
                }
            }
            let (request, drafted) = (seq.request.id, draft.tokens.len());
            let (accepted, rejected) = (verdict.accepted.min(n), verdict.rejected() && n > verdict.accepted);
            emitted.push(EventKind::Tokens { request, n, drafted, accepted, rejected });
        }
        emitted.into_iter().for_each(|kind| self.log(kind));
        Ok(reasons)
    }

    /// Keeps the slots of what stands and gives back the rest; ends the sequences that have a reason to.
    fn settle(&mut self, shares: &[Share], reasons: Vec<Option<Reason>>) -> Vec<Output> {
        let (mut running, mut outputs) = (Vec::new(), Vec::new());
        for ((mut seq, share), reason) in std::mem::take(&mut self.running).into_iter().zip(shares).zip(reasons) {
            let computed = if share.scored { seq.tokens.len() - 1 } else { seq.computed + share.pending };
            for moved in self.parts.kv.commit(seq.id, &seq.tokens[seq.computed..computed]) {
                seq.slots[moved.at] = moved.slot;
            }
            self.copies.extend(self.parts.kv.keep(seq.id, Keep::Len(computed)));
            seq.computed = computed;
            seq.slots.truncate(computed);
            self.parts.proposer.keep(&seq);
            if let Some(reason) = reason {
                let (request, tokens) = (seq.request.id, seq.generated().len());
                let output = seq.finish(reason);
                let text = TextSize::of(&output.text);
                self.log(EventKind::Finished { request, reason, tokens, text });
                outputs.push(output);
                self.ended.push(seq);
                continue;
            }
            running.push(seq);
        }
        self.running = running;
        if self.policy.wait.is_none() || self.running.is_empty() {
            self.end_batch();
        }
        outputs
    }

    pub(crate) fn log(&mut self, kind: EventKind) {
        self.log_at(self.parts.clock.now(), kind);
    }

    pub(crate) fn log_at(&mut self, at: u64, kind: EventKind) {
        self.events.push(Event { at, kind });
    }
}

/// The logit of the token that a greedy row chose; 0 where tokens are sampled.
fn logit(scores: &Scores, row: usize) -> f32 {
    match scores {
        Scores::Greedy(rows) => rows[row].logit,
        Scores::Logits(_) => 0.0,
    }
}

fn rows(shares: &[Share], drafts: &[Draft]) -> Rows {
    let mut rows = Rows::default();
    for (share, draft) in shares.iter().zip(drafts) {
        *(if share.prefill { &mut rows.prefill } else { &mut rows.decode }) += share.pending;
        rows.verify += draft.tokens.len();
    }
    rows
}

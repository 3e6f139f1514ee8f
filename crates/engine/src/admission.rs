//! Who runs: first come, first served, within the batch limit and the KV pool; the youngest gives way when it is full.
//!
//! Only the head of the queue is ever admitted, so no request can be overtaken for ever.

use specquant_core::{EventKind, Held, Request};
use specquant_kv::{Full, Grant};

use crate::{Engine, Sequence};

impl Engine<'_> {
    /// Puts a request in the queue, or rejects one that could never be served.
    pub fn submit(&mut self, request: Request) {
        let (id, prompt) = (request.id, request.prompt.len());
        self.log_at(request.arrival, EventKind::Arrived { request: id, prompt });
        let context = self.parts.target.info().context;
        let seq = Sequence::new(self.next_seq, request, context);
        self.next_seq += 1;
        match self.refusal(&seq) {
            Some(why) => self.log(EventKind::Rejected { request: id, why }),
            None => self.waiting.push_back(seq),
        }
    }

    /// Withdraws a request, waiting or running. Its slots are free afterwards.
    pub fn abort(&mut self, request: u64) {
        let named = |seq: &Sequence| seq.request.id == request;
        if let Some(at) = self.waiting.iter().position(named) {
            self.waiting.remove(at);
        } else if let Some(at) = self.running.iter().position(named) {
            let seq = self.running.remove(at);
            self.release(&seq);
            if self.running.is_empty() {
                self.end_batch();
            }
        } else {
            return;
        }
        self.log(EventKind::Aborted { request });
    }

    /// Why a sequence could never run, even alone.
    fn refusal(&self, seq: &Sequence) -> Option<String> {
        let info = self.parts.target.info();
        let (prompt, most, largest) = (&seq.request.prompt, seq.most_slots(), self.parts.kv.largest());
        if prompt.is_empty() {
            Some("the prompt holds no token".into())
        } else if let Some(id) = prompt.iter().find(|&&id| id as usize >= info.vocab) {
            Some(format!("token {id} lies beyond the vocabulary of {}", info.vocab))
        } else if prompt.len() >= info.context {
            Some(format!("a prompt of {} tokens leaves no room in a context of {}", prompt.len(), info.context))
        } else if seq.request.max_new_tokens == 0 {
            Some("it asks for no token".into())
        } else if most > largest {
            Some(format!("it may need {most} KV slots and a sequence can have at most {largest}"))
        } else {
            None
        }
    }

    /// Moves requests from the queue to the running set while the batch and the pool allow.
    pub(crate) fn admit(&mut self) {
        let closed = self.closed();
        while let Some(seq) = self.waiting.front() {
            let request = seq.request.id;
            let full = (self.running.len() >= self.policy.limit).then_some(Held::BatchFull);
            let opened = match closed.or(full) {
                Some(reason) => Err(reason),
                None => self.parts.kv.open(seq.id, &seq.tokens, seq.limit()).map_err(|Full| Held::PoolFull),
            };
            match opened {
                Ok(grant) => self.enter(grant),
                Err(reason) => {
                    if self.held != Some((request, reason)) {
                        self.held = Some((request, reason));
                        self.log(EventKind::Held { request, reason });
                    }
                    return;
                }
            }
        }
    }

    /// Why nobody may join the batch now, in static batching.
    fn closed(&self) -> Option<Held> {
        self.policy.wait?;
        if !self.running.is_empty() {
            Some(Held::BatchFull)
        } else {
            self.window_end().filter(|end| self.now() < *end).map(|_| Held::WaitWindow)
        }
    }

    /// When a batch starts that waits for more requests; `None` if none waits. Until then a step does nothing unless requests
    /// arrive.
    pub fn window_end(&self) -> Option<u64> {
        let (wait, first) = (self.policy.wait?, self.waiting.front()?);
        let open = self.running.is_empty() && self.waiting.len() < self.policy.limit;
        open.then(|| first.request.arrival.saturating_add(wait))
    }

    /// Takes back what ended requests have kept.
    pub(crate) fn end_batch(&mut self) {
        std::mem::take(&mut self.ended).iter().for_each(|seq| self.release(seq));
    }

    /// Moves the head of the queue to the running set; the tokens that it was granted slots for are computed already.
    fn enter(&mut self, grant: Grant) {
        let Some(mut seq) = self.waiting.pop_front() else { return };
        self.held = None;
        self.log(EventKind::Admitted { request: seq.request.id, cached: grant.slots.len() });
        seq.computed = grant.slots.len();
        seq.slots = grant.slots;
        self.copies.extend(grant.copies);
        self.running.push(seq);
    }

    /// Grants `n` more slots to the sequence at `at`, at the cost of younger ones. `None` if it had to give way itself,
    /// because no younger one was left.
    pub(crate) fn grant_or_preempt(&mut self, at: usize, n: usize) -> Option<Grant> {
        loop {
            if let Ok(grant) = self.parts.kv.extend(self.running[at].id, n) {
                return Some(grant);
            }
            let mut youngest = self.running.pop()?;
            self.release(&youngest);
            let (request, recompute) = (youngest.request.id, youngest.computed);
            self.log(EventKind::Preempted { request, recompute });
            youngest.reset();
            self.waiting.push_front(youngest);
            if at == self.running.len() {
                return None;
            }
        }
    }

    /// Takes back everything that a sequence holds.
    pub(crate) fn release(&mut self, seq: &Sequence) {
        self.parts.kv.free(seq.id);
        self.parts.proposer.close(seq.id);
    }
}

//! Who runs: first come, first served, within the batch limit and the KV pool; the youngest gives way when it is full.
//!
//! Only the head of the queue is ever admitted, so no request can be overtaken for ever.

use specquant_core::{EventKind, Held, Request};
use specquant_kv::{Grant, Limit};

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
        } else {
            return;
        }
        self.log(EventKind::Aborted { request });
    }

    /// Why a sequence could never run, even alone.
    fn refusal(&self, seq: &Sequence) -> Option<String> {
        let info = self.parts.target.info();
        let (prompt, slots) = (&seq.request.prompt, self.parts.kv.usage().capacity);
        if prompt.is_empty() {
            Some("the prompt holds no token".into())
        } else if let Some(id) = prompt.iter().find(|&&id| id as usize >= info.vocab) {
            Some(format!("token {id} lies beyond the vocabulary of {}", info.vocab))
        } else if prompt.len() >= info.context {
            Some(format!("a prompt of {} tokens leaves no room in a context of {}", prompt.len(), info.context))
        } else if seq.request.max_new_tokens == 0 {
            Some("it asks for no token".into())
        } else if seq.most_slots() > slots {
            Some(format!("it may need {} KV slots and the pool has {slots}", seq.most_slots()))
        } else {
            None
        }
    }

    /// Moves requests from the queue to the running set while the limit and the pool allow.
    pub(crate) fn admit(&mut self) {
        while let Some(seq) = self.waiting.front() {
            let limit = Limit { max_len: seq.most_slots() };
            let held = if self.running.len() >= self.policy.limit {
                Some(Held::BatchFull)
            } else {
                self.parts.kv.open(seq.id, &seq.tokens, limit).err().map(|_| Held::PoolFull)
            };
            let request = seq.request.id;
            if let Some(reason) = held {
                if self.held != Some((request, reason)) {
                    self.held = Some((request, reason));
                    self.log(EventKind::Held { request, reason });
                }
                return;
            }
            self.held = None;
            self.log(EventKind::Admitted { request });
            self.running.extend(self.waiting.pop_front());
        }
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

//! Greedy decoding: whatever is drafted, batched or cut into chunks, the output is the target's own.
//!
//! The expected tokens come from a loop over the fake model's logits that knows neither slots nor steps.

use anyhow::Result;
use specquant_core::{EventKind, Request, SeqId, SlotCopy, greedy};
use specquant_kv::{Allocator, Full, Grant, Holding, Keep, Limit, Moved, Usage};

use super::rig::{ALLOCATORS, DRAFT, Rig, TARGET, ask, asks};
use crate::Output;
use crate::fake::{Fake, Rule};

/// The target's own tokens, one at a time from the whole history.
fn expected(rig: &Rig, request: &Request) -> Vec<u32> {
    let target = Fake::new(rig.target.clone(), rig.vocab, rig.context, 0);
    let mut tokens = request.prompt.clone();
    for _ in 0..request.max_new_tokens {
        let logits = target.logits(&tokens);
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        tokens.push(logits.iter().position(|&logit| logit == best).unwrap() as u32);
    }
    tokens.split_off(request.prompt.len())
}

/// Complains unless the outputs are the target's own, and in each respect those of plain decoding.
fn check(rig: &Rig, requests: &[Request]) -> Result<Vec<Output>, String> {
    let got = rig.run(requests).map_err(|error| format!("{error:#}"))?.outputs;
    let plain = rig.plain().run(requests).map_err(|error| format!("plain: {error:#}"))?.outputs;
    for ((request, got), plain) in requests.iter().zip(&got).zip(&plain) {
        if got.tokens != expected(rig, request) {
            return Err(format!("request {}: {:?}", request.id, got.tokens));
        }
        // The digest covers the bits of the logits as well.
        if got != plain {
            return Err(format!("{got:?} is not {plain:?}"));
        }
    }
    Ok(got)
}

#[test]
fn speculation_of_any_depth_gives_the_tokens_of_plain_decoding() {
    let drafts = [TARGET, DRAFT, Rule::Random { seed: 5, spread: 8.0 }];
    for draft in drafts {
        for kv in ALLOCATORS {
            for k in [1, 2, 4, 8] {
                for max in [1, 5, 16, 32] {
                    let rig = Rig { draft: Some(draft.clone()), kv, ..Rig::new(k) };
                    check(&rig, &asks(4, max)).unwrap_or_else(|why| panic!("{kv} k={k} max={max}: {why}"));
                }
            }
        }
    }
}

#[test]
fn vocabularies_of_different_sizes_lose_no_token_and_draft_none_that_is_not_there() {
    for (vocab, draft_vocab) in [(64, 60), (60, 64), (27, 20)] {
        for kv in ALLOCATORS {
            let rig = Rig { vocab, draft_vocab, kv, ..Rig::new(4) };
            let requests = asks(6, 40);
            let outputs = check(&rig, &requests).unwrap_or_else(|why| panic!("{vocab} {draft_vocab} {kv}: {why}"));
            let beyond =
                outputs.iter().flat_map(|output| &output.tokens).filter(|id| **id as usize >= draft_vocab).count();
            assert_eq!(beyond > 0, vocab > draft_vocab, "the target's further ids come out: {beyond}");
            let ran = rig.run(&requests).unwrap();
            assert!(ran.drafts().1 > 0 && (vocab < draft_vocab || ran.count(skipped) > 0), "{vocab} {draft_vocab}");
        }
    }
}

fn skipped(kind: &EventKind) -> bool {
    matches!(kind, EventKind::DraftSkipped { .. })
}

#[test]
fn exact_ties_go_to_the_lowest_id_with_and_without_drafts() {
    let ties = |seed| Rule::Ties { seed, levels: 3 };
    let requests = asks(4, 24);
    let tied = Fake::new(ties(1), 27, 64, 0);
    let row = greedy(&tied.logits(&requests[0].prompt));
    assert_eq!(row.logit, row.runner_up, "the first row has a tie");
    // The target itself as draft, another with the same levels, and one where all tokens tie.
    for draft in [ties(1), ties(2), Rule::Uniform] {
        for k in [1, 3] {
            check(&Rig { target: ties(1), draft: Some(draft.clone()), ..Rig::new(k) }, &requests).unwrap();
        }
    }
    let got = check(&Rig { target: Rule::Uniform, ..Rig::new(2) }, &requests).unwrap();
    assert!(got.iter().all(|output| output.tokens == [0; 24]));
}

#[test]
fn prompts_may_enter_in_chunks_of_any_size() {
    let prompt: Vec<u32> = (0..100).map(|i| i * i % 26 + 1).collect();
    let requests: Vec<Request> =
        (0..).zip([1, 6, 7, 8, 64, 65, 100]).map(|(id, len)| ask(id, &prompt[..len], 9)).collect();
    let mut outputs = Vec::new();
    for chunk in [1, 7, 64, usize::MAX] {
        for kv in ALLOCATORS {
            let mut rig = Rig { kv, ..Rig::new(3) };
            rig.policy.chunk = chunk;
            outputs.push(check(&rig, &requests).unwrap_or_else(|why| panic!("{kv} chunk={chunk}: {why}")));
        }
    }
    assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn the_target_as_its_own_draft_is_always_right() {
    let rig = Rig { draft: Some(TARGET), ..Rig::new(2) };
    let ran = rig.run(&asks(1, 10)).unwrap();
    let emissions = ran.emissions(0);
    assert_eq!(emissions[0], (1, 0, 0), "prefill gives one token without a draft");
    let origin = |&(n, _, accepted): &(usize, usize, usize)| "D".repeat(accepted) + &"T".repeat(n - accepted);
    let pattern: String = emissions[1..].iter().map(origin).collect();
    assert_eq!(&pattern[..5], "DDTDD");
    for k in [1, 4, 8] {
        let (drafted, accepted) = Rig { draft: Some(TARGET), ..Rig::new(k) }.run(&asks(5, 40)).unwrap().drafts();
        assert!(drafted > 0 && accepted == drafted, "{accepted} of {drafted}");
    }
}

#[test]
fn a_random_draft_is_nearly_always_wrong_and_harmless() {
    let rig = Rig { draft: Some(Rule::Random { seed: 5, spread: 8.0 }), ..Rig::new(4) };
    let requests = asks(8, 60);
    check(&rig, &requests).unwrap();
    let (drafted, accepted) = rig.run(&requests).unwrap().drafts();
    // By chance one first draft token in 27 is right, and four are tried in a step.
    assert!(drafted > 1000 && (accepted as f64) < 0.03 * drafted as f64, "{accepted} of {drafted}");
}

/// Which slot a broken allocator hands out a second time.
#[derive(Clone, Copy)]
enum Again {
    /// One of another sequence.
    Foreign,
    /// The sequence's own newest, as after a rollback that went one token too far.
    Own,
}

/// An allocator that hands out a slot twice.
struct Duplicating {
    inner: Box<dyn Allocator>,
    again: Again,
    granted: Vec<(SeqId, u32)>,
}

impl Duplicating {
    fn boxed(inner: Box<dyn Allocator>, again: Again) -> Box<dyn Allocator> {
        Box::new(Duplicating { inner, again, granted: Vec::new() })
    }
}

impl Allocator for Duplicating {
    fn open(&mut self, seq: SeqId, prompt: &[u32], limit: Limit) -> Result<Grant, Full> {
        self.inner.open(seq, prompt, limit)
    }

    fn extend(&mut self, seq: SeqId, n: usize) -> Result<Grant, Full> {
        let mut grant = self.inner.extend(seq, n)?;
        let wanted = |&&(of, _): &&(SeqId, u32)| (of == seq) == matches!(self.again, Again::Own);
        if let Some(&(_, slot)) = self.granted.iter().rev().find(wanted) {
            grant.slots[0] = slot;
        }
        self.granted.extend(grant.slots.iter().map(|&slot| (seq, slot)));
        Ok(grant)
    }

    fn commit(&mut self, seq: SeqId, ids: &[u32]) -> Vec<Moved> {
        self.inner.commit(seq, ids)
    }

    fn keep(&mut self, seq: SeqId, keep: Keep) -> Vec<SlotCopy> {
        self.inner.keep(seq, keep)
    }

    fn free(&mut self, seq: SeqId) {
        self.granted.retain(|&(of, _)| of != seq);
        self.inner.free(seq);
    }

    fn usage(&self) -> Usage {
        self.inner.usage()
    }

    fn largest(&self) -> usize {
        self.inner.largest()
    }

    fn holding(&self, seq: SeqId) -> Holding {
        self.inner.holding(seq)
    }
}

#[test]
fn a_slot_that_is_handed_out_twice_is_noticed() {
    for kv in ALLOCATORS {
        let foreign = Rig { wrap_kv: |kv| Duplicating::boxed(kv, Again::Foreign), kv, ..Rig::new(2) };
        assert!(check(&foreign, &asks(2, 16)).is_err(), "{kv}");
        let own = Rig { wrap_kv: |kv| Duplicating::boxed(kv, Again::Own), kv, ..Rig::new(2) };
        assert!(check(&own, &asks(1, 16)).is_err(), "{kv}");
    }
}

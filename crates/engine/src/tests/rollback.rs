//! What the two caches hold after each step, and that all slots come back.
//!
//! Draft models that are wrong at chosen positions force the number of accepted tokens of every step.

use anyhow::{Result, ensure};
use specquant_core::{Batch, Event, EventKind, Kv, Model, Request, Run, Sampling, Score, SeqId};
use specquant_kv::Full;

use super::rig::{ALLOCATORS, Machine, Rig, Shared, TARGET, Watched, ask, asks, finish, heat};
use crate::fake::{Fake, Rule};
use crate::{Ask, Draft, DraftModel, Engine, Proposer, Sequence};

const PROMPT: [u32; 5] = [3, 9, 27 - 1, 1, 4];

/// A draft model of which step after step exactly `accepted` of `k` tokens are right, after the prompt's first token.
fn scripted(accepted: &[usize], k: usize) -> Rule {
    let (mut position, mut at) = (PROMPT.len() + 1, Vec::new());
    for &a in accepted {
        if a < k {
            at.push(position + a);
        }
        position += a + 1;
    }
    Rule::Wrong { target: (11, 8.0), at }
}

/// Token and position in each slot of a cache that `tokens` have just entered in one piece.
fn fresh(tokens: &[u32]) -> Result<Vec<Option<(u32, usize)>>> {
    let mut model = Fake::new(TARGET, 27, tokens.len() + 1, tokens.len());
    let slots: Vec<u32> = (0..tokens.len() as u32).collect();
    let run = Run { seq: 0, tokens, start: 0, slots: &slots, score: Score::Nothing };
    model.forward(&Batch { runs: vec![run] })?;
    Ok(model.cache)
}

/// Complains unless a cache holds exactly `tokens` of a sequence, each at its position, and all of them are committed.
fn holds(model: &Shared, kv: &Watched, seq: SeqId, tokens: &[u32]) -> Result<()> {
    let (fake, ledger) = (model.fake(), kv.ledger());
    let slots = &ledger.slots[&seq];
    ensure!(slots.len() == tokens.len(), "{} slots for {} tokens", slots.len(), tokens.len());
    let held: Vec<_> = slots.iter().map(|&slot| fake.cache[slot as usize]).collect();
    ensure!(held == fresh(tokens)?, "{held:?} instead of {tokens:?}");
    ensure!(ledger.committed[&seq] == tokens, "committed {:?}, not {tokens:?}", ledger.committed[&seq]);
    Ok(())
}

/// Runs one request whose drafts are accepted as the script says and looks into both caches after each step.
fn check(rig: &Rig, script: &[usize]) -> Result<()> {
    let k = rig.policy.depth;
    let tokens = 1 + script.iter().map(|a| a + 1).sum::<usize>();
    // One step more than the script, so that the last scripted step is not cut short by the end.
    let request = ask(0, &PROMPT, tokens + k + 1);
    let rig = Rig { draft: Some(scripted(script, k)), context: 4096, draft_context: 4096, ..rig.clone() };
    rig.start(|engine, machine| {
        engine.submit(request);
        engine.step()?;
        caches(engine, machine, PROMPT.len())?;
        for &accepted in script {
            let before = engine.running[0].tokens.len();
            engine.step()?;
            let after = engine.running[0].tokens.len();
            ensure!(after == before + accepted + 1, "{} tokens, not {}", after - before, accepted + 1);
            // The last draft token is never run by the draft model, so an accepted one is missing there.
            caches(engine, machine, before + accepted.min(k - 1))?;
        }
        finish(engine)?;
        ensure!(machine.kv.taken() == 0 && machine.draft_kv.taken() == 0, "slots are lost");
        Ok(())
    })
}

/// Both caches of the only sequence: all tokens but the newest in the target's, `drafted` in the draft model's.
fn caches(engine: &Engine<'_>, machine: &Machine, drafted: usize) -> Result<()> {
    let seq = &engine.running[0];
    let computed = seq.tokens.len() - 1;
    ensure!(seq.computed == computed, "{} tokens are computed, not {computed}", seq.computed);
    ensure!(machine.kv.ledger().slots[&seq.id] == seq.slots, "the engine and its allocator disagree");
    holds(&machine.target, &machine.kv, seq.id, &seq.tokens[..computed])?;
    holds(&machine.draft, &machine.draft_kv, seq.id, &seq.tokens[..drafted])
}

#[test]
fn both_caches_hold_what_a_fresh_prefill_would_after_any_acceptance() {
    for k in [1, 2, 4] {
        // Every pair of neighbouring counts occurs.
        let script: Vec<usize> = (0..=k).flat_map(|a| (0..=k).flat_map(move |b| [a, b])).collect();
        for kv in ALLOCATORS {
            check(&Rig { kv, ..Rig::new(k) }, &script).unwrap_or_else(|why| panic!("{kv} k={k}: {why:#}"));
        }
    }
}

#[test]
fn the_draft_cache_does_not_drift_over_200_alternations() {
    let k = 3;
    let script: Vec<usize> = (0..200).flat_map(|_| [k, 0]).collect();
    check(&Rig::new(k), &script).unwrap();
}

#[test]
fn a_rollback_gives_blocks_back_across_a_boundary() {
    for block in [1, 16] {
        let rig = Rig { kv: Kv::Paged { block }, draft: Some(Rule::Random { seed: 5, spread: 8.0 }), ..Rig::new(8) };
        let crossed = rig.start(|engine, machine| {
            engine.submit(ask(0, &PROMPT, 60));
            finish(engine).unwrap();
            let block = block as usize;
            let crosses = |&(before, after): &(usize, usize)| before.div_ceil(block) > after.div_ceil(block);
            let count = |kv: &Watched| kv.ledger().rollbacks.iter().filter(|rollback| crosses(rollback)).count();
            (count(&machine.kv), count(&machine.draft_kv))
        });
        assert!(crossed.0 > 5 && crossed.1 > 5, "block {block}: {crossed:?}");
    }
}

/// Slots taken in both caches together.
fn taken(machine: &Machine) -> usize {
    machine.kv.taken() + machine.draft_kv.taken()
}

#[test]
fn all_slots_come_back_after_a_finish_an_abort_and_an_error() {
    for kv in ALLOCATORS {
        let mut rig = Rig { kv, ..Rig::new(4) };
        rig.policy.limit = 3;
        let requests = asks(5, 40);
        let expected = rig.run(&requests).unwrap().outputs;
        rig.start(|engine, machine| {
            requests.iter().for_each(|request| engine.submit(request.clone()));
            (0..4).for_each(|_| drop(engine.step().unwrap()));
            assert!(taken(machine) > 0 && engine.running.len() == 3 && engine.waiting.len() == 2);
            // One that runs, one that waits, one that there is not.
            [1, 4, 77].into_iter().for_each(|request| engine.abort(request));
            let outputs = finish(engine).unwrap().outputs;
            let kept = |&at: &usize| at != 1 && at != 4;
            assert!(outputs.iter().eq((0..5).filter(kept).map(|at| &expected[at])), "{kv}");
            assert_eq!(taken(machine), 0, "{kv}");
            for fails in [&machine.target, &machine.draft] {
                fails_and_recovers((engine, machine), fails, &requests);
            }
        });
    }
}

/// One model fails in the middle of a run: the engine drops everything and serves the next requests.
fn fails_and_recovers((engine, machine): (&mut Engine<'_>, &Machine), fails: &Shared, requests: &[Request]) {
    requests.iter().for_each(|request| engine.submit(request.clone()));
    fails.fake().forwards_left = 5;
    let error = finish(engine).err().unwrap();
    assert!(format!("{error:#}").contains("told to fail"), "{error:#}");
    assert!(engine.is_idle() && taken(machine) == 0);
    let failed = |event: &Event| matches!(&event.kind, EventKind::Failed { why, .. } if why.contains("told to fail"));
    assert_eq!(engine.take_events().iter().filter(|event| failed(event)).count(), requests.len());
    fails.fake().forwards_left = usize::MAX;
    requests.iter().for_each(|request| engine.submit(request.clone()));
    assert_eq!(finish(engine).unwrap().outputs.len(), requests.len());
    assert_eq!(taken(machine), 0);
}

/// Tells the draft model after each step that one token more stands than does.
struct Overlong<'a>(DraftModel<'a>);

impl Proposer for Overlong<'_> {
    fn open(&mut self, seq: &Sequence) -> Result<(), Full> {
        self.0.open(seq)
    }

    fn propose(&mut self, target: &mut dyn Model, asks: &[Ask<'_>]) -> Result<Vec<Draft>> {
        self.0.propose(target, asks)
    }

    fn keep(&mut self, seq: &Sequence) {
        let mut longer = Sequence::new(seq.id, seq.request.clone(), 4096);
        longer.tokens = seq.tokens.clone();
        longer.computed = seq.computed + 1;
        self.0.keep(&longer);
    }

    fn close(&mut self, seq: SeqId) {
        self.0.close(seq);
    }
}

#[test]
fn a_draft_cache_that_keeps_one_token_too_many_is_noticed() {
    for kv in ALLOCATORS {
        let rig = Rig { kv, wrap_draft: |draft| Box::new(Overlong(draft)), ..Rig::new(3) };
        let why = check(&rig, &[3, 0, 3, 0]).unwrap_err().to_string();
        assert!(why.contains("slots for"), "{why}");
    }
}

#[test]
fn logits_that_are_not_finite_name_their_model_however_tokens_are_picked() {
    for sampling in [Sampling::GREEDY, heat(1.0)] {
        let request = Request { sampling, ..ask(0, &PROMPT, 20) };
        // The hole is never the best token, and comes after the first draft token or the first token at all.
        let after = Rig::new(4).alone(&request).tokens[0];
        let holed = Rule::Holed { seed: 11, after };
        for (rig, expected) in [
            (
                Rig { draft: Some(holed.clone()), ..Rig::new(4) },
                "fake in f32: the draft's logits are not finite at position 6:",
            ),
            (
                Rig { target: holed.clone(), ..Rig::new(4) },
                "fake: the target's logits are not finite at position 6 of request 0:",
            ),
        ] {
            let error = rig.run(std::slice::from_ref(&request)).err().unwrap();
            assert!(format!("{error:#}").contains(expected), "{error:#}");
        }
    }
}

//! Admission, preemption and rejection: who runs when, and that nobody's output shows it.
//!
//! First come, first served; a full pool takes the youngest's place; a full draft pool only costs drafts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use specquant_core::{Event, EventKind, Held, Kv, Request};

use super::rig::{ALLOCATORS, Ran, Rig, TARGET, ask, asks, finish, heat};
use crate::Policy;

/// The ids of the events that `of` picks, in order.
fn ids(ran: &Ran, of: impl Fn(&EventKind) -> Option<u64>) -> Vec<u64> {
    ran.events.iter().filter_map(|event| of(&event.kind)).collect()
}

fn admitted(kind: &EventKind) -> Option<u64> {
    if let EventKind::Admitted { request, .. } = kind { Some(*request) } else { None }
}

fn held(ran: &Ran) -> Vec<(u64, Held)> {
    let held =
        |kind: &EventKind| if let EventKind::Held { request, reason } = *kind { Some((request, reason)) } else { None };
    ran.events.iter().filter_map(|event| held(&event.kind)).collect()
}

/// What a log says of one request.
#[derive(Clone, Copy, Default)]
struct Entry {
    tokens: usize,
    prompt: usize,
    /// Tokens at its last admission, and those of them that the cache held.
    admitted: (usize, usize),
}

impl Entry {
    /// Rows that entered it into the cache since its last admission, up to the first `computed` tokens.
    fn rows(&self, computed: usize) -> usize {
        let (tokens, cached) = self.admitted;
        // A single token that follows others of the output is a decode row.
        let decodes = tokens > self.prompt && tokens == cached + 1;
        if decodes { 0 } else { computed.min(tokens) - cached }
    }
}

/// Replays queue and running set. Complains of a preemption that did not hit the youngest, of an admission out of turn,
/// and of rows that are not counted as what they are. Returns the number of preemptions.
fn check_turns(ran: &Ran) -> usize {
    let (mut queue, mut running, mut preemptions) = (VecDeque::new(), Vec::new(), 0);
    let (mut entered, mut counted) = (0, 0);
    let mut all: BTreeMap<u64, Entry> = BTreeMap::new();
    for event in &ran.events {
        match event.kind {
            EventKind::Arrived { request, prompt } => {
                queue.push_back(request);
                all.insert(request, Entry { tokens: prompt, prompt, ..Entry::default() });
            }
            EventKind::Admitted { request, cached } => {
                assert_eq!(queue.pop_front(), Some(request), "first come, first served");
                let entry = all.get_mut(&request).unwrap();
                entry.admitted = (entry.tokens, cached);
                running.push(request);
            }
            EventKind::Preempted { request, recompute } => {
                assert_eq!(running.pop(), Some(request), "the youngest gives way");
                queue.push_front(request);
                preemptions += 1;
                entered += all[&request].rows(recompute);
            }
            EventKind::Tokens { request, n, .. } => {
                all.get_mut(&request).unwrap().tokens += n;
            }
            EventKind::Finished { request, .. } => {
                running.retain(|&id| id != request);
                entered += all[&request].rows(usize::MAX);
            }
            EventKind::Step { rows, .. } => counted += rows.prefill,
            _ => {}
        }
    }
    assert!(running.is_empty() && queue.is_empty());
    assert_eq!(counted, entered, "rows that enter a prompt or a preempted sequence");
    preemptions
}

#[test]
fn a_pool_too_small_for_all_preempts_the_youngest_and_changes_no_output() {
    let requests: Vec<Request> = asks(9, 50);
    for kv in [Kv::Paged { block: 1 }, Kv::Paged { block: 4 }, Kv::Paged { block: 16 }, Kv::Prefix { block: 4 }] {
        for k in [0, 3] {
            let mut rig = Rig { kv, slots: 112, ..Rig::new(k) };
            if k == 0 {
                rig = rig.plain();
            }
            rig.policy.limit = 4;
            let ran = rig.run(&requests).unwrap();
            assert!(check_turns(&ran) >= 3, "{kv}, k={k}");
            let outputs: Vec<_> = requests.iter().map(|request| rig.alone(request)).collect();
            assert_eq!(ran.outputs, outputs, "{kv}, k={k}");
            // In small chunks the same happens in other steps.
            rig.policy.chunk = 7;
            assert_eq!(rig.run(&requests).unwrap().outputs, outputs, "{kv}, k={k}");
        }
    }
}

#[test]
fn prompts_that_begin_alike_are_computed_once() {
    // Two blocks of four are common to all, and half of the next to the odd ones.
    let prompt = |id: u64| [&[5; 8][..], &[1 + id as u32 % 2 * 6; 2], &[9 + id as u32; 3]].concat();
    let requests: Vec<Request> = (0..6).map(|id| ask(id, &prompt(id), 9)).collect();
    for k in [0, 3] {
        let mut rig = Rig { kv: Kv::Prefix { block: 4 }, slots: 160, draft_slots: 160, ..Rig::new(k) };
        rig.policy.limit = 1;
        let ran = rig.run(&requests).unwrap();
        let cached = |event: &Event| match event.kind {
            EventKind::Admitted { cached, .. } => Some(cached),
            _ => None,
        };
        assert_eq!(ran.events.iter().filter_map(cached).collect::<Vec<_>>(), [0, 8, 10, 10, 10, 10], "k={k}");
        assert_eq!(ran.outputs, Rig { kv: Kv::Contiguous, ..rig.clone() }.run(&requests).unwrap().outputs, "k={k}");
        // Together, with prompts in pieces, and in pools that lose what they hold.
        for (limit, chunk, slots, draft_slots) in [(6, 64, 160, 160), (3, 2, 160, 160), (6, 5, 48, 64), (2, 3, 64, 32)]
        {
            let policy = Policy { limit, chunk, ..rig.policy };
            let other = Rig { policy, slots, draft_slots, ..rig.clone() };
            assert_eq!(other.run(&requests).unwrap().outputs, ran.outputs, "k={k} {limit} {chunk} {slots}");
        }
    }
}

#[test]
fn a_second_turn_finds_the_first_in_the_cache() {
    let rig = Rig { kv: Kv::Prefix { block: 4 }, ..Rig::new(3) };
    rig.start(|engine, machine| {
        engine.submit(ask(0, &[3; 9], 12));
        let mut turn = [vec![3; 9], finish(engine).unwrap().outputs.remove(0).tokens].concat();
        // The newest token was not run: 20 are in the cache, in five blocks.
        turn.extend([7, 8]);
        engine.submit(ask(1, &turn, 12));
        let ran = finish(engine).unwrap();
        assert_eq!(ran.count(|kind| *kind == EventKind::Admitted { request: 1, cached: 20 }), 1);
        assert_eq!(ran.outputs[0], rig.alone(&ask(1, &turn, 12)));
        assert_eq!(machine.kv.taken() + machine.draft_kv.taken(), 0);
    });
}

#[test]
fn a_preempted_request_is_drafted_for_again() {
    let rig = Rig { draft: Some(TARGET), kv: Kv::Paged { block: 1 }, slots: 60, ..Rig::new(3) };
    let ran = rig.run(&[ask(0, &[3; 8], 40), ask(1, &[4; 8], 40)]).unwrap();
    assert!(check_turns(&ran) > 0);
    let last =
        ran.events.iter().rposition(|event| event.kind == EventKind::Admitted { request: 1, cached: 0 }).unwrap();
    let after = Ran { outputs: Vec::new(), events: ran.events[last..].to_vec() };
    assert!(after.emissions(1).len() > 2 && after.drafts().1 > 0);
}

#[test]
fn preemption_changes_no_sampled_output_of_plain_decoding() {
    let requests: Vec<Request> = asks(6, 50).into_iter().map(|r| Request { sampling: heat(0.9), ..r }).collect();
    let rig = Rig { kv: Kv::Paged { block: 4 }, slots: 112, ..Rig::new(0) }.plain();
    let ran = rig.run(&requests).unwrap();
    assert!(check_turns(&ran) >= 3);
    assert!(requests.iter().zip(&ran.outputs).all(|(request, got)| *got == rig.alone(request)));
}

#[test]
fn requests_are_admitted_in_order_and_a_reason_to_wait_is_logged_once() {
    let mut rig = Rig::new(2);
    rig.policy.limit = 1;
    let ran = rig.run(&asks(4, 12)).unwrap();
    assert_eq!(ids(&ran, admitted), [0, 1, 2, 3]);
    assert_eq!(held(&ran), [1, 2, 3].map(|id| (id, Held::BatchFull)));
    // Each reserves 60 of 100 slots, so that only one fits at a time.
    let long = [ask(0, &[3; 11], 50), ask(1, &[4; 11], 50), ask(2, &[5; 11], 50)];
    let ran = Rig { kv: Kv::Contiguous, slots: 100, ..Rig::new(2) }.run(&long).unwrap();
    assert_eq!(ids(&ran, admitted), [0, 1, 2]);
    assert_eq!(held(&ran), [1, 2].map(|id| (id, Held::PoolFull)));
    // A small request does not overtake the one that the pool has no room for.
    let mixed = [ask(0, &[3; 11], 30), ask(1, &[4; 11], 80), ask(2, &[5; 2], 3)];
    let ran = Rig { kv: Kv::Contiguous, slots: 100, ..Rig::new(2) }.run(&mixed).unwrap();
    assert_eq!(ids(&ran, admitted), [0, 1, 2]);
    // The batch is full at first; later a place is free and the pool is what is missing.
    let rig = Rig {
        kv: Kv::Contiguous,
        slots: 100,
        policy: Policy { limit: 2, wait: None, chunk: 64, depth: 2 },
        ..Rig::new(2)
    };
    let ran = rig.run(&[ask(0, &[3; 11], 70), ask(1, &[4; 2], 6), ask(2, &[5; 11], 50)]).unwrap();
    assert_eq!(held(&ran), [(2, Held::BatchFull), (2, Held::PoolFull)]);
}

/// Steps to the end. Returns how often a request waited anew after a preemption, and complains if one waits without a
/// reason in the events, or with the same one twice.
fn check_reasons(rig: &Rig, requests: u64) -> usize {
    rig.start(|engine, _| {
        asks(requests, 50).into_iter().for_each(|request| engine.submit(request));
        let (mut noted, mut preempted, mut anew) = (BTreeMap::new(), BTreeSet::new(), 0);
        while !engine.is_idle() {
            let front = engine.waiting.front().map(|seq| seq.request.id);
            engine.step().unwrap();
            let mut moved = BTreeSet::new();
            for event in engine.take_events() {
                match event.kind {
                    EventKind::Held { request, reason } => {
                        anew += usize::from(preempted.contains(&request) && !noted.contains_key(&request));
                        assert_ne!(noted.insert(request, reason), Some(reason), "logged twice");
                    }
                    EventKind::Admitted { request, .. } => {
                        // Whoever waits behind it may give its reason again once it is at the front again.
                        noted.clear();
                        moved.insert(request);
                    }
                    EventKind::Preempted { request, .. } => {
                        noted.remove(&request);
                        preempted.insert(request);
                        moved.insert(request);
                    }
                    _ => {}
                }
            }
            let waits = front.filter(|id| !moved.contains(id));
            assert!(waits.is_none_or(|id| noted.contains_key(&id)), "{waits:?} waits without a reason");
        }
        anew
    })
}

#[test]
fn a_request_that_waits_again_after_a_preemption_says_why_again() {
    for requests in 3..=6 {
        for slots in [64, 80, 96, 112] {
            let anew = check_reasons(&Rig { kv: Kv::Paged { block: 4 }, slots, ..Rig::new(3) }, requests);
            assert!(anew > 0, "{requests} requests, {slots} slots");
        }
    }
}

#[test]
fn requests_that_can_never_run_are_rejected_with_the_reason() {
    let rig = Rig { context: 64, slots: 40, ..Rig::new(2) };
    for kv in ALLOCATORS {
        let rig = Rig { kv, ..rig.clone() };
        // A buddy block has a power of two.
        let slots = if let Kv::Buddy { .. } = kv { 32 } else { rig.start(|engine, _| engine.kv_usage().capacity) };
        let rows = [
            (ask(0, &[], 5), Some("the prompt holds no token".to_string())),
            (ask(1, &[1; 64], 1), Some("a prompt of 64 tokens leaves no room in a context of 64".into())),
            (ask(2, &[1, 27], 5), Some("token 27 lies beyond the vocabulary of 27".into())),
            (
                ask(3, &[1; 5], slots - 4 + 1),
                Some(format!("it may need {} KV slots and a sequence can have at most {slots}", slots + 1)),
            ),
            (ask(4, &[1; 5], slots - 4), None),
            (ask(5, &[1; 5], 0), Some("it asks for no token".into())),
        ];
        let requests: Vec<Request> = rows.iter().map(|row| row.0.clone()).collect();
        let ran = rig.run(&requests).unwrap();
        for (request, expected) in &rows {
            let why = ran.events.iter().find_map(|event| match &event.kind {
                EventKind::Rejected { request: id, why } if *id == request.id => Some(why),
                _ => None,
            });
            assert_eq!(why, expected.as_ref(), "{kv}");
        }
        assert_eq!(ran.outputs.iter().map(|output| output.request).collect::<Vec<_>>(), [4]);
        assert_eq!(ran.count(|kind| matches!(kind, EventKind::Arrived { .. })), rows.len());
    }
}

#[test]
fn a_full_draft_pool_skips_drafts_and_nothing_else() {
    let requests = asks(6, 30);
    let skips = |kind: &EventKind| matches!(kind, EventKind::DraftSkipped { .. });
    for kv in ALLOCATORS {
        for draft_slots in [0, 16, 48, 100] {
            let rig = Rig { draft: Some(TARGET), kv, draft_slots, ..Rig::new(3) };
            let ran = rig.run(&requests).unwrap();
            assert!(ran.count(skips) > 0, "{kv} {draft_slots}");
            assert!(draft_slots < 100 || ran.drafts().1 > 0, "{kv}: who fits is drafted for");
            assert_eq!(ran.outputs, rig.plain().run(&requests).unwrap().outputs, "{kv} {draft_slots}");
        }
    }
}

#[test]
fn equal_pools_hold_equally_many_sequences() {
    for kv in [Kv::Contiguous, Kv::Paged { block: 1 }] {
        // Each of the four takes 11 + 20 - 1 slots at most, in either cache.
        let requests: Vec<Request> = (0..4).map(|id| ask(id, &[id as u32 + 1; 11], 20)).collect();
        let rig = Rig { kv, slots: 120, draft_slots: 120, ..Rig::new(3) };
        let ran = rig.run(&requests).unwrap();
        assert_eq!(held(&ran), []);
        assert_eq!(ran.count(|kind| matches!(kind, EventKind::DraftSkipped { .. })), 0, "{kv}");
    }
}

#[test]
fn a_draft_is_never_worth_another_sequences_place() {
    // Plain decoding fits exactly; with lookahead the two need more than there is.
    let requests = [ask(0, &[3; 8], 17), ask(1, &[4; 8], 17)];
    let rig = Rig { kv: Kv::Paged { block: 1 }, slots: 48, ..Rig::new(8) };
    let ran = rig.run(&requests).unwrap();
    assert_eq!(ran.count(|kind| matches!(kind, EventKind::Preempted { .. })), 0);
    assert_eq!(ran.outputs, rig.plain().run(&requests).unwrap().outputs);
}

#[test]
fn a_withdrawn_request_is_logged_once_and_leaves_no_output() {
    Rig::new(2).start(|engine, _| {
        asks(3, 9).into_iter().for_each(|request| engine.submit(request));
        engine.step().unwrap();
        [2, 2, 55].into_iter().for_each(|id| engine.abort(id));
        let ran = finish(engine).unwrap();
        assert_eq!(ran.outputs.iter().map(|output| output.request).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(ran.count(|kind| *kind == EventKind::Aborted { request: 2 }), 1);
        assert_eq!(ran.count(|kind| matches!(kind, EventKind::Aborted { .. })), 1);
    });
}

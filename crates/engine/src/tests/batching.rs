//! Static batching: one batch after the other, an optional wait for more, and slots that are kept to the end of a batch.

use specquant_core::{Clock, EventKind, Held, Kv, Request};

use super::rig::{ALLOCATORS, Rig, ask, asks, finish};
use crate::{Arrivals, drive};

/// A machine that runs batches of up to `limit` that wait so many nanoseconds, and takes 100 for a forward.
fn batches(limit: usize, wait: u64) -> Rig {
    let mut rig = Rig { cost: (100, 10), ..Rig::new(2) };
    (rig.policy.limit, rig.policy.wait) = (limit, Some(wait));
    rig
}

/// When each of the requests that arrive at these times is admitted.
fn check(rig: &Rig, arrivals: &[u64], expected: &[u64]) {
    rig.start(|engine, _| {
        let requests: Vec<Request> =
            (0..).zip(arrivals).map(|(id, &arrival)| Request { arrival, ..ask(id, &[id as u32 + 1; 4], 3) }).collect();
        drive(engine, requests, Arrivals::Scheduled, &|| false).unwrap().unwrap();
        let events = engine.take_events();
        let admitted = events.iter().filter(|event| matches!(event.kind, EventKind::Admitted { .. }));
        assert_eq!(admitted.map(|event| event.at).collect::<Vec<_>>(), expected, "{arrivals:?}");
        let idle = |kind: &EventKind| matches!(kind, EventKind::Step { rows, .. } if rows.prefill + rows.decode == 0);
        assert!(!events.iter().any(|event| idle(&event.kind)), "waiting is no step");
    });
}

#[test]
fn a_batch_starts_when_it_is_full_or_has_waited() {
    // Each runs for a prefill of 110 and a step or two of 120.
    check(&batches(3, 1000), &[0, 100, 200], &[200, 200, 200]);
    check(&batches(3, 1000), &[0, 100], &[1000, 1000]);
    check(&batches(3, 1000), &[0, 100, 5000], &[1000, 1000, 6000]);
    check(&batches(2, 0), &[7], &[7]);
    // Whoever waited while a batch ran has waited.
    let rig = batches(2, 150);
    let end = rig.start(|engine, machine| {
        (0..2).for_each(|id| engine.submit(ask(id, &[id as u32 + 1; 4], 3)));
        finish(engine).unwrap();
        machine.clock.now()
    });
    check(&rig, &[0, 0, 10], &[0, 0, end]);
    check(&rig, &[0, 0, end - 50], &[0, 0, end + 100]);
}

#[test]
fn batches_follow_each_other_and_change_no_output() {
    let requests = asks(7, 20);
    for kv in ALLOCATORS {
        let rig = Rig { kv, ..batches(3, 0) };
        let ran = rig.run(&requests).unwrap();
        let (mut running, mut sizes) = (0, Vec::new());
        for event in &ran.events {
            match event.kind {
                EventKind::Admitted { .. } if running == 0 => {
                    sizes.push(1);
                    running = 1;
                }
                EventKind::Admitted { .. } => {
                    *sizes.last_mut().unwrap() += 1;
                    running += 1;
                }
                EventKind::Finished { .. } => running -= 1,
                EventKind::Held { reason, .. } => assert_eq!(reason, Held::BatchFull),
                _ => {}
            }
        }
        assert_eq!(sizes, [3, 3, 1], "{kv}");
        let continuous = Rig { policy: crate::Policy { wait: None, ..rig.policy }, ..rig.clone() };
        assert_eq!(ran.outputs, continuous.run(&requests).unwrap().outputs, "{kv}");
    }
}

#[test]
fn ended_requests_keep_their_slots_until_their_batch_has_ended() {
    for kv in [Kv::Contiguous, Kv::Paged { block: 4 }] {
        Rig { kv, ..batches(2, 0) }.start(|engine, machine| {
            engine.submit(ask(0, &[3; 6], 2));
            engine.submit(ask(1, &[4; 6], 40));
            while engine.step().unwrap().is_empty() {}
            let held = engine.kv_usage();
            assert!(held.ended >= 7 && held.live >= 6 && machine.draft_kv.taken() >= 12, "{kv}: {held:?}");
            // The last of a batch takes everything with it, even where it is withdrawn.
            engine.abort(1);
            assert!(engine.is_idle() && engine.kv_usage().free() == engine.kv_usage().capacity, "{kv}");
            assert_eq!(machine.draft_kv.taken(), 0, "{kv}");
        });
    }
}

#[test]
fn a_batch_that_outgrows_the_pool_goes_on_without_its_youngest() {
    let requests: Vec<Request> = (0..4).map(|id| ask(id, &[id as u32 + 1; 8], 24)).collect();
    for kv in [Kv::Paged { block: 4 }, Kv::Prefix { block: 4 }] {
        let rig = Rig { kv, slots: 48, ..batches(3, 0) };
        let ran = rig.run(&requests).unwrap();
        assert!(ran.count(|kind| matches!(kind, EventKind::Preempted { .. })) > 0, "{kv}");
        assert!(requests.iter().zip(&ran.outputs).all(|(request, got)| *got == rig.alone(request)), "{kv}");
    }
}

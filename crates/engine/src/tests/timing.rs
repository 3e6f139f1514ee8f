//! Time: arrivals on a virtual clock, and where the time of a step went.
//!
//! The parts of a step's time leave no gap between them, and what a model takes is charged to its own phase.

use std::sync::atomic::{AtomicU64, Ordering};

use specquant_core::{Clock, Event, EventKind, PhaseTimes, Reach, Request, Rows};
use specquant_kv::Paged;

use super::rig::{Rig, TARGET, ask, asks};
use crate::fake::{Fake, Letters};
use crate::{Arrivals, DraftModel, Engine, Parts, Policy, Virtual, drive};

/// A clock on which every look takes one nanosecond.
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn now(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn wait_until(&self, _: u64) {}
}

fn at(events: &[Event], wanted: &EventKind) -> u64 {
    events.iter().find(|event| event.kind == *wanted).unwrap().at
}

#[test]
fn requests_are_submitted_when_they_arrive_and_idle_time_is_skipped() {
    let rig = Rig { cost: (100, 10), ..Rig::new(2) };
    rig.start(|engine, machine| {
        let arrivals = [0, 50, 5_000_000, 5_000_001];
        let requests: Vec<Request> =
            asks(4, 6).into_iter().zip(arrivals).map(|(request, arrival)| Request { arrival, ..request }).collect();
        let plain: Vec<_> = requests.iter().map(|request| rig.plain().alone(request)).collect();
        let outputs = drive(engine, requests, Arrivals::Scheduled, &|| false).unwrap().unwrap();
        assert_eq!(outputs, plain, "arrivals change no output");
        let events = engine.take_events();
        for (request, arrival) in (0..).zip(arrivals) {
            let arrived = events
                .iter()
                .find(|event| matches!(event.kind, EventKind::Arrived { request: id, .. } if id == request));
            assert_eq!(arrived.unwrap().at, arrival, "an arrival is stamped with its schedule");
        }
        // The first step takes one draft prefill and one forward; the second request came during it.
        assert_eq!(at(&events, &EventKind::Admitted { request: 0, cached: 0 }), 0);
        assert_eq!(at(&events, &EventKind::Admitted { request: 1, cached: 0 }), 110);
        assert_eq!(at(&events, &EventKind::Admitted { request: 2, cached: 0 }), 5_000_000);
        assert_eq!(at(&events, &EventKind::Admitted { request: 3, cached: 0 }), 5_000_110);
        assert!(events.iter().all(|event| event.at <= machine.clock.now()));
        assert!(machine.clock.now() < 5_010_000);
    });
}

#[test]
fn in_a_closed_loop_a_request_arrives_when_its_user_is_free() {
    let rig = Rig { cost: (100, 10), ..Rig::new(2) };
    rig.start(|engine, _| {
        let requests = asks(5, 6);
        let plain: Vec<_> = requests.iter().map(|request| rig.plain().alone(request)).collect();
        let outputs = drive(engine, requests, Arrivals::Closed { users: 2 }, &|| false).unwrap().unwrap();
        assert_eq!(outputs, plain, "arrivals change no output");
        let mut in_flight = 0;
        for Event { at, kind } in engine.take_events() {
            match kind {
                EventKind::Arrived { request, .. } => {
                    assert_eq!(at == 0, request < 2, "request {request} arrived at {at}");
                    in_flight += 1;
                }
                EventKind::Finished { .. } => in_flight -= 1,
                _ => {}
            }
            assert!((0..=2).contains(&in_flight));
        }
    });
}

#[test]
fn an_interrupted_drive_has_no_result() {
    Rig::new(2).start(|engine, _| {
        let looks = AtomicU64::new(0);
        let interrupted = || looks.fetch_add(1, Ordering::Relaxed) == 3;
        assert_eq!(drive(engine, asks(2, 30), Arrivals::Scheduled, &interrupted).unwrap(), None);
        assert!(!engine.is_idle());
    });
}

#[test]
fn each_phase_is_charged_with_what_it_took() {
    let rig = Rig { draft: Some(TARGET), cost: (1000, 7), ..Rig::new(3) };
    let ran = rig.run(&[ask(0, &[5; 70], 9)]).unwrap();
    let zero = PhaseTimes::default();
    let steps = [
        (Rows { prefill: 64, ..Rows::default() }, PhaseTimes { draft_prefill: 7, target: 1000, ..zero }),
        (Rows { prefill: 6, ..Rows::default() }, PhaseTimes { draft_prefill: 7, target: 1000, ..zero }),
        (Rows { decode: 1, verify: 3, prefill: 0 }, PhaseTimes { draft: 21, target: 1000, ..zero }),
        (Rows { decode: 1, verify: 3, prefill: 0 }, PhaseTimes { draft: 21, target: 1000, ..zero }),
    ];
    let got: Vec<_> = ran
        .events
        .iter()
        .filter_map(
            |event| if let EventKind::Step { rows, times, .. } = event.kind { Some((rows, times)) } else { None },
        )
        .collect();
    assert_eq!(got, steps);
    // The prompt in chunks of 64 and 6, of which only the last row is scored, then four rows after 70 and after 74 tokens.
    let reach = [(2080, 64, 0), (405, 70, 1), (290, 74, 4), (306, 78, 4)].map(|(keys, context, scored)| Reach {
        keys,
        context,
        scored,
    });
    let got: Vec<_> = ran
        .events
        .iter()
        .filter_map(|event| if let EventKind::Step { reach, .. } = event.kind { Some(reach) } else { None })
        .collect();
    assert_eq!(got, reach);
}

#[test]
fn the_parts_of_a_steps_time_sum_to_its_duration() {
    let (mut target, mut draft) = (Fake::new(TARGET, 27, 64, 256), Fake::new(TARGET, 27, 64, 256));
    let clock = Ticking(AtomicU64::new(0));
    let kv = || Box::new(Paged::new(256, 4));
    let proposer = Box::new(DraftModel::new(&mut draft, kv()));
    let parts = Parts { target: &mut target, kv: kv(), proposer, text: &Letters, clock: &clock };
    let mut engine = Engine::new(parts, Policy { limit: 3, wait: None, chunk: 4, depth: 3 });
    asks(5, 12).into_iter().for_each(|request| engine.submit(request));
    while !engine.is_idle() {
        let before = clock.now();
        engine.step().unwrap();
        let events = engine.take_events();
        let Some(Event { at, kind: EventKind::Step { times, .. } }) = events.last() else { panic!("{events:?}") };
        // The step's first look at the clock is the one after ours.
        assert_eq!(times.total(), at - (before + 1));
        assert!(events.iter().all(|event| event.at <= *at));
    }
}

#[test]
fn virtual_time_never_goes_back() {
    let clock = Virtual::default();
    clock.wait_until(50);
    clock.wait_until(20);
    assert_eq!(clock.now(), 50);
    clock.advance(5);
    assert_eq!(clock.now(), 55);
}

#[test]
fn a_rate_that_was_offered_is_kept_over_thousands_of_arrivals() {
    // 200 a second were offered and 183.5 realised in a public report, because each wait began after the last one's work.
    let rig = Rig { cost: (0, 0), ..Rig::new(2) };
    rig.start(|engine, machine| {
        let every = 5_000_000;
        let one = asks(1, 1).remove(0);
        let requests = (0..10_000).map(|id| Request { id, arrival: id * every, ..one.clone() }).collect();
        drive(engine, requests, Arrivals::Scheduled, &|| false).unwrap().unwrap();
        let arrivals: Vec<u64> = engine
            .take_events()
            .iter()
            .filter(|event| matches!(event.kind, EventKind::Arrived { .. }))
            .map(|event| event.at)
            .collect();
        assert!(arrivals.iter().copied().eq((0..10_000).map(|id| id * every)), "arrivals keep the schedule");
        assert_eq!(machine.clock.now(), 9_999 * every, "and none is late");
    });
}

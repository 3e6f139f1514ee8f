//! Short constructors of events, for logs that are written by hand in tests.
//!
//! Times are nanoseconds; `milliseconds` reads a log as if they were milliseconds.

use specquant_core::{Event, EventKind, Held, KvUsage, PhaseTimes, Reach, Reason, Rows, TextSize};

pub(crate) fn arrived(at: u64, request: u64) -> Event {
    Event { at, kind: EventKind::Arrived { request, prompt: 10 } }
}

pub(crate) fn held(at: u64, request: u64, reason: Held) -> Event {
    Event { at, kind: EventKind::Held { request, reason } }
}

pub(crate) fn admitted(at: u64, request: u64) -> Event {
    Event { at, kind: EventKind::Admitted { request, cached: 0 } }
}

pub(crate) fn preempted(at: u64, request: u64, recompute: usize) -> Event {
    Event { at, kind: EventKind::Preempted { request, recompute } }
}

pub(crate) fn aborted(at: u64, request: u64) -> Event {
    Event { at, kind: EventKind::Aborted { request } }
}

pub(crate) fn rejected(at: u64, request: u64) -> Event {
    Event { at, kind: EventKind::Rejected { request, why: "too long".into() } }
}

pub(crate) fn finished(at: u64, request: u64, tokens: usize) -> Event {
    ended(at, request, tokens, Reason::Length)
}

pub(crate) fn ended(at: u64, request: u64, tokens: usize, reason: Reason) -> Event {
    Event {
        at,
        kind: EventKind::Finished {
            request,
            reason,
            tokens,
            text: TextSize { characters: 3 * tokens, bytes: 4 * tokens },
        },
    }
}

pub(crate) fn skipped(at: u64, request: u64) -> Event {
    Event { at, kind: EventKind::DraftSkipped { request } }
}

/// One token without a draft.
pub(crate) fn token(at: u64, request: u64) -> Event {
    Event { at, kind: EventKind::Tokens { request, n: 1, drafted: 0, accepted: 0, rejected: false } }
}

/// The `n` tokens of a step with a draft, of which so many were drafted and accepted.
pub(crate) fn drafted(at: u64, request: u64, n: usize, [drafted, accepted]: [usize; 2], rejected: bool) -> Event {
    Event { at, kind: EventKind::Tokens { request, n, drafted, accepted, rejected } }
}

/// A step with these rows of prefill, decode and verify.
pub(crate) fn step(at: u64, [prefill, decode, verify]: [usize; 3], times: PhaseTimes) -> Event {
    reaching(at, [prefill, decode, verify], Reach::default(), times)
}

/// The same, with how far the rows reach.
pub(crate) fn reaching(at: u64, [prefill, decode, verify]: [usize; 3], reach: Reach, times: PhaseTimes) -> Event {
    let kv = KvUsage { capacity: 64, live: 32, ..KvUsage::default() };
    let draft_kv = KvUsage { capacity: 64, live: 16, ..KvUsage::default() };
    Event { at, kind: EventKind::Step { rows: Rows { prefill, decode, verify }, reach, times, kv, draft_kv } }
}

/// A step's times with only the target's forward and everything else.
pub(crate) fn plain(target: u64, other: u64) -> PhaseTimes {
    PhaseTimes { target, other, ..PhaseTimes::default() }
}

/// A step that drafts.
pub(crate) fn drafting(draft: u64, target: u64, other: u64) -> PhaseTimes {
    PhaseTimes { draft, ..plain(target, other) }
}

/// The log with every time a million times as long.
pub(crate) fn milliseconds(mut events: Vec<Event>) -> Vec<Event> {
    for Event { at, kind } in &mut events {
        *at *= 1_000_000;
        if let EventKind::Step { times, .. } = kind {
            let PhaseTimes { draft_prefill, draft, target, sample, verify, keep, other } = times;
            for ns in [draft_prefill, draft, target, sample, verify, keep, other] {
                *ns *= 1_000_000;
            }
        }
    }
    events
}

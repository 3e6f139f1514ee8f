//! The slots of a KV cache over the time of steps: how much of them held tokens, and where the rest went.
//!
//! Whether a reserved slot was waiting for a token or was never needed is known when its sequence ends. Until then the time
//! for which a sequence held each number of slots is kept; sequences that are open at the end count by what they held then.

use std::collections::HashMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use specquant_core::{Event, EventKind, Held, KvUsage};

/// Accumulates slots times time.
#[derive(Default)]
struct Ledger {
    open: HashMap<u64, Vec<Span>>,
    /// Time since the beginning.
    now: u64,
    time: SlotTime,
}

/// For so long a sequence held so many slots.
#[derive(Clone, Copy)]
struct Span {
    slots: usize,
    since: u64,
    time: u64,
}

/// Slots times nanoseconds, by what the slots were doing; all but `shared` sum to `capacity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SlotTime {
    /// All slots.
    pub capacity: f64,
    /// Held tokens of open sequences.
    pub live: f64,
    /// Of those, the ones that several sequences read.
    pub shared: f64,
    /// Waited for a token that came.
    pub reservation: f64,
    /// Were held for a token that never came, or by sequences that had ended.
    pub internal: f64,
    /// Belonged to nobody although a request waited for room, or were lost to the sizes of blocks.
    pub external: f64,
    /// Held tokens for sequences to come.
    pub cached: f64,
    /// Belonged to nobody, and nobody waited for them.
    pub free: f64,
    /// All slots, without time.
    pub slots: u64,
    /// The most slots that held tokens at once, without time.
    pub peak_live: u64,
}

/// The slots of both models' caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KvTime {
    /// The target's.
    pub target: SlotTime,
    /// The draft's. Who waits, waits for the target's, and what its sequences reserve counts as reservation.
    pub draft: SlotTime,
}

/// Where the slots of a cache went, as shares of all its slots over the time of steps.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct KvShares {
    /// All slots.
    pub slots: u64,
    /// Held tokens of open sequences: token states.
    pub live: f64,
    /// Of those, the share that several sequences read.
    pub shared: f64,
    /// Waited for a token that came: reservation.
    pub reservation: f64,
    /// Were held for a token that never came, or by sequences that had ended: internal fragmentation.
    pub internal: f64,
    /// Belonged to nobody although a request waited for room, or were lost to the sizes of blocks: external fragmentation.
    pub external: f64,
    /// Held tokens for sequences to come.
    pub cached: f64,
    /// Belonged to nobody, and nobody waited for them.
    pub free: f64,
    /// The most tokens of open sequences at once.
    pub peak_live: u64,
}

/// Where the slots of a draft model's cache went, as shares of all its slots over the time of steps.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct DraftKvShares {
    /// All slots.
    pub slots: u64,
    /// Held tokens of open sequences.
    pub live: f64,
    /// Were held or promised for tokens to come, whether they came or not.
    pub reserved: f64,
    /// Held tokens for sequences to come.
    pub cached: f64,
    /// The most tokens of open sequences at once.
    pub peak_live: u64,
}

impl Ledger {
    /// Lets time pass in which the slots were used so; `waiting` says whether a request waited for room.
    fn pass(&mut self, ns: u64, usage: &KvUsage, waiting: bool) {
        self.now += ns;
        let of = |slots: usize| slots as f64 * ns as f64;
        let free = of(usage.free());
        let time = &mut self.time;
        time.capacity += of(usage.capacity);
        time.live += of(usage.live);
        time.shared += of(usage.shared);
        // What turns out to be internal moves there when a sequence ends.
        time.reservation += of(usage.reserved);
        time.internal += of(usage.ended);
        time.external += of(usage.rounding) + if waiting { free } else { 0.0 };
        time.cached += of(usage.cached);
        time.free += if waiting { 0.0 } else { free };
        time.slots = time.slots.max(usage.capacity as u64);
        time.peak_live = time.peak_live.max(usage.live as u64);
    }

    /// Notes what a sequence holds from now on.
    fn hold(&mut self, sequence: u64, slots: usize) {
        let (now, spans) = (self.now, self.open.entry(sequence).or_default());
        if let Some(last) = spans.last_mut() {
            if last.slots == slots {
                return;
            }
            last.time = now - last.since;
            if last.time == 0 {
                spans.pop();
            }
        }
        spans.push(Span { slots, since: now, time: 0 });
    }

    /// A sequence gave its slots back after it had used so many.
    fn end(&mut self, sequence: u64, used: usize) {
        let Some(spans) = self.open.remove(&sequence) else { return };
        let last = spans.len() - 1;
        for (at, span) in spans.into_iter().enumerate() {
            let time = if at == last { self.now - span.since } else { span.time };
            let never = span.slots.saturating_sub(used) as f64 * time as f64;
            self.time.internal += never;
            self.time.reservation -= never;
        }
    }

    /// What has become of the slots.
    fn time(&self) -> SlotTime {
        self.time
    }
}

impl SlotTime {
    /// Shares of all slots; `None` if no time has passed.
    pub fn shares(&self) -> Option<KvShares> {
        let SlotTime { capacity, live, shared, reservation, internal, external, cached, free, slots, peak_live } =
            *self;
        let [live, shared, reservation, internal, external, cached, free] =
            [live, shared, reservation, internal, external, cached, free].map(|part| part / capacity);
        let shares = KvShares { slots, live, shared, reservation, internal, external, cached, free, peak_live };
        (capacity > 0.0).then_some(shares)
    }

    /// Adds the time of another pass.
    pub fn merge(&mut self, other: &SlotTime) {
        self.capacity += other.capacity;
        self.live += other.live;
        self.shared += other.shared;
        self.reservation += other.reservation;
        self.internal += other.internal;
        self.external += other.external;
        self.cached += other.cached;
        self.free += other.free;
        self.slots = self.slots.max(other.slots);
        self.peak_live = self.peak_live.max(other.peak_live);
    }
}

impl KvShares {
    /// What can be said of a cache whose sequences' ends are not known.
    pub(crate) fn of_draft(self) -> DraftKvShares {
        let KvShares { slots, live, reservation, cached, peak_live, .. } = self;
        DraftKvShares { slots, live, reserved: reservation, cached, peak_live }
    }
}

impl KvTime {
    /// Folds the events of one pass.
    pub fn of(events: &[Event]) -> KvTime {
        let mut fold = Fold::default();
        events.iter().for_each(|event| fold.take(&event.kind));
        KvTime { target: fold.target.time(), draft: fold.draft.time() }
    }

    /// Adds the time of another pass.
    pub fn merge(&mut self, other: &KvTime) {
        self.target.merge(&other.target);
        self.draft.merge(&other.draft);
    }
}

/// Both ledgers, and what a log says of their sequences.
#[derive(Default)]
struct Fold {
    target: Ledger,
    draft: Ledger,
    /// The request that waits for room.
    blocked: Option<u64>,
    /// Slots that each request has used: all its tokens but the newest.
    used: HashMap<u64, usize>,
    /// Requests that hold their slots to the end of the step that finished them.
    finished: Vec<u64>,
}

impl Fold {
    fn take(&mut self, kind: &EventKind) {
        match kind {
            EventKind::Arrived { request, prompt } => drop(self.used.insert(*request, prompt.saturating_sub(1))),
            EventKind::Tokens { request, n, .. } => *self.used.entry(*request).or_default() += n,
            EventKind::Held { request, reason: Held::PoolFull } => self.blocked = Some(*request),
            EventKind::Held { request, .. } | EventKind::Admitted { request, .. } => self.unblock(*request),
            EventKind::Holds { request, slots } => self.target.hold(*request, *slots),
            EventKind::Preempted { request, recompute } => self.target.end(*request, *recompute),
            EventKind::Finished { request, .. } => self.finished.push(*request),
            EventKind::Aborted { request }
            | EventKind::Failed { request, .. }
            | EventKind::Rejected { request, .. } => {
                self.unblock(*request);
                self.end(*request);
            }
            EventKind::Step { times, kv, draft_kv, .. } => {
                self.target.pass(times.total(), kv, self.blocked.is_some());
                self.draft.pass(times.total(), draft_kv, false);
                std::mem::take(&mut self.finished).into_iter().for_each(|request| self.end(request));
            }
            EventKind::DraftSkipped { .. } => {}
        }
    }

    fn unblock(&mut self, request: u64) {
        self.blocked = self.blocked.filter(|blocked| *blocked != request);
    }

    fn end(&mut self, request: u64) {
        self.target.end(request, self.used.remove(&request).unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::*;
    use specquant_core::{PhaseTimes, Reach, Rows};

    fn usage(live: usize, reserved: usize, rounding: usize) -> KvUsage {
        KvUsage { capacity: 100, live, reserved, rounding, ..KvUsage::default() }
    }

    #[test]
    fn reserved_slots_are_judged_when_their_sequence_ends() {
        let mut ledger = Ledger::default();
        // One sequence reserves 60 and comes to use 40; another takes 16 and then 32 of which it uses 20.
        ledger.hold(1, 60);
        ledger.hold(2, 16);
        ledger.pass(10, &usage(30, 46, 4), true);
        ledger.hold(2, 32);
        ledger.hold(2, 32);
        ledger.pass(5, &usage(50, 42, 4), false);
        ledger.end(1, 40);
        ledger.pass(2, &usage(20, 12, 0), false);
        ledger.end(2, 20);
        let expected = SlotTime {
            capacity: 1700.0,
            live: 300.0 + 250.0 + 40.0,
            shared: 0.0,
            reservation: 460.0 + 210.0 + 24.0 - 20.0 * 15.0 - 12.0 * 7.0,
            internal: 20.0 * 15.0 + 12.0 * 7.0,
            external: (4.0 + 20.0) * 10.0 + 4.0 * 5.0,
            cached: 0.0,
            free: 4.0 * 5.0 + 68.0 * 2.0,
            slots: 100,
            peak_live: 50,
        };
        assert_eq!(ledger.time(), expected);
        let KvShares { live, reservation, internal, external, cached, free, .. } = ledger.time().shares().unwrap();
        assert!((live + reservation + internal + external + cached + free - 1.0).abs() < 1e-12);
        assert!((live - 590.0 / 1700.0).abs() < 1e-12);
        ledger.end(3, 1);
        assert_eq!(ledger.time(), expected);
    }

    fn step(ns: u64, kv: KvUsage) -> Event {
        Event {
            at: 0,
            kind: EventKind::Step {
                rows: Rows::default(),
                reach: Reach::default(),
                times: PhaseTimes { target: ns, ..PhaseTimes::default() },
                kv,
                draft_kv: KvUsage { capacity: 10, live: 4, ..KvUsage::default() },
            },
        }
    }

    fn holds(request: u64, slots: usize) -> Event {
        Event { at: 0, kind: EventKind::Holds { request, slots } }
    }

    #[test]
    fn a_log_tells_who_held_what_and_who_waited() {
        // Prompts of ten tokens. The first holds 20 slots and uses 11; the second waits for room, comes in and is cut off.
        let log = [
            arrived(0, 0),
            arrived(0, 1),
            admitted(0, 0),
            held(0, 1, Held::PoolFull),
            holds(0, 20),
            token(0, 0),
            step(10, usage(0, 20, 0)),
            token(0, 0),
            finished(0, 0, 2),
            step(2, usage(10, 10, 0)),
            admitted(0, 1),
            holds(1, 16),
            token(0, 1),
            step(1, usage(0, 16, 0)),
            aborted(0, 1),
            step(1, usage(0, 0, 0)),
        ];
        let KvTime { target, draft } = KvTime::of(&log);
        let internal = 9.0 * 12.0 + 6.0;
        let expected = SlotTime {
            capacity: 1400.0,
            live: 20.0,
            reservation: 20.0 * 10.0 + 10.0 * 2.0 + 16.0 - internal,
            internal,
            external: 80.0 * 12.0,
            free: 84.0 + 100.0,
            slots: 100,
            peak_live: 10,
            ..SlotTime::default()
        };
        assert_eq!(target, expected);
        assert_eq!((draft.live, draft.free, draft.capacity), (56.0, 84.0, 140.0));
        assert_eq!(KvTime::of(&[]).target.shares(), None);
    }
}

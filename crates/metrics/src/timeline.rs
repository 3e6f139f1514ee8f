//! What happened to each request, in one value per request.
//!
//! An emission keeps its own time and number of tokens, because every variant of TPOT and ITL can be computed from
//! those and none without them. What is logged for a request after its end is not output and is ignored.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use specquant_core::{Event, EventKind, Held, Reason, TextSize};

/// One request from its arrival to its end. Times are nanoseconds from the start of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// Number of the request within the run.
    pub request: u64,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// When it was scheduled to arrive.
    pub arrival_ns: u64,
    /// When it joined the running set for the first time.
    pub admitted_ns: Option<u64>,
    /// Its output, in order.
    pub emissions: Vec<Emission>,
    /// How it waited before it was first admitted, by reason.
    pub queue: Wait,
    /// How it waited after preemptions, by reason.
    pub requeue: Wait,
    /// How often it lost its slots.
    pub preemptions: usize,
    /// Tokens whose keys and values had to be computed again after preemptions.
    pub recomputed_tokens: usize,
    /// Tokens of its prompt that the KV cache held when it was first admitted.
    pub cached_tokens: usize,
    /// Steps in which a draft was wanted and could not be made.
    pub drafts_skipped: usize,
    /// Time that steps between its first admission and its first token spent on entering prompts into the draft model, its
    /// own and those of others.
    pub draft_prefill_ns: u64,
    /// Its text, if it is finished.
    pub text: TextSize,
    /// How it ended; `None` if the log ends before it does.
    pub end: Option<End>,
}

/// Tokens that a request got at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Emission {
    /// When.
    pub at_ns: u64,
    /// How many, at least 1.
    pub n: usize,
}

/// The time between two successive emissions of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Its length.
    pub ns: u64,
    /// Tokens of the later emission.
    pub n: usize,
}

/// Time spent waiting for admission, by what was waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Wait {
    /// The KV cache had no room.
    pub pool_full_ns: u64,
    /// As many requests were running as may.
    pub batch_full_ns: u64,
    /// The batch that it was to be in waited for more requests.
    pub wait_window_ns: u64,
    /// Before the engine gave a reason: from the arrival or the preemption to the next look at the queue.
    pub unheld_ns: u64,
}

/// When and how a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// When.
    pub at_ns: u64,
    /// How.
    pub outcome: Outcome,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is complete.
    Finished {
        /// Why it ended.
        reason: Reason,
        /// Tokens of output that the engine reported; equal to the sum of the emissions in a sound log.
        tokens: usize,
    },
    /// It was withdrawn.
    Aborted,
    /// It was lost to an error of a model.
    Failed {
        /// The error.
        why: String,
    },
    /// It could never be served.
    Rejected {
        /// Why not.
        why: String,
    },
}

impl Wait {
    /// The whole wait.
    pub fn total_ns(&self) -> u64 {
        self.pool_full_ns + self.batch_full_ns + self.wait_window_ns + self.unheld_ns
    }

    /// Adds another wait, reason by reason.
    pub fn merge(&mut self, other: &Wait) {
        self.pool_full_ns += other.pool_full_ns;
        self.batch_full_ns += other.batch_full_ns;
        self.wait_window_ns += other.wait_window_ns;
        self.unheld_ns += other.unheld_ns;
    }

    fn add(&mut self, reason: Option<Held>, ns: u64) {
        match reason {
            Some(Held::PoolFull) => self.pool_full_ns += ns,
            Some(Held::BatchFull) => self.batch_full_ns += ns,
            Some(Held::WaitWindow) => self.wait_window_ns += ns,
            None => self.unheld_ns += ns,
        }
    }
}

impl Timeline {
    /// Tokens of output so far.
    pub fn tokens(&self) -> usize {
        self.emissions.iter().map(|emission| emission.n).sum()
    }

    /// Whether the request is complete: neither aborted, rejected nor still running.
    pub fn is_finished(&self) -> bool {
        matches!(self.end, Some(End { outcome: Outcome::Finished { .. }, .. }))
    }

    /// Queue time: first admission - arrival.
    pub fn queue_ns(&self) -> Option<u64> {
        Some(self.admitted_ns?.saturating_sub(self.arrival_ns))
    }

    /// Prefill: the part of the TTFT that is neither queue nor draft prefill.
    pub fn prefill_ns(&self) -> Option<u64> {
        Some(self.ttft_ns()?.saturating_sub(self.queue_ns()? + self.draft_prefill_ns))
    }

    /// When the first token came.
    pub fn first_token_ns(&self) -> Option<u64> {
        self.emissions.first().map(|emission| emission.at_ns)
    }

    /// When the last token came.
    pub fn last_token_ns(&self) -> Option<u64> {
        self.emissions.last().map(|emission| emission.at_ns)
    }

    /// Time to first token: first token - arrival.
    pub fn ttft_ns(&self) -> Option<u64> {
        Some(self.first_token_ns()?.saturating_sub(self.arrival_ns))
    }

    /// Time of all tokens but those of the first moment: last token - first token.
    pub fn generation_ns(&self) -> Option<u64> {
        Some(self.last_token_ns()?.saturating_sub(self.first_token_ns()?))
    }

    /// Time per output token: (last token - first token) / (n - 1); `None` for fewer than two tokens.
    pub fn tpot_ns(&self) -> Option<f64> {
        let n = self.tokens();
        (n > 1).then_some(self.generation_ns()? as f64 / (n.max(2) - 1) as f64)
    }

    /// End to end: finish - arrival, of a finished request.
    pub fn e2e_ns(&self) -> Option<u64> {
        self.end.as_ref().filter(|_| self.is_finished()).map(|end| end.at_ns.saturating_sub(self.arrival_ns))
    }

    /// The draft prefill of the steps that it waited for between admission, which happens within a step, and first token,
    /// which is stamped before its step ends.
    fn draft_prefill_among(&self, steps: &[[u64; 3]]) -> u64 {
        let (Some(admitted), Some(first)) = (self.admitted_ns, self.first_token_ns()) else { return 0 };
        let begin = steps.partition_point(|[_, end, _]| *end <= admitted);
        let overlapping = steps[begin..].iter().take_while(|[begin, ..]| *begin < first);
        overlapping.map(|[.., ns]| ns).sum()
    }

    /// The gaps between emissions, one fewer than there are emissions.
    pub fn gaps(&self) -> impl Iterator<Item = Gap> + '_ {
        let pairs = self.emissions.windows(2);
        pairs.map(|pair| Gap { ns: pair[1].at_ns.saturating_sub(pair[0].at_ns), n: pair[1].n })
    }
}

/// The timeline of every request in the log, by ascending request number.
///
/// A request whose arrival is not in the log counts as arrived at its first event.
pub fn timelines(events: &[Event]) -> Vec<Timeline> {
    let mut open: BTreeMap<u64, Open> = BTreeMap::new();
    for Event { at, kind } in events {
        if let Some(request) = request_of(kind) {
            open.entry(request).or_insert_with(|| Open::new(request, *at)).take(*at, kind);
        }
    }
    let steps = draft_prefills(events);
    let mut timelines: Vec<Timeline> = open.into_values().map(|open| open.timeline).collect();
    for timeline in &mut timelines {
        timeline.draft_prefill_ns = timeline.draft_prefill_among(&steps);
    }
    timelines
}

/// Begin, end and draft prefill of the steps that have one.
fn draft_prefills(events: &[Event]) -> Vec<[u64; 3]> {
    let step = |event: &Event| match &event.kind {
        EventKind::Step { times, .. } if times.draft_prefill > 0 => {
            Some([event.at.saturating_sub(times.total()), event.at, times.draft_prefill])
        }
        _ => None,
    };
    events.iter().filter_map(step).collect()
}

/// A timeline under construction, with what the request waits for.
struct Open {
    timeline: Timeline,
    waiting: Option<(u64, Option<Held>)>,
    /// Tokens whose keys and values the last preemption took.
    lost: usize,
}

impl Open {
    fn new(request: u64, at: u64) -> Open {
        Open {
            timeline: Timeline { request, arrival_ns: at, ..Timeline::default() },
            waiting: Some((at, None)),
            lost: 0,
        }
    }

    fn take(&mut self, at: u64, kind: &EventKind) {
        if self.timeline.end.is_some() {
            return;
        }
        let timeline = &mut self.timeline;
        match kind {
            EventKind::Arrived { prompt, .. } => timeline.prompt_tokens = *prompt,
            EventKind::Held { reason, .. } => self.wait(at, Some((at, Some(*reason)))),
            EventKind::Admitted { cached, .. } => {
                timeline.recomputed_tokens += std::mem::take(&mut self.lost).saturating_sub(*cached);
                if timeline.admitted_ns.is_none() {
                    timeline.cached_tokens = *cached;
                }
                self.wait(at, None);
                self.timeline.admitted_ns.get_or_insert(at);
            }
            EventKind::Preempted { recompute, .. } => {
                timeline.preemptions += 1;
                self.lost = *recompute;
                self.wait(at, Some((at, None)));
            }
            EventKind::Tokens { n, .. } => timeline.emissions.push(Emission { at_ns: at, n: *n }),
            EventKind::DraftSkipped { .. } => timeline.drafts_skipped += 1,
            EventKind::Finished { reason, tokens, text, .. } => {
                timeline.text = *text;
                self.end(at, Outcome::Finished { reason: *reason, tokens: *tokens });
            }
            EventKind::Aborted { .. } => self.end(at, Outcome::Aborted),
            EventKind::Failed { why, .. } => self.end(at, Outcome::Failed { why: why.clone() }),
            EventKind::Rejected { why, .. } => self.end(at, Outcome::Rejected { why: why.clone() }),
            EventKind::Holds { .. } | EventKind::Step { .. } => {}
        }
    }

    /// Closes the current wait, if there is one, and starts `next`.
    fn wait(&mut self, at: u64, next: Option<(u64, Option<Held>)>) {
        if let Some((since, reason)) = self.waiting {
            let first = self.timeline.admitted_ns.is_none();
            let wait = if first { &mut self.timeline.queue } else { &mut self.timeline.requeue };
            wait.add(reason, at.saturating_sub(since));
        }
        self.waiting = next;
    }

    fn end(&mut self, at: u64, outcome: Outcome) {
        self.wait(at, None);
        self.timeline.end = Some(End { at_ns: at, outcome });
    }
}

fn request_of(kind: &EventKind) -> Option<u64> {
    match kind {
        EventKind::Arrived { request, .. }
        | EventKind::Held { request, .. }
        | EventKind::Admitted { request, .. }
        | EventKind::Holds { request, .. }
        | EventKind::Preempted { request, .. }
        | EventKind::Tokens { request, .. }
        | EventKind::DraftSkipped { request }
        | EventKind::Finished { request, .. }
        | EventKind::Aborted { request }
        | EventKind::Failed { request, .. }
        | EventKind::Rejected { request, .. } => Some(*request),
        EventKind::Step { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::*;

    /// `expected` reads `arrival admitted tokens first last end`, with `-` for what there is none of.
    fn check(events: &[Event], expected: &[&str]) {
        let show = |value: Option<u64>| value.map_or("-".to_string(), |value| value.to_string());
        let line = |t: &Timeline| {
            let end = match &t.end {
                Some(End { at_ns, outcome: Outcome::Finished { .. } }) => format!("finished@{at_ns}"),
                Some(End { at_ns, outcome: Outcome::Aborted }) => format!("aborted@{at_ns}"),
                Some(End { at_ns, outcome: Outcome::Failed { why } }) => format!("failed@{at_ns} {why}"),
                Some(End { at_ns, outcome: Outcome::Rejected { why } }) => format!("rejected@{at_ns} {why}"),
                None => "-".to_string(),
            };
            let [admitted, first, last] = [t.admitted_ns, t.first_token_ns(), t.last_token_ns()].map(show);
            format!("{} {admitted} {} {first} {last} {end}", t.arrival_ns, t.tokens())
        };
        let got: Vec<String> = timelines(events).iter().map(line).collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn every_end_of_a_request_gives_a_timeline() {
        check(&[], &[]);
        check(
            &[arrived(5, 0), admitted(7, 0), token(20, 0), token(30, 0), finished(31, 0, 2)],
            &["5 7 2 20 30 finished@31"],
        );
        // Aborted while it runs; the step that was in flight still logs a token, which nobody gets.
        check(&[arrived(0, 0), admitted(1, 0), token(2, 0), aborted(3, 0), token(4, 0)], &["0 1 1 2 2 aborted@3"]);
        // Aborted in the queue, rejected on arrival, rejected without an arrival, and still running.
        check(&[arrived(0, 0), aborted(9, 0)], &["0 - 0 - - aborted@9"]);
        check(&[arrived(2, 0), rejected(2, 0)], &["2 - 0 - - rejected@2 too long"]);
        check(&[rejected(4, 0)], &["4 - 0 - - rejected@4 too long"]);
        check(&[arrived(0, 0), admitted(1, 0), token(2, 0)], &["0 1 1 2 2 -"]);
        // Requests come out by number, whatever the order of the log.
        check(&[arrived(3, 1), arrived(4, 0), admitted(5, 1)], &["4 - 0 - - -", "3 5 0 - - -"]);
    }

    #[test]
    fn waits_are_split_by_reason_and_preemption_waits_stay_out_of_the_queue_time() {
        let log = [
            arrived(0, 0),
            held(10, 0, Held::BatchFull),
            held(40, 0, Held::PoolFull),
            admitted(45, 0),
            token(60, 0),
            preempted(70, 0, 12),
            held(72, 0, Held::PoolFull),
            admitted(90, 0),
            token(100, 0),
            finished(100, 0, 2),
        ];
        let timeline = &timelines(&log)[0];
        assert_eq!(timeline.queue, Wait { pool_full_ns: 5, batch_full_ns: 30, wait_window_ns: 0, unheld_ns: 10 });
        assert_eq!(timeline.requeue, Wait { pool_full_ns: 18, batch_full_ns: 0, wait_window_ns: 0, unheld_ns: 2 });
        assert_eq!(timeline.queue_ns(), Some(timeline.queue.total_ns()));
        assert_eq!((timeline.preemptions, timeline.recomputed_tokens), (1, 12));
        assert_eq!((timeline.ttft_ns(), timeline.tpot_ns(), timeline.e2e_ns()), (Some(60), Some(40.0), Some(100)));

        // A wait that ends with the request is closed there.
        let gone = &timelines(&[arrived(0, 0), held(1, 0, Held::PoolFull), aborted(8, 0)])[0];
        assert_eq!(gone.queue, Wait { pool_full_ns: 7, batch_full_ns: 0, wait_window_ns: 0, unheld_ns: 1 });
        assert_eq!((gone.queue_ns(), gone.ttft_ns(), gone.tpot_ns(), gone.e2e_ns()), (None, None, None, None));
    }

    #[test]
    fn an_emission_of_several_tokens_is_one_gap() {
        let log = [arrived(0, 0), admitted(0, 0), token(10, 0), drafted(25, 0, 3, [4, 2], true), token(30, 0)];
        let timeline = &timelines(&log)[0];
        assert_eq!(timeline.gaps().collect::<Vec<_>>(), [Gap { ns: 15, n: 3 }, Gap { ns: 5, n: 1 }]);
        assert_eq!(timeline.tpot_ns(), Some(5.0));
        // One token has neither a gap nor a time per output token.
        let one = &timelines(&log[..3])[0];
        assert_eq!((one.gaps().count(), one.tpot_ns(), one.ttft_ns()), (0, None, Some(10)));
    }

    #[test]
    fn a_timeline_survives_the_round_trip_through_json() {
        let log = [arrived(0, 0), admitted(1, 0), token(2, 0), finished(3, 0, 1), rejected(4, 1)];
        let timelines = timelines(&log);
        let text = serde_json::to_string(&timelines).unwrap();
        assert_eq!(serde_json::from_str::<Vec<Timeline>>(&text).unwrap(), timelines);
    }
}

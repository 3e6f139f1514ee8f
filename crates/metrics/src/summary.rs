//! A run in numbers: every metric of one arm over one or more passes of the workload.
//!
//! A pass keeps what its events say in integers; a summary is derived from passes and can be derived again from
//! stored ones. Over several passes, sums are added before they are divided.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use specquant_core::Event;

use crate::acceptance::{Acceptance, AcceptanceRates};
use crate::kv::{DraftKvShares, KvShares, KvTime};
use crate::latency::{Counts, Latency};
use crate::steps::StepCosts;
use crate::throughput::{PhaseRates, Throughput};
use crate::timeline::{Timeline, timelines};

/// One arm's pass over the workload, folded from its events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pass {
    /// Wall time: last event - first arrival.
    pub wall_ns: u64,
    /// One timeline for each request.
    pub timelines: Vec<Timeline>,
    /// Time of steps, by kind and phase.
    pub steps: StepCosts,
    /// What became of draft tokens, in all requests whether finished or not.
    pub acceptance: Acceptance,
    /// The slots of the KV caches over the time of steps.
    pub kv: KvTime,
}

/// Every metric of one arm.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Summary {
    /// Passes that were summed.
    pub passes: usize,
    /// Requests and tokens.
    pub counts: Counts,
    /// Latencies of finished requests.
    pub latency: Latency,
    /// Output per second of wall time.
    pub throughput: Throughput,
    /// Rates of steps of one kind.
    pub phases: PhaseRates,
    /// Time of steps, by kind and phase, in nanoseconds.
    pub steps: StepCosts,
    /// What became of draft tokens.
    pub acceptance: AcceptanceRates,
    /// The counts behind `acceptance`, by draft length.
    pub acceptance_counts: Acceptance,
    /// Where the slots of the KV caches went.
    pub kv: Kv,
}

/// Where the slots of both models' KV caches went, and what their fullness cost.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Kv {
    /// The target's slots.
    pub target: Option<KvShares>,
    /// The draft's slots.
    pub draft: Option<DraftKvShares>,
    /// Prompt tokens that the cache held when their request was first admitted / prompt tokens of admitted requests.
    pub hit_rate: Option<f64>,
    /// Tokens computed again after preemptions / rows that the target ran.
    pub recomputed_share: Option<f64>,
}

impl Pass {
    /// Folds the events of one pass.
    pub fn of(events: &[Event]) -> Pass {
        let timelines = timelines(events);
        let begin = timelines.iter().map(|timeline| timeline.arrival_ns).min().unwrap_or(0);
        let end = events.iter().map(|event| event.at).max().unwrap_or(0);
        Pass {
            wall_ns: end.saturating_sub(begin),
            timelines,
            steps: StepCosts::of(events),
            acceptance: Acceptance::of(events),
            kv: KvTime::of(events),
        }
    }

    /// Tokens output in decode steps / time of decode steps, of all sequences together; `None` without such tokens.
    pub fn decode_tok_s(&self) -> Option<f64> {
        let decode = &self.steps.decode;
        per_second(decode.tokens, decode.time_ns())
    }

    /// Output tokens of finished requests / wall; `None` without such tokens.
    pub fn output_tok_s(&self) -> Option<f64> {
        let finished = self.timelines.iter().filter(|timeline| timeline.is_finished());
        per_second(finished.map(|timeline| timeline.tokens() as u64).sum(), self.wall_ns)
    }

    /// Adds a pass over further requests, whose times count from its own start.
    pub fn merge(&mut self, other: Pass) {
        self.wall_ns += other.wall_ns;
        self.timelines.extend(other.timelines);
        self.steps.merge(&other.steps);
        self.acceptance.merge(&other.acceptance);
        self.kv.merge(&other.kv);
    }
}

impl Summary {
    /// All metrics over `passes`.
    pub fn of<'a>(passes: impl IntoIterator<Item = &'a Pass>) -> Summary {
        let passes: Vec<&Pass> = passes.into_iter().collect();
        let timelines: Vec<&Timeline> = passes.iter().flat_map(|pass| &pass.timelines).collect();
        let wall_ns = passes.iter().map(|pass| pass.wall_ns).sum();
        let mut steps = StepCosts::default();
        let (mut acceptance, mut kv) = (Acceptance::default(), KvTime::default());
        for pass in &passes {
            steps.merge(&pass.steps);
            acceptance.merge(&pass.acceptance);
            kv.merge(&pass.kv);
        }
        let counts = Counts::of(&timelines);
        Summary {
            passes: passes.len(),
            counts,
            latency: Latency::of(&timelines),
            throughput: Throughput::of(&timelines, &counts, wall_ns),
            phases: PhaseRates::of(&steps, wall_ns),
            steps,
            acceptance: acceptance.rates(),
            acceptance_counts: acceptance,
            kv: Kv::of(&kv, &timelines, &counts, &steps),
        }
    }
}

impl Kv {
    fn of(time: &KvTime, timelines: &[&Timeline], counts: &Counts, steps: &StepCosts) -> Kv {
        let admitted = timelines.iter().filter(|timeline| timeline.admitted_ns.is_some());
        let asked: usize = admitted.map(|timeline| timeline.prompt_tokens).sum();
        let all = [&steps.prefill, &steps.decode, &steps.mixed];
        let rows: usize = all.map(|cost| cost.rows.prefill + cost.rows.decode + cost.rows.verify).iter().sum();
        let share = |part: u64, of: usize| (of > 0).then(|| part as f64 / of as f64);
        Kv {
            target: time.target.shares(),
            draft: time.draft.shares().map(KvShares::of_draft),
            hit_rate: share(counts.cached_tokens, asked),
            recomputed_share: share(counts.recomputed_tokens, rows),
        }
    }
}

/// A rate that has a logarithm, or none.
fn per_second(count: u64, ns: u64) -> Option<f64> {
    (count > 0 && ns > 0).then(|| count as f64 * 1e9 / ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::*;
    use crate::spread::Spread;
    use crate::timeline::Wait;
    use specquant_core::{EventKind, Held, PhaseTimes, Reason};

    /// Times are milliseconds. Request 0 ends inside an accepted prefix, 1 is preempted, 2 waits for a place, 3 is
    /// aborted in the queue, 4 is rejected and 5 is still waiting.
    fn eventful() -> Vec<Event> {
        milliseconds(vec![
            arrived(0, 0),
            arrived(0, 1),
            admitted(0, 0),
            admitted(0, 1),
            arrived(5, 2),
            arrived(6, 3),
            arrived(6, 4),
            rejected(6, 4),
            token(10, 0),
            token(10, 1),
            step(10, [20, 0, 0], PhaseTimes { draft_prefill: 2, ..plain(7, 1) }),
            held(10, 2, Held::BatchFull),
            held(10, 3, Held::BatchFull),
            drafted(30, 0, 3, [4, 2], true),
            drafted(30, 1, 5, [4, 4], false),
            step(30, [0, 2, 8], drafting(6, 12, 2)),
            preempted(30, 1, 15),
            held(30, 1, Held::PoolFull),
            admitted(30, 2),
            token(55, 2),
            drafted(55, 0, 1, [4, 0], true),
            step(55, [10, 1, 4], drafting(4, 20, 1)),
            aborted(56, 3),
            skipped(56, 2),
            drafted(75, 0, 3, [5, 3], false),
            token(75, 2),
            step(75, [0, 2, 5], drafting(4, 14, 2)),
            ended(75, 0, 8, Reason::Eos),
            finished(75, 2, 2),
            admitted(75, 1),
            token(95, 1),
            step(95, [15, 0, 0], plain(19, 1)),
            arrived(96, 5),
            token(105, 1),
            step(105, [0, 1, 0], plain(9, 1)),
            finished(105, 1, 8),
        ])
    }

    fn check(what: &str, got: Option<f64>, expected: f64) {
        let got = got.unwrap_or(f64::NAN);
        assert!((got - expected).abs() <= 1e-12 * expected.abs(), "{what}: {got} instead of {expected}");
    }

    #[test]
    fn latencies_are_those_of_the_finished_requests() {
        let latency = Summary::of(&[Pass::of(&eventful())]).latency;
        let check = |what, got: Option<Spread>, sample: &[f64]| {
            assert_eq!(got, Spread::of(sample.iter().copied()), "{what}");
        };
        check("queue", latency.queue_ms, &[0.0, 0.0, 25.0]);
        check("ttft", latency.ttft_ms, &[10.0, 10.0, 50.0]);
        check("draft prefill", latency.draft_prefill_ms, &[2.0, 2.0, 0.0]);
        check("prefill", latency.prefill_ms, &[8.0, 8.0, 25.0]);
        check("tpot", latency.tpot_ms, &[65e6 / 7.0 / 1e6, 95e6 / 7.0 / 1e6, 20.0]);
        check("itl", latency.itl_ms, &[20.0, 25.0, 20.0, 20.0, 65.0, 10.0, 20.0]);
        check("e2e", latency.e2e_ms, &[75.0, 105.0, 70.0]);
        let split = Wait { pool_full_ns: 0, batch_full_ns: 20_000_000, wait_window_ns: 0, unheld_ns: 5_000_000 };
        assert_eq!(latency.queue_split, split);
        assert_eq!((latency.tokens_per_emission, latency.jitter), (Some(15.0 / 7.0), Some(1.0 / 7.0)));
    }

    #[test]
    fn every_request_is_counted_once() {
        let counts = Summary::of(&[Pass::of(&eventful())]).counts;
        let expected = Counts {
            requests: 6,
            finished: 3,
            ended_eos: 1,
            ended_length: 2,
            aborted: 1,
            rejected: 1,
            unfinished: 1,
            prompt_tokens: 30,
            output_tokens: 18,
            preemptions: 1,
            recomputed_tokens: 15,
            drafts_skipped: 1,
            ..Counts::default()
        };
        assert_eq!(counts, expected);
        // A wrong count by the engine and the tokens of an aborted request are both seen.
        let log = [arrived(0, 0), token(1, 0), finished(2, 0, 2), arrived(0, 1), token(1, 1), aborted(2, 1)];
        let counts = Summary::of(&[Pass::of(&log)]).counts;
        assert_eq!((counts.miscounted, counts.discarded_tokens, counts.output_tokens), (1, 1, 1));
    }

    #[test]
    fn rates_are_sums_over_sums() {
        let pass = Pass::of(&eventful());
        for passes in [1, 2, 3] {
            let summary = Summary::of(&vec![pass.clone(); passes]);
            let Summary { throughput, phases, .. } = &summary;
            check("wall", Some(throughput.wall_s), 0.105 * passes as f64);
            check("output", throughput.output_tok_s, 18.0 / 0.105);
            check("characters", throughput.characters_s, 3.0 * 18.0 / 0.105);
            check("bytes", throughput.bytes_s, 4.0 * 18.0 / 0.105);
            check("user", throughput.user_tok_s, 15.0 / 0.180);
            check("requests", throughput.requests_s, 3.0 / 0.105);
            check("mean", throughput.mean_output_tokens, 6.0);
            check("prefill", phases.prefill_tok_s, 35.0 / 0.030);
            check("prefill share", phases.prefill_share, 30.0 / 105.0);
            check("decode", phases.decode_tok_s, 13.0 / 0.050);
            check("decode share", phases.decode_share, 50.0 / 105.0);
            check("mixed share", phases.mixed_share, 25.0 / 105.0);
            check("busy", phases.busy_share, 1.0);
            assert_eq!((summary.passes, summary.counts.output_tokens), (passes, 18 * passes as u64));
        }
    }

    #[test]
    fn drafts_and_steps_of_the_log() {
        let Summary { acceptance, steps, .. } = Summary::of(&[Pass::of(&eventful())]);
        assert_eq!((acceptance.drafting_steps, acceptance.drafted, acceptance.accepted), (4, 17, 9));
        assert_eq!((acceptance.rejected, acceptance.emitted, acceptance.tau), (2, 12, 3.25));
        assert_eq!(
            (acceptance.draft_acceptance, acceptance.evaluated_acceptance),
            (Some(9.0 / 17.0), Some(9.0 / 11.0))
        );
        let counts = [&steps.prefill, &steps.decode, &steps.mixed, &steps.drafting]
            .map(|cost| (cost.steps, cost.tokens, cost.time_ns() / 1_000_000));
        assert_eq!(counts, [(2, 3, 30), (3, 13, 50), (1, 2, 25), (2, 12, 40)]);
        assert_eq!(steps.prefill.times.draft_prefill, 2_000_000);
    }

    #[test]
    fn rejected_drafts_are_no_output_and_phases_sum_to_the_wall() {
        // As in llama.cpp#3649: 503 tokens come out and 42 drafts are rejected; 545 is never the numerator.
        let mut log = vec![arrived(0, 0), admitted(0, 0), token(50, 0), step(50, [10, 0, 0], plain(49, 1))];
        let mut at = 50;
        for _ in 0..42 {
            at += 60;
            log.extend([drafted(at, 0, 2, [2, 1], true), step(at, [0, 1, 2], drafting(10, 45, 5))]);
        }
        for _ in 0..418 {
            at += 40;
            log.extend([token(at, 0), step(at, [0, 1, 0], plain(38, 2))]);
        }
        log.push(finished(at, 0, 503));
        let summary = Summary::of(&[Pass::of(&milliseconds(log))]);
        let seconds = f64::from(50 + 42 * 60 + 418 * 40) / 1e3;
        assert_eq!(
            (summary.counts.output_tokens, summary.acceptance.rejected, summary.counts.miscounted),
            (503, 42, 0)
        );
        check("output", summary.throughput.output_tok_s, 503.0 / seconds);
        check("decode", summary.phases.decode_tok_s, 502.0 / (seconds - 0.05));
        let busy = summary.phases.busy_share.unwrap();
        assert!((busy - 1.0).abs() <= 0.02, "{busy}");
        assert_eq!(summary.phases.mixed_share, Some(0.0));
    }

    #[test]
    fn parts_of_a_latency_sum_to_it() {
        for timeline in &Pass::of(&eventful()).timelines {
            let (Some(ttft), Some(queue), Some(prefill)) =
                (timeline.ttft_ns(), timeline.queue_ns(), timeline.prefill_ns())
            else {
                continue;
            };
            assert_eq!(queue + timeline.draft_prefill_ns + prefill, ttft, "{timeline:?}");
            if let (Some(e2e), Some(tpot)) = (timeline.e2e_ns(), timeline.tpot_ns()) {
                check("E2E", Some(ttft as f64 + tpot * (timeline.tokens() - 1) as f64), e2e as f64);
            }
        }
    }

    #[test]
    fn a_request_whose_answer_is_empty_is_complete_and_divides_nothing() {
        // Two of 300 requests in one public report; here one of two.
        let log = milliseconds(vec![
            arrived(0, 0),
            admitted(0, 0),
            ended(9, 0, 0, Reason::Stop),
            arrived(0, 1),
            admitted(9, 1),
            token(20, 1),
            finished(20, 1, 1),
        ]);
        let summary = Summary::of(&[Pass::of(&log)]);
        assert_eq!((summary.counts.finished, summary.counts.empty, summary.counts.output_tokens), (2, 1, 1));
        let n = |spread: Option<Spread>| spread.map_or(0, |spread| spread.n);
        let Latency { ttft_ms, tpot_ms, itl_ms, e2e_ms, .. } = summary.latency;
        assert_eq!([ttft_ms, tpot_ms, itl_ms, e2e_ms].map(n), [1, 0, 0, 2]);
        let text = serde_json::to_string(&Summary::of(&[Pass::of(&log[..3])])).unwrap();
        assert!(!text.contains("NaN") && !text.contains("inf") && text.contains("\"ttft_ms\":null"), "{text}");
    }

    #[test]
    fn what_failed_or_was_cut_off_stands_apart() {
        // Ten done in 10 ms each, two failed at 30 s, three cut off.
        let mut log = Vec::new();
        for request in 0..10 {
            log.extend([
                arrived(0, request),
                admitted(0, request),
                token(5, request),
                token(10, request),
                finished(10, request, 2),
            ]);
        }
        for request in 10..12 {
            let failed = EventKind::Failed { request, why: "lost".into() };
            log.extend([arrived(0, request), admitted(0, request), token(7, request)]);
            log.push(Event { at: 30_000, kind: failed });
        }
        for request in 12..15 {
            log.extend([arrived(0, request), admitted(0, request), token(29_000, request), token(29_500, request)]);
        }
        let Summary { counts, latency, throughput, .. } = Summary::of(&[Pass::of(&milliseconds(log))]);
        assert_eq!((counts.finished, counts.failed, counts.unfinished), (10, 2, 3));
        assert_eq!((counts.output_tokens, counts.discarded_tokens), (20, 2 + 6));
        assert_eq!((latency.ttft_ms.unwrap().max, latency.e2e_ms.unwrap().max), (5.0, 10.0));
        check("output", throughput.output_tok_s, 20.0 / 30.0);
    }

    #[test]
    fn an_empty_or_idle_log_has_no_rates_and_does_not_panic() {
        for log in [vec![], vec![arrived(3, 0)], vec![arrived(3, 0), rejected(3, 0)]] {
            let summary = Summary::of(&[Pass::of(&log)]);
            assert_eq!(summary.throughput.output_tok_s, None);
            assert_eq!(summary.phases.decode_tok_s, None);
            assert_eq!((summary.latency.ttft_ms, summary.latency.jitter, summary.acceptance.tau), (None, None, 1.0));
        }
        assert_eq!(Summary::of(&[]).counts, Counts::default());
    }

    #[test]
    fn a_pass_has_the_rates_of_its_summary() {
        let pass = Pass::of(&eventful());
        let summary = Summary::of([&pass]);
        assert_eq!(pass.decode_tok_s(), summary.phases.decode_tok_s);
        assert_eq!(pass.output_tok_s(), summary.throughput.output_tok_s);
        assert_eq!((Pass::of(&[]).decode_tok_s(), Pass::of(&[]).output_tok_s()), (None, None));
    }

    #[test]
    fn passes_over_parts_of_the_requests_add_up() {
        let mut whole = Pass::of(&eventful());
        whole.merge(Pass::of(&eventful()));
        let (one, two) = (Summary::of(&[whole]), Summary::of(&vec![Pass::of(&eventful()); 2]));
        assert_eq!(Summary { passes: 2, ..one }, two);
    }

    #[test]
    fn a_summary_is_derived_again_from_a_stored_pass() {
        let pass = Pass::of(&eventful());
        let stored = serde_json::to_string(&pass).unwrap();
        let summary = Summary::of(&[serde_json::from_str(&stored).unwrap()]);
        assert_eq!(summary, Summary::of(&[pass]));
        let text = serde_json::to_string(&summary).unwrap();
        assert_eq!(serde_json::from_str::<Summary>(&text).unwrap().acceptance_counts, summary.acceptance_counts);
    }
}

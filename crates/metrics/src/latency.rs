//! Latencies of finished requests, and counts of all.
//!
//! Aborted, rejected and unfinished requests are counted and have no part in any latency.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use specquant_core::Reason;

use crate::itl::ItlConventions;
use crate::spread::Spread;
use crate::timeline::{Outcome, Timeline, Wait};

/// Latencies over finished requests, in milliseconds. A spread is `None` where no request has the value.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Latency {
    /// Queue time: first admission - arrival.
    pub queue_ms: Option<Spread>,
    /// The queue times summed over requests, split by what was waited for, in nanoseconds.
    pub queue_split: Wait,
    /// TTFT: first token - arrival, queue time included.
    pub ttft_ms: Option<Spread>,
    /// The part of the TTFT in which prompts entered the draft model.
    pub draft_prefill_ms: Option<Spread>,
    /// The rest of the TTFT: TTFT - queue - draft prefill.
    pub prefill_ms: Option<Spread>,
    /// TPOT: (last token - first token) / (n - 1), one value for each request with n > 1 tokens.
    pub tpot_ms: Option<Spread>,
    /// ITL: gaps between successive emissions, pooled over requests. An emission may bring several tokens.
    pub itl_ms: Option<Spread>,
    /// The same gaps as five tools count them.
    pub itl: ItlConventions,
    /// Tokens per emission, over the emissions that end a gap: sum of tokens / gaps. Stands beside the ITL.
    pub tokens_per_emission: Option<f64>,
    /// Share of gaps that are longer than 3 times the median gap.
    pub jitter: Option<f64>,
    /// E2E: finish - arrival.
    pub e2e_ms: Option<Spread>,
}

/// How many requests and tokens there were, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Counts {
    /// Requests in the log.
    pub requests: u64,
    /// Requests that are complete.
    pub finished: u64,
    /// Finished requests that generated an end-of-text token.
    pub ended_eos: u64,
    /// Finished requests whose output reached a stop string.
    pub ended_stop: u64,
    /// Finished requests that got as many tokens as they asked for.
    pub ended_length: u64,
    /// Finished requests that reached the end of the model's context.
    pub ended_context: u64,
    /// Finished requests without a token of output.
    pub empty: u64,
    /// Requests that were withdrawn.
    pub aborted: u64,
    /// Requests that were lost to an error of a model.
    pub failed: u64,
    /// Requests that could never be served.
    pub rejected: u64,
    /// Requests that the log leaves without an end.
    pub unfinished: u64,
    /// Prompt tokens of finished requests.
    pub prompt_tokens: u64,
    /// Output tokens of finished requests: the sum of their emissions.
    pub output_tokens: u64,
    /// Tokens that requests got which did not finish. They are not output.
    pub discarded_tokens: u64,
    /// Finished requests whose emissions do not add up to the reported number of tokens. Zero in a sound log.
    pub miscounted: u64,
    /// Times that a request lost its slots.
    pub preemptions: u64,
    /// Tokens computed again after preemptions.
    pub recomputed_tokens: u64,
    /// Prompt tokens that the KV cache held when their request was first admitted.
    pub cached_tokens: u64,
    /// Steps of a sequence in which a draft was wanted and could not be made.
    pub drafts_skipped: u64,
}

impl Latency {
    /// The latencies of the finished requests among `timelines`.
    pub fn of(timelines: &[&Timeline]) -> Latency {
        let finished: Vec<&Timeline> = timelines.iter().copied().filter(|timeline| timeline.is_finished()).collect();
        let gaps: Vec<_> = finished.iter().flat_map(|timeline| timeline.gaps()).collect();
        let share = |part: usize| (!gaps.is_empty()).then(|| part as f64 / gaps.len() as f64);
        let itl_ms = Spread::of(gaps.iter().map(|gap| ms(gap.ns)));
        let late = |median: f64| gaps.iter().filter(|gap| ms(gap.ns) > 3.0 * median).count();
        let mut queue_split = Wait::default();
        for timeline in &finished {
            queue_split.merge(&timeline.queue);
        }
        Latency {
            queue_ms: spread_ms(&finished, Timeline::queue_ns),
            queue_split,
            ttft_ms: spread_ms(&finished, Timeline::ttft_ns),
            draft_prefill_ms: spread_ms(&finished, |timeline| timeline.ttft_ns().map(|_| timeline.draft_prefill_ns)),
            prefill_ms: spread_ms(&finished, Timeline::prefill_ns),
            tpot_ms: Spread::of(finished.iter().filter_map(|timeline| timeline.tpot_ns()).map(|ns| ns / 1e6)),
            tokens_per_emission: share(gaps.iter().map(|gap| gap.n).sum()),
            jitter: itl_ms.and_then(|itl| share(late(itl.p50.value))),
            itl: ItlConventions::of(&gaps),
            itl_ms,
            e2e_ms: spread_ms(&finished, Timeline::e2e_ns),
        }
    }
}

impl Counts {
    /// Counts the requests of `timelines`.
    pub fn of(timelines: &[&Timeline]) -> Counts {
        let mut counts = Counts { requests: timelines.len() as u64, ..Counts::default() };
        for timeline in timelines {
            counts.preemptions += timeline.preemptions as u64;
            counts.recomputed_tokens += timeline.recomputed_tokens as u64;
            counts.cached_tokens += timeline.cached_tokens as u64;
            counts.drafts_skipped += timeline.drafts_skipped as u64;
            counts.end(timeline);
        }
        counts
    }

    fn end(&mut self, timeline: &Timeline) {
        let got = timeline.tokens();
        match timeline.end.as_ref().map(|end| &end.outcome) {
            Some(Outcome::Finished { reason, tokens }) => {
                self.finished += 1;
                self.prompt_tokens += timeline.prompt_tokens as u64;
                self.output_tokens += got as u64;
                self.miscounted += u64::from(got != *tokens);
                self.empty += u64::from(got == 0);
                *match reason {
                    Reason::Eos => &mut self.ended_eos,
                    Reason::Stop => &mut self.ended_stop,
                    Reason::Length => &mut self.ended_length,
                    Reason::Context => &mut self.ended_context,
                } += 1;
                return;
            }
            Some(Outcome::Aborted) => self.aborted += 1,
            Some(Outcome::Failed { .. }) => self.failed += 1,
            Some(Outcome::Rejected { .. }) => self.rejected += 1,
            None => self.unfinished += 1,
        }
        self.discarded_tokens += got as u64;
    }
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn spread_ms(timelines: &[&Timeline], value_ns: fn(&Timeline) -> Option<u64>) -> Option<Spread> {
    Spread::of(timelines.iter().filter_map(|timeline| value_ns(timeline)).map(ms))
}

//! What every metric is, under the name that it has in a record: the same word never means two things.
//!
//! A metric is exact if nothing in it reads a measured time, so that two runs of a spec agree to the digit; else timed.

use serde::Serialize;

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Definition {
    /// Its place in a cell's part of a record, such as `latency.ttft_ms`.
    pub id: &'static str,
    /// Its unit; empty for a plain number.
    pub unit: &'static str,
    /// Whether two runs must agree on it.
    pub kind: Kind,
    /// How it comes about.
    pub text: &'static str,
}

/// Whether a metric depends on time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Equal to the digit in two runs of a spec on one instruction-set path.
    Exact,
    /// Reads a measured time, and is known to an interval only.
    Timed,
}

const fn exact(id: &'static str, unit: &'static str, text: &'static str) -> Definition {
    Definition { id, unit, kind: Kind::Exact, text }
}

const fn timed(id: &'static str, unit: &'static str, text: &'static str) -> Definition {
    Definition { id, unit, kind: Kind::Timed, text }
}

/// Every metric of a summary, by its place there, and those that a record derives of several.
pub const DEFINITIONS: &[Definition] = &[
    exact("passes", "", "passes over the workload that are summed"),
    exact("counts.requests", "requests", "requests in the log"),
    exact("counts.finished", "requests", "requests that are complete"),
    exact("counts.ended_eos", "requests", "finished requests that generated an end-of-text token"),
    exact("counts.ended_stop", "requests", "finished requests whose output reached a stop string"),
    exact("counts.ended_length", "requests", "finished requests that got all tokens they asked for"),
    exact("counts.ended_context", "requests", "finished requests that reached the end of the context"),
    exact("counts.empty", "requests", "finished requests without a token of output"),
    exact("counts.aborted", "requests", "requests that were withdrawn"),
    exact("counts.failed", "requests", "requests that were lost to an error"),
    exact("counts.rejected", "requests", "requests that could never be served"),
    exact("counts.unfinished", "requests", "requests that the log leaves without an end"),
    exact("counts.prompt_tokens", "tokens", "prompt tokens of finished requests"),
    exact("counts.output_tokens", "tokens", "output tokens of finished requests, an end-of-text token included"),
    exact("counts.discarded_tokens", "tokens", "tokens of requests that did not finish; no output"),
    exact(
        "counts.miscounted",
        "requests",
        "finished requests whose emissions do not add up to their tokens; 0 in a sound log",
    ),
    exact("counts.preemptions", "", "times that a request lost its slots"),
    exact("counts.recomputed_tokens", "tokens", "tokens computed again after preemptions"),
    exact("counts.cached_tokens", "tokens", "prompt tokens that the KV cache held at a request's first admission"),
    exact("counts.drafts_skipped", "", "steps of a sequence in which a draft was wanted and could not be made"),
    timed("latency.queue_ms", "ms", "queue: first admission - arrival"),
    timed("latency.queue_split.pool_full_ns", "ns", "queue time in which the KV pool had no room, summed"),
    timed("latency.queue_split.batch_full_ns", "ns", "queue time in which the batch was full, summed"),
    timed("latency.queue_split.wait_window_ns", "ns", "queue time in which a batch waited for more requests, summed"),
    timed("latency.queue_split.unheld_ns", "ns", "queue time until the engine's next look at the queue, summed"),
    timed("latency.ttft_ms", "ms", "TTFT: first token - arrival = queue + draft prefill + prefill"),
    timed("latency.draft_prefill_ms", "ms", "part of the TTFT in which prompts entered the draft model"),
    timed("latency.prefill_ms", "ms", "TTFT - queue - draft prefill"),
    timed("latency.tpot_ms", "ms", "TPOT: (last token - first token) / (n - 1), of requests with n > 1 tokens"),
    timed("latency.itl_ms", "ms", "ITL: gap between successive emissions, whatever their tokens"),
    timed("latency.itl.per_emission_ms", "ms", "ITL as vLLM: one gap for each emission"),
    timed("latency.itl.per_token_ms", "ms", "ITL as SGLang: gap / tokens, once for each token"),
    timed(
        "latency.itl.at_arrival_ms",
        "ms",
        "ITL as inference-perf: the gap for an emission's first token, 0 for its others",
    ),
    timed("latency.itl.per_emission_mean_ms", "ms", "ITL as genai-perf: gap / tokens, once for each emission"),
    timed("latency.itl.by_run_mean_ms", "ms", "gap / mean tokens per emission of the run"),
    exact("latency.tokens_per_emission", "tokens", "tokens / emissions, over the emissions that end a gap"),
    timed("latency.jitter", "", "gaps longer than 3 x the median gap / gaps"),
    timed(
        "latency.e2e_ms",
        "ms",
        "E2E: finish - arrival = TTFT + TPOT x (n - 1) where the last token ends the request",
    ),
    timed("throughput.wall_s", "s", "last event - first arrival, summed over passes and parts"),
    timed("throughput.output_tok_s", "tok/s", "output tokens / wall"),
    timed("throughput.input_tok_s", "tok/s", "prompt tokens of finished requests / wall"),
    timed("throughput.total_tok_s", "tok/s", "prompt and output tokens of finished requests / wall"),
    timed("throughput.characters_s", "1/s", "characters of output text / wall"),
    timed("throughput.bytes_s", "B/s", "bytes of output text / wall"),
    timed("throughput.user_tok_s", "tok/s", "sum of (n - 1) / sum of (last token - first token)"),
    timed("throughput.requests_s", "1/s", "finished requests / wall"),
    exact("throughput.mean_output_tokens", "tokens", "output tokens / finished requests"),
    timed("phases.prefill_tok_s", "tok/s", "prefill rows / time of steps with prefill rows only"),
    timed("phases.prefill_share", "", "time of those steps / time of all steps"),
    timed("phases.decode_tok_s", "tok/s", "output tokens / time of steps with decode and verify rows only"),
    timed("phases.decode_share", "", "time of those steps / time of all steps"),
    timed("phases.mixed_share", "", "time of steps with rows of both kinds / time of all steps"),
    timed("phases.busy_share", "", "time of all steps / wall"),
    timed("steps.prefill", "", "steps, rows, tokens and phase times of prefill steps"),
    timed("steps.decode", "", "the same of decode steps"),
    timed("steps.mixed", "", "the same of mixed steps"),
    timed("steps.drafting", "", "the same of decode steps that verify a draft"),
    exact("acceptance.drafting_steps", "", "N: steps of a sequence with at least one draft token"),
    exact("acceptance.drafted", "tokens", "draft tokens proposed, those after a rejection included"),
    exact("acceptance.accepted", "tokens", "draft tokens that were output"),
    exact("acceptance.rejected", "tokens", "draft tokens that were tried and rejected"),
    exact("acceptance.emitted", "tokens", "tokens output by drafting steps"),
    exact("acceptance.draft_acceptance", "", "accepted / drafted"),
    exact("acceptance.evaluated_acceptance", "", "alpha: accepted / (accepted + rejected)"),
    exact("acceptance.tau", "tokens", "1 + accepted / N"),
    exact("acceptance.emitted_per_step", "tokens", "emitted / N; below tau where outputs were cut inside a step"),
    exact(
        "acceptance.survival_by_position",
        "",
        "by position i: steps that accepted at least i tokens / steps that drafted at least i",
    ),
    exact(
        "acceptance.conditional_by_position",
        "",
        "by position i: steps that accepted at least i tokens / steps that drafted at least i and accepted i - 1",
    ),
    exact("acceptance_counts.by_length", "", "drafting steps by draft length and number accepted"),
    exact("acceptance_counts.emitted", "tokens", "tokens output by drafting steps"),
    exact("kv.target.slots", "tokens", "slots of the target's KV cache"),
    timed(
        "kv.target.live",
        "",
        "token states: slots that held tokens of open requests / all slots, over the time of steps",
    ),
    timed("kv.target.shared", "", "the part of them that several requests read / all slots"),
    timed("kv.target.reservation", "", "slots held for a token that came later / all slots"),
    timed(
        "kv.target.internal",
        "",
        "internal fragmentation: slots held for a token that never came, or by ended requests / all slots",
    ),
    timed(
        "kv.target.external",
        "",
        "external fragmentation: slots that nobody held while a request waited for room, or lost to block sizes / all slots",
    ),
    timed("kv.target.cached", "", "slots of tokens kept for requests to come / all slots"),
    timed("kv.target.free", "", "slots that nobody held while nobody waited for room / all slots"),
    exact("kv.target.peak_live", "tokens", "most tokens of open requests in the cache at once"),
    exact("kv.draft.slots", "tokens", "slots of the draft model's KV cache"),
    timed("kv.draft.live", "", "slots of the draft model's cache that held tokens of open requests / all its slots"),
    timed(
        "kv.draft.reserved",
        "",
        "slots of the draft model's cache held or promised for tokens to come / all its slots",
    ),
    timed(
        "kv.draft.cached",
        "",
        "slots of the draft model's cache of tokens kept for requests to come / all its slots",
    ),
    exact("kv.draft.peak_live", "tokens", "most tokens of open requests in the draft model's cache at once"),
    exact(
        "kv.hit_rate",
        "",
        "prompt tokens found in the cache at first admission / prompt tokens of admitted requests",
    ),
    exact("kv.recomputed_share", "", "tokens computed again after preemptions / rows that the target ran"),
];

/// Metrics of a cell beside its summary.
pub const DERIVED: &[Definition] = &[
    timed(
        "vs_plain",
        "",
        "geometric mean over rounds of rates / those of the same cell without speculation in the round, not the quotient of the rates of all rounds; Student-t on log ratios",
    ),
    timed("vs_control", "", "rates / those of plain f16 decoding of the same requests, paired by round"),
    timed("goodput", "1/s", "finished requests that got a token and meet every latency limit / wall"),
    timed("cost", "", "price per hour x wall / output tokens"),
    timed("cold_ttft_ms", "ms", "time to load target and draft + median TTFT"),
    timed(
        "prediction",
        "",
        "decode speed-up predicted from T(n), the draft's cost and acceptance, and the residual by phase",
    ),
    exact(
        "quality",
        "",
        "perplexity-2 over the first chunks of the bundled text, each begun with the token that the tokenizer puts before a text, if it puts one; against the run's widest format of the same target its ratio, Kullback-Leibler divergence in nats and share of equal likeliest tokens; for a quantized draft the share of the target's likeliest tokens that it finds likeliest, and that share of the f16 draft",
    ),
    timed(
        "utilization",
        "",
        "MFU and MBU of the target's forwards in prefill and in decode steps: FLOPs, and bytes of weights, keys and values that had to be read, / their time / the measured peak",
    ),
    timed("costs", "", "costs of drafting steps in units of the control's decode step"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::log::*;
    use crate::summary::{Pass, Summary};
    use serde_json::Value;
    use specquant_core::PhaseTimes;

    /// Paths of the values of a summary. A spread, the steps of a kind and a list are one value.
    fn paths(prefix: &str, value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) if !fields.contains_key("p50") && !fields.contains_key("times") => {
                for (key, value) in fields {
                    let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                    paths(&path, value, found);
                }
            }
            _ => drop(found.insert(prefix.to_string())),
        }
    }

    #[test]
    fn every_metric_is_defined_once_and_every_definition_is_a_metric() {
        let log = [
            arrived(0, 0),
            admitted(1, 0),
            token(2, 0),
            drafted(4, 0, 2, [2, 1], true),
            step(4, [0, 1, 2], PhaseTimes { target: 2, ..PhaseTimes::default() }),
            finished(5, 0, 3),
        ];
        let summary = serde_json::to_value(Summary::of(&[Pass::of(&log)])).unwrap();
        let mut found = BTreeSet::new();
        paths("", &summary, &mut found);
        let defined: BTreeSet<String> = DEFINITIONS.iter().map(|definition| definition.id.to_string()).collect();
        assert_eq!(found, defined);
        assert_eq!(defined.len(), DEFINITIONS.len());
    }
}

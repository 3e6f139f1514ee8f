//! Tokens and requests per second.
//!
//! Every rate is a sum over a sum, never a mean of rates, and only output counts: neither rejected draft tokens nor
//! the tokens of requests that did not finish.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use specquant_core::TextSize;

use crate::latency::Counts;
use crate::steps::StepCosts;
use crate::timeline::Timeline;

/// What came out of the whole run per second of its wall time. Rates are `None` where no time passed.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Throughput {
    /// Wall time: last event - first arrival, summed over passes, in seconds.
    pub wall_s: f64,
    /// Output TPS: output tokens / wall.
    pub output_tok_s: Option<f64>,
    /// Prompt tokens of finished requests / wall.
    pub input_tok_s: Option<f64>,
    /// Prompt and output tokens of finished requests / wall: total TPS.
    pub total_tok_s: Option<f64>,
    /// Characters of output text / wall. Tokenizers differ; characters do not.
    pub characters_s: Option<f64>,
    /// Bytes of output text in UTF-8 / wall.
    pub bytes_s: Option<f64>,
    /// Output TPS of one user, after the first token: sum of (n - 1) / sum of (last token - first token).
    pub user_tok_s: Option<f64>,
    /// RPS: finished requests / wall.
    pub requests_s: Option<f64>,
    /// Output tokens / finished requests. Stands beside the RPS.
    pub mean_output_tokens: Option<f64>,
}

/// Rates of steps of one kind, with the share of step time that they cover. `None` where there are no such steps.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct PhaseRates {
    /// Prefill rows / time of prefill steps. Rows that a preempted sequence computes again are among them.
    pub prefill_tok_s: Option<f64>,
    /// Time of prefill steps / time of all steps.
    pub prefill_share: Option<f64>,
    /// Tokens output in decode steps / time of decode steps, of all sequences together.
    pub decode_tok_s: Option<f64>,
    /// Time of decode steps / time of all steps.
    pub decode_share: Option<f64>,
    /// Time of mixed steps, which is never apportioned, / time of all steps.
    pub mixed_share: Option<f64>,
    /// Time of all steps / wall. Far from 1 where the engine idled between arrivals.
    pub busy_share: Option<f64>,
}

impl Throughput {
    /// Throughput of the finished requests among `timelines`, which `counts` counts.
    pub fn of(timelines: &[&Timeline], counts: &Counts, wall_ns: u64) -> Throughput {
        let finished = timelines.iter().filter(|timeline| timeline.is_finished());
        let (mut tokens, mut prompts, mut ns, mut text) = (0, 0, 0, TextSize::default());
        for timeline in finished {
            prompts += timeline.prompt_tokens as u64;
            text.characters += timeline.text.characters;
            text.bytes += timeline.text.bytes;
            tokens += timeline.tokens().saturating_sub(1) as u64;
            ns += timeline.generation_ns().unwrap_or(0);
        }
        Throughput {
            wall_s: wall_ns as f64 / 1e9,
            output_tok_s: per_second(counts.output_tokens, wall_ns),
            input_tok_s: per_second(prompts, wall_ns),
            total_tok_s: per_second(prompts + counts.output_tokens, wall_ns),
            characters_s: per_second(text.characters as u64, wall_ns),
            bytes_s: per_second(text.bytes as u64, wall_ns),
            user_tok_s: per_second(tokens, ns),
            requests_s: per_second(counts.finished, wall_ns),
            mean_output_tokens: ratio(counts.output_tokens, counts.finished),
        }
    }
}

impl PhaseRates {
    /// Rates of the steps of a run that took `wall_ns`.
    pub fn of(steps: &StepCosts, wall_ns: u64) -> PhaseRates {
        let all_ns = steps.time_ns();
        PhaseRates {
            prefill_tok_s: per_second(steps.prefill.rows.prefill as u64, steps.prefill.time_ns()),
            prefill_share: ratio(steps.prefill.time_ns(), all_ns),
            decode_tok_s: per_second(steps.decode.tokens, steps.decode.time_ns()),
            decode_share: ratio(steps.decode.time_ns(), all_ns),
            mixed_share: ratio(steps.mixed.time_ns(), all_ns),
            busy_share: ratio(all_ns, wall_ns),
        }
    }
}

fn per_second(count: u64, ns: u64) -> Option<f64> {
    (ns > 0).then(|| count as f64 * 1e9 / ns as f64)
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

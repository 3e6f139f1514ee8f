//! A run's record: what was run, on what machine, what each cell achieved, and how far it can be trusted.

use schemars::JsonSchema;
use serde::Serialize;
use specquant_core::{RunSpec, Speculation};
use specquant_metrics::{Cost, Goodput, Paired, Prediction, Quality, Summary, Utilization};

use crate::round::Ended;
use crate::run::Run;

/// A run and what came of it.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Record {
    /// What was run.
    #[serde(flatten)]
    pub run: Run,
    /// Rounds that ended.
    pub rounds: usize,
    /// Times, UTC, at which it was taken up again after it had been cut off.
    pub resumed: Vec<String>,
    /// Why it ended; `None` while it runs or if it was cut off.
    pub ended: Option<Ended>,
    /// Whether it was interrupted or cut off before it had what was asked for.
    pub interrupted: bool,
    /// What of it cannot have been measured: somebody has changed it. Not there for a sound run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub invalid: Vec<String>,
    /// How far its numbers can be trusted.
    pub trust: Trust,
    /// What the machine did in all rounds that disturbs a measurement.
    pub disturbance: Disturbance,
    /// One for each cell.
    pub arms: Vec<Arm>,
}

/// What the rounds say of their own noise.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Trust {
    /// Decode rate of the control's second pass over its first one's, with its interval at 99.9%; `None` where nothing
    /// was decoded. The truth is 1.
    pub repeat: Option<Paired>,
    /// Whether that interval misses 1, so that something other than chance moved the rates.
    pub noisy: bool,
    /// The smallest relative change of a decode rate that this run would have found in 80% of cases, for the arm where
    /// this is largest; `None` for a single round.
    pub detectable: Option<f64>,
    /// One hash over the output tokens, their logits' bits and the acceptance counts of every cell: equal in two runs of
    /// a spec on one instruction-set path. `None` if the rounds of this run differ in them.
    pub digest: Option<String>,
}

/// What disturbed the rounds. `None` where the operating system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Disturbance {
    /// Mean share of processor time that a hypervisor gave to others.
    pub steal_share: Option<f64>,
    /// Times that a processor slowed down for heat.
    pub throttled: Option<u64>,
    /// Pages of the program that had to be read from disk.
    pub major_faults: Option<u64>,
    /// Lowest and highest clock rate seen, MHz.
    pub mhz: Option<[f64; 2]>,
    /// Highest load average seen.
    pub load: Option<f64>,
}

/// What one cell achieved.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Arm {
    /// The cell.
    pub spec: RunSpec,
    /// Whether its output was right.
    pub verdict: Verdict,
    /// All its metrics over all rounds.
    pub summary: Summary,
    /// Against the same cell without speculation; `None` for that cell itself.
    pub vs_plain: Option<Speedup>,
    /// Against the control, plain f16 decoding of the same requests by the same target where the run has such a cell;
    /// `None` for the control itself.
    pub vs_control: Option<Speedup>,
    /// Requests within the spec's latency limits, where it has any.
    pub goodput: Option<Goodput>,
    /// What tokens cost, where the spec has a price.
    pub cost: Option<Cost>,
    /// TTFT of a process that has yet to load its models: load time + median TTFT, milliseconds.
    pub cold_ttft_ms: Option<f64>,
    /// Predicted against measured speed-up over the own plain cell; `None` where it drafted nothing.
    pub prediction: Option<Prediction>,
    /// What its weight formats cost in quality; `None` where that was left out.
    pub quality: Option<Quality>,
    /// How much of the machine the target's forwards used.
    pub utilization: Utilization,
    /// What its steps cost; `None` where it drafted nothing.
    pub costs: Option<Costs>,
}

/// Ratios to another arm, paired by round; above 1 this arm is faster.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Speedup {
    /// Ratio of decode rates, `decode_tok_s`.
    pub decode: Paired,
    /// Ratio of output rates over wall time, `output_tok_s`, prefill included.
    pub end_to_end: Paired,
    /// The p value of `decode`, adjusted by Holm's procedure for all comparisons of the run; `None` for a single round.
    pub adjusted_p: Option<f64>,
}

/// Costs of a speculative arm's steps in units of its control's.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Costs {
    /// c: time of one draft token / time of a plain step's target forward.
    pub draft_token: f64,
    /// T(k+1) / T(1): time of a verifying target forward / time of a plain step's.
    pub verify: f64,
    /// Mean draft tokens in a drafting step.
    pub mean_draft: f64,
    /// Whole drafting step / whole plain step. Speculation pays where tau is above this.
    pub step: f64,
}

/// The worst check of all rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The reference of other arms, equal to itself in every round.
    Reference,
    /// Equal to its control to the bit.
    SameBits,
    /// Sampled, and the same in every round.
    Sampled,
    /// Wrong output, first in this round.
    Differs {
        /// The first round that differs.
        round: usize,
        /// The first request that differs.
        request: u64,
        /// Its first token that differs.
        token: usize,
    },
}

impl Record {
    /// Whether any arm's output was wrong.
    pub fn has_wrong_output(&self) -> bool {
        self.arms.iter().any(|arm| matches!(arm.verdict, Verdict::Differs { .. }))
    }
}

/// How an arm is called in messages.
pub(crate) fn label(spec: &RunSpec) -> String {
    match spec.speculation {
        Speculation::Off => spec.weights.to_string(),
        speculation => format!("{} {speculation}", spec.weights),
    }
}

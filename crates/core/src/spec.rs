//! A run as a value: everything that decides what is measured, and nothing that only decides where results go.
//!
//! A `RunSpec` is one cell of an experiment; `expand` makes cells of a spec file.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::axis::{Batching, Kv, KvDtype, Quantizer, Reserve, Speculation, WeightFormat};
use crate::dist::Sampling;
use crate::slo::Slo;

/// One cell of an experiment.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunSpec {
    /// Target model: a Hugging Face folder, or `bundled`.
    pub target: String,
    /// Draft model: a Hugging Face folder, or `bundled`. Loaded only where speculation needs it.
    pub draft: String,
    /// Weight format of the target.
    #[schemars(with = "String")]
    pub weights: WeightFormat,
    /// Weight format of the draft; the target's unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub draft_weights: Option<WeightFormat>,
    /// How weights of both models are quantized, in formats of 8 bits and fewer: `mse` or `rtn`.
    #[schemars(with = "String")]
    pub quantizer: Quantizer,
    /// KV allocator.
    #[schemars(with = "String")]
    pub kv: Kv,
    /// Tokens that the KV cache of each model has slots for; enough for all sequences that run together unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kv_pool: Option<usize>,
    /// KV cache format of target and draft; what goes with the weights unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub kv_dtype: Option<KvDtype>,
    /// Which requests run together.
    #[schemars(with = "String")]
    pub batching: Batching,
    /// Most prompt tokens that one step takes in for a sequence.
    pub chunk: usize,
    /// Where draft tokens come from.
    #[schemars(with = "String")]
    pub speculation: Speculation,
    /// Where the models run: `auto` or `cpu`.
    pub device: String,
    /// Worker threads; 0 takes one for each physical core.
    pub threads: usize,
    /// Seed of sampling and of the order of arms.
    pub seed: u64,
    /// Rounds, each a pass over every cell; as many as `precision` asks for unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<usize>,
    /// Unless `rounds` is given, rounds end when the ends of every ratio's 95% interval are at most this far from its
    /// middle, as a relative change.
    pub precision: f64,
    /// No round begins that would probably end later than this after the first began. Text such as `45s` or `3m`;
    /// 45 s where neither this nor `rounds` is given.
    #[serde(with = "crate::budget", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub time_budget: Option<Duration>,
    /// Latency limits, such as `ttft:200,tpot:50` in milliseconds; the goodput counts requests that keep them.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub slo: Option<Slo>,
    /// What the machine costs in an hour; the cost of tokens follows from it, in the same unit of money.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Chunks of the bundled text, of 512 tokens or the context, over which the quality of every target is measured; 0
    /// leaves it out.
    pub quality_chunks: usize,
    /// How tokens are picked.
    pub sampling: Sampling,
    /// What is asked of the models.
    pub workload: Workload,
}

/// The requests of a run.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workload {
    /// A JSONL file with a `prompt` on each line, or `bundled`.
    pub prompts: String,
    /// How many prompts to take, spread evenly over the file; 0 takes all.
    pub num_prompts: usize,
    /// Tokens to generate for each prompt.
    pub max_new_tokens: usize,
    /// Whether to generate past an end-of-text token.
    pub ignore_eos: bool,
    /// Texts that end an output.
    pub stop: Vec<String>,
    /// Whether prompts get the special tokens around them that the tokenizer asks for, such as one that begins a text.
    #[serde(skip_serializing_if = "is_true")]
    pub special_tokens: bool,
    /// Whether lines of the prompts' file that hold no prompt, and prompts that do not fit into the model's context, are skipped
    /// and counted instead of refused.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub skip_invalid: bool,
}

/// What goes without saying is not written, so that older specs and newer ones are the same.
fn is_true(value: &bool) -> bool {
    *value
}

impl Default for RunSpec {
    fn default() -> Self {
        RunSpec {
            target: "bundled".into(),
            draft: "bundled".into(),
            weights: WeightFormat::F16,
            draft_weights: None,
            quantizer: Quantizer::Mse,
            kv: Kv::Paged { block: 16 },
            kv_pool: None,
            kv_dtype: None,
            batching: Batching::Continuous { limit: 1 },
            chunk: 512,
            speculation: Speculation::Off,
            device: "auto".into(),
            threads: 0,
            seed: 0,
            rounds: None,
            precision: 0.01,
            time_budget: None,
            slo: None,
            price: None,
            quality_chunks: 4,
            sampling: Sampling::GREEDY,
            workload: Workload::default(),
        }
    }
}

impl Default for Workload {
    fn default() -> Self {
        Workload {
            prompts: "bundled".into(),
            num_prompts: 24,
            max_new_tokens: 64,
            ignore_eos: false,
            stop: Vec::new(),
            special_tokens: true,
            skip_invalid: false,
        }
    }
}

/// Slots of the largest KV pool.
const MOST_SLOTS: usize = 1 << 28;

/// More tokens of an output than any context has.
const MOST_TOKENS: usize = 1 << 20;

/// More rounds than any run needs.
pub const MOST_ROUNDS: usize = 10_000;

impl RunSpec {
    /// For how long rounds may begin; `None` without a limit.
    pub fn time_limit(&self) -> Option<Duration> {
        self.time_budget.or(if self.rounds.is_none() { Some(Duration::from_secs(45)) } else { None })
    }

    /// Weight format of the draft model.
    pub fn draft_weights(&self) -> WeightFormat {
        self.draft_weights.unwrap_or(self.weights)
    }

    /// The same cell without speculation: the control that a speculative cell is compared with. It has no draft model,
    /// so cells with different ones share it.
    pub fn plain(&self) -> RunSpec {
        let RunSpec { draft, draft_weights, .. } = RunSpec::default();
        RunSpec { speculation: Speculation::Off, draft, draft_weights, ..self.clone() }
    }

    /// Says which value is out of its range.
    pub fn validate(&self) -> Result<()> {
        self.sampling.validate()?;
        ensure!(self.chunk >= 1, "chunk 0: a step must take in at least one prompt token");
        if let Some(rounds) = self.rounds {
            ensure!((1..=MOST_ROUNDS).contains(&rounds), "rounds {rounds}: must lie in 1..={MOST_ROUNDS}");
        }
        let precision = self.precision;
        ensure!(
            (1e-6..1.0).contains(&precision),
            "precision {precision:e}: must lie between 1e-6 and 1, such as 0.01 for intervals of 1% to each side"
        );
        let price = self.price.unwrap_or(1.0);
        ensure!(price.is_finite() && price > 0.0, "price {price}: must be above 0 for an hour");
        ensure!(self.threads <= 1024, "threads {}: must lie in 0..=1024; 0 takes every physical core", self.threads);
        ensure!(
            self.kv_pool.is_none_or(|slots| (1..=MOST_SLOTS).contains(&slots)),
            "kv_pool {}: must lie in 1..={MOST_SLOTS} tokens",
            self.kv_pool.unwrap_or(0)
        );
        let known = self.workload.ignore_eos && self.workload.stop.is_empty();
        if let Kv::Buddy { reserve: Reserve::Pow2 | Reserve::Oracle } = self.kv {
            ensure!(
                known,
                "kv {}: it knows how long outputs get: set ignore_eos and no stop texts, or use buddy:max",
                self.kv
            );
        }
        let most = self.workload.max_new_tokens;
        ensure!(most >= 1, "max_new_tokens 0: at least one token must be generated");
        ensure!(most <= MOST_TOKENS, "max_new_tokens {most}: must lie in 1..={MOST_TOKENS}");
        match self.device.as_str() {
            "auto" | "cpu" => Ok(()),
            other => bail!("unknown device `{other}`: use auto or cpu"),
        }
    }
}

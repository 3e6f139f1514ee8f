//! What happened in a run and when. Every latency, rate and acceptance figure is a fold over these.
//!
//! Times are nanoseconds from the start of the run, read after the thing has happened.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::batch::Reach;
use crate::usage::KvUsage;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Nanoseconds from the start of the run.
    pub at: u64,
    /// What happened.
    #[serde(flatten)]
    pub kind: EventKind,
}

/// The kinds of things that happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum EventKind {
    /// A request entered the queue; `at` is its scheduled arrival.
    Arrived {
        /// The request.
        request: u64,
        /// Tokens of its prompt.
        prompt: usize,
    },
    /// A request waits; logged when the reason changes.
    Held {
        /// The request.
        request: u64,
        /// What it waits for.
        reason: Held,
    },
    /// A request joined the running set, for the first time or after a preemption.
    Admitted {
        /// The request.
        request: u64,
        /// Of its tokens, the first ones that the KV cache held already.
        cached: usize,
    },
    /// A request lost its slots to an older one and waits to be computed again.
    Preempted {
        /// The request.
        request: u64,
        /// Tokens whose keys and values it lost; what is still in the cache when it is admitted again need not be recomputed.
        recompute: usize,
    },
    /// A request holds so many slots of the target's KV cache from now on; logged when that changes.
    Holds {
        /// The request.
        request: u64,
        /// Slots, shared ones included; those that went with a reservation and nobody asked for are not among them.
        slots: usize,
    },
    /// The engine ran one step; `at` is its end, and the tokens that it gave are stamped no later.
    Step {
        /// Token rows that the target ran, by kind.
        rows: Rows,
        /// How far those rows reach.
        reach: Reach,
        /// Where the step's time went; the parts sum to the time since the step began.
        times: PhaseTimes,
        /// Slots of the target's KV cache while it ran, those for the step's tokens granted and not yet live.
        kv: KvUsage,
        /// The same of the draft's; without slots where there is none.
        draft_kv: KvUsage,
    },
    /// A request got tokens.
    Tokens {
        /// The request.
        request: u64,
        /// How many, at least 1; only tokens that are output.
        n: usize,
        /// Tokens drafted for this step; positions after a rejection are among them.
        drafted: usize,
        /// Draft tokens among the `n`.
        accepted: usize,
        /// Whether a draft token was tried and rejected.
        rejected: bool,
    },
    /// A draft was wanted and could not be made, for want of draft cache or context.
    DraftSkipped {
        /// The request.
        request: u64,
    },
    /// A request is complete.
    Finished {
        /// The request.
        request: u64,
        /// Why it ended.
        reason: Reason,
        /// Tokens of output.
        tokens: usize,
        /// Their text, without a stop string and what follows it.
        text: TextSize,
    },
    /// A request was withdrawn.
    Aborted {
        /// The request.
        request: u64,
    },
    /// A request was lost to an error of a model.
    Failed {
        /// The request.
        request: u64,
        /// The error.
        why: String,
    },
    /// A request can never be served.
    Rejected {
        /// The request.
        request: u64,
        /// Why not.
        why: String,
    },
}

/// How long a text is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextSize {
    /// Unicode scalar values.
    pub characters: usize,
    /// Bytes in UTF-8.
    pub bytes: usize,
}

impl TextSize {
    /// The size of a text.
    pub fn of(text: &str) -> TextSize {
        TextSize { characters: text.chars().count(), bytes: text.len() }
    }
}

/// What a waiting request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// The KV cache has no room for it.
    PoolFull,
    /// As many requests are running as may, or a batch is running that nobody may join.
    BatchFull,
    /// The batch that it will be in waits for more requests.
    WaitWindow,
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It generated an end-of-text token.
    Eos,
    /// Its output contains a stop string.
    Stop,
    /// It has the number of tokens that it asked for.
    Length,
    /// It reached the end of the model's context.
    Context,
}

/// Token rows of one step, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Rows {
    /// Rows that enter a prompt, or a preempted sequence, into the cache.
    pub prefill: usize,
    /// Rows of the newest token of a sequence.
    pub decode: usize,
    /// Rows of draft tokens under verification.
    pub verify: usize,
}

/// Nanoseconds of one step, by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// The draft model entering prompts into its cache.
    pub draft_prefill: u64,
    /// Proposing draft tokens.
    pub draft: u64,
    /// The target's forward.
    pub target: u64,
    /// Making distributions of the target's answers, from which tokens are drawn.
    pub sample: u64,
    /// Deciding which draft tokens stand and what follows them.
    pub verify: u64,
    /// Giving back slots and catching up the caches.
    pub keep: u64,
    /// Everything else: admission, batch assembly, text, bookkeeping.
    pub other: u64,
}

impl PhaseTimes {
    /// The step's whole time.
    pub fn total(&self) -> u64 {
        self.draft_prefill + self.draft + self.target + self.sample + self.verify + self.keep + self.other
    }
}

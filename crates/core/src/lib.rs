//! The nouns of specquant: what is asked (`spec`, `request`), what a model is told and answers (`batch`, `scores`,
//! `model`), how a token is chosen (`dist`, `random`), and what happened (`event`).
//!
//! Everything here is plain data or a pure function; nothing touches a file, a clock or a thread.

mod axis;
mod batch;
mod budget;
mod clock;
mod dist;
mod event;
mod expand;
mod hash;
mod model;
mod random;
mod request;
mod scores;
mod slo;
mod spec;
mod text;
mod usage;

pub use axis::{Batching, Kv, KvDtype, Quantizer, Reserve, Speculation, WeightFormat};
pub use batch::{Batch, Reach, Run, Score, SeqId, SlotCopy};
pub use clock::Clock;
pub use dist::{Dist, Sampling, dist, pick};
pub use event::{Event, EventKind, Held, PhaseTimes, Reason, Rows, TextSize};
pub use expand::expand;
pub use hash::FileHash;
pub use model::{Memory, Model, ModelInfo, Work};
pub use random::{Rng, Use};
pub use request::Request;
pub use scores::{Greedy, Scores, greedy};
pub use slo::Slo;
pub use spec::{MOST_ROUNDS, RunSpec, Workload};
pub use text::{BARE, Decoded, Decoder, Template, Text, TextState};
pub use usage::KvUsage;

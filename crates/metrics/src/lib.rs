//! What the events of a run mean: timelines, latencies, rates, step costs and acceptance, with the statistics and the
//! analytic models that they are compared with.
//!
//! Everything is a pure fold over `&[Event]` or over numbers; nothing reads a clock or a file. Times that were stamped
//! are integers and end in `_ns`; derived latencies are `f64` and end in `_ms`, rates in `_tok_s` or `_s`. Counts are
//! integers throughout, so that two runs that did the same work have equal counts to the digit.

mod acceptance;
mod bootstrap;
mod definitions;
mod holm;
mod itl;
mod kv;
mod latency;
#[cfg(test)]
mod log;
mod paired;
mod prediction;
mod quality;
mod service;
pub mod speculation;
mod spread;
mod steps;
mod summary;
mod throughput;
mod timeline;
mod utilization;

pub use acceptance::{Acceptance, AcceptanceRates, DraftLength, upper_share};
pub use definitions::{DEFINITIONS, DERIVED, Definition, Kind};
pub use holm::holm;
pub use itl::ItlConventions;
pub use kv::{DraftKvShares, KvShares, KvTime, SlotTime};
pub use latency::{Counts, Latency};
pub use paired::{Interval, Paired, paired, resampled};
pub use prediction::{PhaseCosts, Prediction, RowCosts};
pub use quality::{Divergence, Divergences, Likelihood, Match, Matches, Perplexity, Predictions, Quality};
pub use service::{Cost, Goodput};
pub use spread::{Percentile, Spread};
pub use steps::{StepCost, StepCosts, StepKind, StepMeans};
pub use summary::{Kv, Pass, Summary};
pub use throughput::{PhaseRates, Throughput};
pub use timeline::{Emission, End, Gap, Outcome, Timeline, Wait, timelines};
pub use utilization::{Peaks, PhaseUse, Utilization};

//! What a run leaves behind: its rounds as they ended, the record derived from them, and the tables and sentences
//! derived from the record.
//!
//! Rounds are the only thing that is measured; everything else here can be made again from them.

mod conclusion;
mod derive;
mod details;
mod kv;
mod names;
mod record;
mod round;
mod run;
#[cfg(test)]
mod sample;
mod schema;
mod sound;
mod store;
mod table;
mod trust;

pub use conclusion::conclusion;
pub use derive::intervals;
pub use details::details;
pub use kv::kv;
pub use record::{Arm, Costs, Disturbance, Record, Speedup, Trust, Verdict};
pub use round::{ArmPass, Check, Digest, Ended, Line, Log, Round};
pub use run::{Run, SCHEMA, control};
pub use schema::schema;
pub use store::{RunFolder, read_log, read_log_anyway, read_spec, write};
pub use table::{header, markdown, text};
pub use trust::{caution, latency, trust};

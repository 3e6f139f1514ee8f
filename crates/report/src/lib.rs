//! What a run leaves behind: its rounds as they ended, the record derived from them, and the tables and sentences
//! derived from the record.
//!
//! Rounds are the only thing that is measured; everything else here can be made again from them.

mod conclusion;
mod names;
mod record;
mod round;
#[cfg(test)]
mod sample;
mod store;
mod table;

pub use conclusion::{caution, conclusion};
pub use record::{Arm, Costs, Record, Run, SCHEMA, Speedup, Verdict};
pub use round::{ArmPass, Check, Digest, Round};
pub use store::RunFolder;
pub use table::{header, markdown, text};

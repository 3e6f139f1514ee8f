//! The model crate from outside: agreement with golden values and with an independent reference, bits that do not depend
//! on how a step is made up, and the errors of broken checkpoints.

#![allow(clippy::unwrap_used, reason = "all of this is tests; only their entry points are known as such to clippy")]

mod begin;
mod errors;
mod folders;
mod golden;
mod invariance;
mod reference;
mod runs;
mod tiny;

//! What must hold of the whole engine: every test runs `Engine` and `DraftModel` over fake models.
//!
//! An exactness check returns its complaint, so that a test can also show that the check catches a planted mistake.

mod batches;
mod batching;
mod distribution;
mod endings;
mod greedy;
mod oracles;
mod rig;
mod rollback;
mod scheduling;
mod timing;

//! What is asked of the models: prompts read from a file or bundled, some of them chosen, and requests made of them.
//!
//! Nothing here depends on chance: the same spec and the same file give the same requests. Only `dataset` touches files.

mod choose;
mod dataset;
mod generate;
mod prompts;
mod warm;

pub use choose::choose;
pub use dataset::{Dataset, bundled, eval_text, hash, prompts, text};
pub use generate::{Generated, generate};
pub use prompts::{Parsed, Prompt, parse};
pub use warm::warm_up;

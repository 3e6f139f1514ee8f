//! Language models as specquant runs them: a Hugging Face folder, or the bundled pair, to a Llama decoder on burn behind
//! `specquant_core::Model`, and its tokenizer behind `specquant_core::Text`.
//!
//! burn's types end at this crate's door, and a model that has been loaded cannot fail for what was in its files.

mod bundled;
mod config;
mod decoder;
mod grow;
mod guard;
mod json;
mod load;
mod rows;
mod tokenizer;

pub use bundled::bundled;
pub use config::Config;
pub use grow::{Grown, Shape, grow};
pub use load::{DtypeSize, FileSize, LoadOptions, ModelFiles, Summary, load};
pub use tokenizer::{Tokenizer, same_vocabulary};

//! `cargo xtask fuzz [SECONDS]`: mutated inputs of every kind, one target after the other.
//!
//! The targets stand in `crates/cli/examples/fuzz.rs`; one that finds something says how to repeat it, and the task fails.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;

/// What is fuzzed.
const TARGETS: [&str; 6] = ["safetensors", "index", "config", "tokenizer", "prompts", "rounds"];

/// A few cells with a draft, so that a log has everything in it.
const RUN: &str =
    "run --num-prompts 2 --max-new-tokens 8 --rounds 1 --weights f16 --speculation off,draft:2 --quality-chunks 1";

/// Runs every target for so many seconds.
pub(crate) fn run(root: &Path, seconds: &str) -> Result<bool> {
    let _: u64 = seconds.parse().with_context(|| format!("{seconds}: give the seconds for each target"))?;
    command::run(&mut command::cargo(root, "build --release --locked -p specquant-cli --bins --example fuzz"))?;
    let folder = root.join("target/fuzz");
    let _ = std::fs::remove_dir_all(&folder);
    let program = |name: &str| Command::new(root.join("target/release").join(name));
    command::run(program("specquant").args(RUN.split_whitespace()).arg("--out").arg(&folder).current_dir(root))?;
    for target in TARGETS {
        command::run(program("examples/fuzz").args([target, seconds]).arg(&folder))?;
    }
    Ok(true)
}

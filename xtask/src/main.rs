//! Automation of the workspace: `cargo xtask ci`, `tidy`, `equivalence`, `fuzz`, `power`, `peer-gguf`, `peer-bench`.
//!
//! Nothing here is part of the measured program, and every task can be repeated by hand: a command that a task
//! starts is printed before it runs.

mod ci;
mod command;
mod fuzz;
mod peer;
mod power;
mod tidy;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

const USAGE: &str = "\
usage: cargo xtask TASK

  ci           everything that has to pass before a change is merged
  tidy         the rules of the house that the compiler does not know
  equivalence  the full product of the test that speculative output equals plain output
  fuzz [SECONDS]
               mutated inputs of every kind that is read, 60 seconds each unless given
  power        whether runs find planted effects, and none where there is none; about 40 minutes
  peer-gguf DIR
               the model in DIR as target/peer/NAME.gguf, for llama.cpp; needs python3 with the packages gguf and numpy
  peer-bench DIR --llama DIR ...
               the model in DIR here and in llama.cpp, in turns; the options are
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match perform(&words) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Six words need no argument parser, and the first `cargo xtask` after a clone builds quicker without one.
fn perform(words: &[String]) -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies outside the workspace")?;
    let passed = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ci"] => ci::run(root),
        ["tidy"] => tidy::run(root)?,
        ["fuzz"] => fuzz::run(root, "60")?,
        ["fuzz", seconds] => fuzz::run(root, seconds)?,
        ["power"] => power::run(root)?,
        ["peer-gguf", folder] => peer::gguf(root, folder)?,
        ["peer-bench", ..] => return peer::bench(root, &words[1..]),
        ["equivalence"] => command::run(&mut equivalence(root)).map(|()| true)?,
        _ => {
            eprint!("{USAGE}{}", peer::OPTIONS);
            return Ok(ExitCode::from(2));
        }
    };
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The feature widens the test from all pairs of axis values to all combinations.
fn equivalence(root: &Path) -> Command {
    command::cargo(root, "test --release --locked -p specquant-cli --features full-equivalence --test equivalence")
}

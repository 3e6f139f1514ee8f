//! `cargo xtask power`: does a run find what is there, and nothing where nothing is? Sessions with an arm that is slower by a
//! known share, and sessions of a control against itself.
//!
//! It takes about 40 minutes and is no part of `ci`, since machines differ in what they can see.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command;

/// Sessions for each share, and the time that each may take.
const SESSIONS: usize = 10;
const BUDGET: &str = "60s";
/// Sessions of a control against itself, each of a second or two.
const REPEATS: usize = 200;

/// Runs the sessions and prints what they found. Whether that is what was planted.
pub(crate) fn run(root: &Path) -> Result<bool> {
    command::run(&mut command::cargo(root, "build --release --locked -p specquant-cli --features debug-knobs"))?;
    let program = root.join("target/release/specquant");
    let folder = root.join("target/power");
    let mut passed = true;
    // The second cell does the same as the first: no prompt is longer than either chunk.
    for (share, least, most) in [("0.10", 10, 10), ("0.03", 8, 10), ("0", 0, 1)] {
        let mut found = 0;
        for seed in 1..=SESSIONS {
            let words = format!("--chunk 512,511 --debug-slow 1={share} --precision 0.001 --time-budget {BUDGET}");
            let record = session(&program, &folder, &words, seed)?;
            let judged = &record["arms"][1]["vs_control"];
            let p = judged["adjusted_p"].as_f64().context("no p value")?;
            let ratio = &judged["decode"];
            println!("slower by {share}: {} rounds, ratio {}, p {p:.2e}", record["rounds"], ratio["ratio"]);
            found += usize::from(p < 0.05);
        }
        println!("slower by {share}: called in {found} of {SESSIONS} sessions of {BUDGET}");
        passed &= (least..=most).contains(&found);
    }
    let mut noisy = 0;
    for seed in 1..=REPEATS {
        let words = "--weights f16 --num-prompts 6 --max-new-tokens 16 --rounds 10";
        noisy += usize::from(session(&program, &folder, words, seed)?["trust"]["noisy"] == true);
    }
    println!("control against itself: {noisy} of {REPEATS} sessions labelled noisy");
    Ok(passed && noisy * 100 <= REPEATS)
}

/// The record of one run of plain cells.
fn session(program: &Path, folder: &Path, words: &str, seed: usize) -> Result<Value> {
    let _ = std::fs::remove_dir_all(folder);
    let mut run = Command::new(program);
    run.args(["run", "--json", "--speculation", "off", "--seed", &seed.to_string(), "--out"]).arg(folder);
    let output = run.args(words.split(' ')).output().context("cannot start specquant")?;
    ensure!(output.status.success(), "a session failed: {}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_slice(&output.stdout)?)
}

//! The measurement itself: both sides in turns, the side that goes first changing with the turn.
//!
//! A turn goes through everything once, so that a slow minute falls on all of it, and the two sides of a ratio are neighbours
//! in time. Each measurement is a process of its own with a warm-up, on both sides.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use specquant_machine::{Machine, Moment};
use specquant_metrics::paired;

use super::arguments::Arguments;
use super::files::{self, GgufFile};
use super::ours::{OurSample, Ours};
use super::pair::{Pair, REPETITIONS, Work};
use super::record::{Record, Row};
use super::theirs::{TheirSample, Theirs};
use crate::command::{self, shown};

/// Confidence of the intervals.
const LEVEL: f64 = 0.95;

/// Writes the files, builds our program, measures.
pub(crate) fn run(root: &Path, arguments: &Arguments) -> Result<Record> {
    let sides = Sides { arguments, ours: Ours::build(root)?, theirs: Theirs::find(&arguments.llama) };
    let files = files::write(root, arguments)?;
    let start = Moment::now();
    let mut tests = Vec::new();
    for (pair, file) in arguments.pairs.iter().zip(&files) {
        for work in arguments.works() {
            tests.push(sides.test(*pair, work, file)?);
        }
    }
    for turn in 0..arguments.turns {
        for test in &mut tests {
            sides.turn(test, turn)?;
        }
    }
    Ok(Record {
        model: arguments.model.display().to_string(),
        machine: Machine::read(),
        simd: simd(),
        load_before: start.since(&start).load,
        conditions: Moment::now().since(&start),
        threads: arguments.threads,
        turns: arguments.turns,
        rows: tests.into_iter().map(Test::row).collect::<Result<_>>()?,
        ours: sides.ours,
        theirs: sides.theirs,
        files,
    })
}

/// Both programs and what they are told.
struct Sides<'a> {
    arguments: &'a Arguments,
    ours: Ours,
    theirs: Theirs,
}

/// A pair at one work, and what was measured so far.
struct Test {
    pair: Pair,
    work: Work,
    probe: [f64; 2],
    ours: Command,
    theirs: Command,
    our_samples: Vec<OurSample>,
    their_samples: Vec<TheirSample>,
}

impl Sides<'_> {
    /// Finds out llama.cpp's faster setting.
    fn test(&self, pair: Pair, work: Work, file: &GgufFile) -> Result<Test> {
        let threads = self.arguments.threads;
        let probe = self.theirs.probe(&file.path, work, threads)?;
        let flash = if probe[1] > probe[0] { "1" } else { "0" };
        let mut theirs = self.theirs.command(&file.path, work, threads, flash);
        theirs.args(["-r", REPETITIONS]);
        let ours = self.ours.command(&self.arguments.model, pair, work, threads);
        println!("$ {}\n$ {}", shown(&ours), shown(&theirs));
        Ok(Test { pair, work, probe, ours, theirs, our_samples: Vec::new(), their_samples: Vec::new() })
    }

    /// Measures both sides once.
    fn turn(&self, test: &mut Test, turn: usize) -> Result<()> {
        let ours_first = turn.is_multiple_of(2);
        for ours in [ours_first, !ours_first] {
            if ours {
                test.our_samples.push(OurSample::parse(&command::output(&mut test.ours)?)?);
            } else {
                let samples = TheirSample::parse(&command::output(&mut test.theirs)?)?;
                test.their_samples.push(samples.into_iter().next().context("llama-bench measured nothing")?);
            }
        }
        let (Some(ours), Some(theirs)) = (test.our_samples.last(), test.their_samples.last()) else { return Ok(()) };
        let kv = [&theirs.type_k, &theirs.type_v];
        ensure!(kv.iter().all(|kind| **kind == ours.kv()), "keys and values are {} here and {kv:?} there", ours.kv());
        let (work, turns) = (test.work.label(), self.arguments.turns);
        let (pair, ours, theirs) = (test.pair.ours, ours.rate()?, theirs.rate()?);
        eprintln!("turn {} of {turns}: {pair}, {work}: {ours:.2} tok/s, llama.cpp {theirs:.2} tok/s", turn + 1);
        Ok(())
    }
}

impl Test {
    /// The result of all turns.
    fn row(self) -> Result<Row> {
        let ours_tok_s = self.our_samples.iter().map(OurSample::rate).collect::<Result<Vec<_>>>()?;
        let theirs_tok_s = self.their_samples.iter().map(TheirSample::rate).collect::<Result<Vec<_>>>()?;
        let (our_sample, their_sample) = self.our_samples.last().zip(self.their_samples.last()).context("no turn")?;
        Ok(Row {
            pair: self.pair,
            work: self.work,
            ratio: paired(&ours_tok_s, &theirs_tok_s, LEVEL)?,
            ours_tok_s,
            theirs_tok_s,
            their_probe_tok_s: self.probe,
            our_command: shown(&self.ours),
            their_command: shown(&self.theirs),
            our_device: our_sample.device().to_string(),
            our_kv: our_sample.kv().to_string(),
            their_sample: their_sample.clone(),
        })
    }
}

/// The vector instructions that the processor has, where the operating system tells.
fn simd() -> Vec<String> {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    let families = ["sse4", "avx", "fma", "f16c", "amx"];
    let is_vector = |flag: &&str| families.iter().any(|family| flag.starts_with(family));
    flags.split_whitespace().filter(is_vector).map(str::to_string).collect()
}

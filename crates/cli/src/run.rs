//! `specquant run`: every cell over the same prompts, in rounds, to a table and a conclusion.
//!
//! A round that has ended is stored before the next begins, so nothing that was measured can be lost.

mod bench;
mod check;
mod order;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use specquant_core::{RunSpec, expand};
use specquant_machine::utc_stamp;
use specquant_report::{ArmPass, Check, Digest, Record, Round, Run, RunFolder};

use crate::args::RunArgs;
use crate::interrupt::Interrupt;
use crate::overlay::run_table;
use crate::{Ended, note, show};

pub(crate) use bench::{Bench, Pass};

/// Prompts that warm each cell up.
const WARM_UP: usize = 2;

/// Runs the comparison and prints it.
pub(crate) fn run(args: &RunArgs, json: bool) -> Result<Ended> {
    let table = run_table(args)?;
    let cells = match &args.spec {
        Some(path) => expand(&table).with_context(|| path.display().to_string()),
        None => expand(&table),
    };
    let cells = with_controls(&cells?);
    let mut bench = Bench::load(&cells, |cell| specquant_workload::prompts(&cell.workload))?;
    let began = utc_stamp();
    let run = bench.describe(began);
    let path = args.out.clone().unwrap_or_else(|| default_folder(&run));
    let mut folder = RunFolder::create(&path, &toml::to_string(&table)?)?;
    let interrupt = Interrupt::listen()?;
    let rounds = rounds(&mut bench, &run, &mut folder, &interrupt)?;
    if rounds.is_empty() {
        folder.discard()?;
        note("interrupted before the first round ended: nothing was measured");
        return Ok(Ended::Interrupted);
    }
    let interrupted = rounds.len() < cells[0].rounds;
    let record = Record::derive(&run, &rounds, interrupted)?;
    show(&if json { serde_json::to_string_pretty(&record)? } else { screen(&record, &folder) })?;
    Ok(match (record.has_wrong_output(), interrupted) {
        (true, _) => Ended::Wrong,
        (false, true) => Ended::Interrupted,
        (false, false) => Ended::Done,
    })
}

/// Every cell after its control, which is added where the spec has none.
fn with_controls(cells: &[RunSpec]) -> Vec<RunSpec> {
    let mut all: Vec<RunSpec> = Vec::new();
    for cell in cells {
        let plain = cell.plain();
        if !all.contains(&plain) {
            let own = cells.iter().filter(|other| **other != plain && other.plain() == plain).cloned();
            all.push(plain.clone());
            all.extend(own);
        }
    }
    all
}

/// A folder named by time and machine that is not there yet.
fn default_folder(run: &Run) -> PathBuf {
    let name = format!("{}-{}", run.began, run.machine.label());
    let folder = Path::new("runs");
    let mut path = folder.join(&name);
    let mut n = 1;
    while path.exists() {
        n += 1;
        path = folder.join(format!("{name}-{n}"));
    }
    path
}

/// Runs and stores rounds until all are done or the user interrupts.
fn rounds(bench: &mut Bench, run: &Run, folder: &mut RunFolder, interrupt: &Interrupt) -> Result<Vec<Round>> {
    let (arms, wanted) = (run.cells.len(), run.cells[0].rounds);
    let progress = progress((arms * (wanted + 1)) as u64);
    let stop = || interrupt.asked();
    for arm in 0..arms {
        progress.set_message(format!("warm-up {}", run.cells[arm].speculation));
        if bench.pass(arm, WARM_UP, &stop)?.is_none() {
            return Ok(Vec::new());
        }
        progress.inc(1);
    }
    let (mut rounds, mut first) = (Vec::new(), Vec::new());
    for number in 1..=wanted {
        let order = order::order(arms, number, run.cells[0].seed);
        let mut passes: Vec<Option<Pass>> = (0..arms).map(|_| None).collect();
        for &arm in &order {
            progress.set_message(format!("round {number}/{wanted} {}", run.cells[arm].speculation));
            passes[arm] = bench.pass(arm, usize::MAX, &stop)?;
            progress.inc(1);
        }
        // A pass is missing only if the user interrupted; the round then did not end.
        let Some(passes) = passes.into_iter().collect::<Option<Vec<Pass>>>() else { break };
        let checks: Vec<Check> = (0..arms).map(|arm| check::check(&run.cells, arm, &passes, first.get(arm))).collect();
        let round = Round { number, order, passes: passes.iter().zip(checks).map(arm_pass).collect() };
        folder.append(&round)?;
        rounds.push(round);
        if !std::io::stderr().is_terminal() {
            // A log has no bar.
            note(&format!("round {number} of {wanted} ended"));
        }
        let record = Record::derive(run, &rounds, number < wanted)?;
        folder.write(&record, &report(&record))?;
        if first.is_empty() {
            first = passes;
        }
    }
    progress.finish_and_clear();
    Ok(rounds)
}

fn arm_pass((pass, check): (&Pass, Check)) -> ArmPass {
    let digest = |output: &specquant_engine::Output| Digest {
        request: output.request,
        tokens: output.tokens.len(),
        digest: format!("{:016x}", output.digest),
    };
    ArmPass { pass: pass.measured.clone(), digests: pass.outputs.iter().map(digest).collect(), check }
}

/// A bar on stderr, hidden where stderr is no terminal.
fn progress(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {msg} [{elapsed} of about {duration}]") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

fn report(record: &Record) -> String {
    format!("{}\n{}\n", specquant_report::markdown(record), notes(record).join("\n"))
}

/// What the terminal shows of a run.
fn screen(record: &Record, folder: &RunFolder) -> String {
    let bundled = record.run.cells.iter().all(|cell| cell.target == "bundled");
    let next = if bundled { " Next: your own pair, run --target DIR --draft DIR" } else { "" };
    format!(
        "{}\n\n{}\n{}\nSaved {} (record.json, report.md).{next}",
        specquant_report::header(record),
        specquant_report::text(record),
        notes(record).join("\n"),
        folder.path().display()
    )
}

/// What must be known to read the table, and what it means.
fn notes(record: &Record) -> Vec<String> {
    specquant_report::caution(record).into_iter().chain([specquant_report::conclusion(record)]).collect()
}

//! `specquant run`: every cell over the same prompts, in rounds, to a table and a conclusion.
//!
//! A round that has ended is stored before the next begins, so nothing that was measured can be lost.

mod bench;
mod check;
mod plan;
mod session;
mod warm;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use specquant_core::{RunSpec, expand};
use specquant_engine::Wall;
use specquant_machine::utc_stamp;
use specquant_metrics::Interval;
use specquant_report::{Line, Log, Record, Run, RunFolder, control, intervals};

use crate::args::RunArgs;
use crate::interrupt::Interrupt;
use crate::overlay::run_table;
use crate::{Ended, note, show};

pub(crate) use bench::Bench;
use plan::Plan;
use session::Session;

/// Runs the comparison and prints it.
pub(crate) fn run(args: &RunArgs, json: bool) -> Result<Ended> {
    let table = run_table(args)?;
    let cells = match &args.spec {
        Some(path) => expand(&table).with_context(|| path.display().to_string()),
        None => expand(&table),
    };
    let cells = with_controls(&cells?);
    let mut bench = Bench::load(&cells, |cell| specquant_workload::prompts(&cell.workload))?;
    let plan = Plan::of(&cells, &bench.requests());
    let interrupt = Interrupt::listen()?;
    let began = utc_stamp();
    let Some(warm_up) = warm_up(&mut bench, &cells, &interrupt)? else {
        note("interrupted before the first round ended: nothing was measured");
        return Ok(Ended::Interrupted);
    };
    let run = bench.describe(began, plan.parts, warm_up);
    let path = args.out.clone().unwrap_or_else(|| default_folder(&run));
    let mut folder = RunFolder::create(&path, &toml::to_string(&table)?)?;
    folder.append(&Line::Run(Box::new(run.clone())))?;
    let mut log = Log { run, rounds: Vec::new(), resumed: Vec::new(), ended: None };
    measure(&mut bench, plan, &mut log, &mut folder, &interrupt)?;
    if log.rounds.is_empty() {
        folder.discard()?;
        note("interrupted before the first round ended: nothing was measured");
        return Ok(Ended::Interrupted);
    }
    let record = Record::derive(&log)?;
    folder.write(&record, &report(&record))?;
    show(&if json { serde_json::to_string_pretty(&record)? } else { screen(&record, folder.path()) })?;
    Ok(ended(&record))
}

/// How the command ends that made this record.
fn ended(record: &Record) -> Ended {
    match (record.has_wrong_output(), record.interrupted) {
        (true, _) => Ended::Wrong,
        (false, true) => Ended::Interrupted,
        (false, false) => Ended::Done,
    }
}

/// Warms every cell up. `None` if the user interrupted.
fn warm_up(bench: &mut Bench, cells: &[RunSpec], interrupt: &Interrupt) -> Result<Option<Vec<usize>>> {
    let progress = progress();
    let mut passes = Vec::new();
    for (at, cell) in cells.iter().enumerate() {
        progress.set_message(format!("warm-up of {} {}", cell.weights, cell.speculation));
        let Some(warm) = bench.warm_up(at, &|| interrupt.asked())? else { return Ok(None) };
        passes.push(warm);
    }
    progress.finish_and_clear();
    Ok(Some(passes))
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

/// Adds rounds to the log and the folder until they are enough or the user interrupts.
fn measure(bench: &mut Bench, plan: Plan, log: &mut Log, folder: &mut RunFolder, interrupt: &Interrupt) -> Result<()> {
    let (cells, clock, progress) = (log.run.cells.clone(), Wall::start(), progress());
    let (counts, again) = (bench.requests().iter().map(|requests| requests.len()).collect::<Vec<_>>(), control(&cells));
    let mut pass = |arm: usize, part: usize| {
        let cell = if arm == cells.len() { again } else { arm };
        bench.pass(cell, plan.range(part, counts[cell]), &|| interrupt.asked())
    };
    let mut keep = |log: &Log| {
        let Some(round) = log.rounds.last() else { return Ok(()) };
        folder.append(&Line::Round(round.clone()))?;
        progress.set_message(state(log)?);
        // Deriving takes longer the more rounds there are; what is on disk can always be derived again.
        if round.number.is_power_of_two() {
            let record = Record::derive(log)?;
            folder.write(&record, &report(&record))?;
            if !std::io::stderr().is_terminal() {
                // A log has no bar.
                note(&state(log)?);
            }
        }
        Ok(())
    };
    progress.set_message("round 1");
    let ended = Session { cells: &cells, plan, clock: &clock, pass: &mut pass }.run(log, &mut keep)?;
    progress.finish_and_clear();
    log.ended = Some(ended);
    if log.rounds.is_empty() { Ok(()) } else { folder.append(&Line::Ended(ended)) }
}

/// How far a run has come.
fn state(log: &Log) -> Result<String> {
    let (made, spec) = (log.rounds.len(), &log.run.cells[0]);
    let widest = intervals(log)?.iter().map(Interval::resolution).fold(f64::NAN, f64::max);
    let wanted =
        spec.rounds.map_or(format!("of ±{:.1}% wanted", 100.0 * spec.precision), |n| format!("{made} of {n} rounds"));
    Ok(format!("{made} rounds ended, widest interval ±{:.1}%, {wanted}", 100.0 * widest))
}

/// A spinner on stderr, hidden where stderr is no terminal.
fn progress() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn report(record: &Record) -> String {
    format!("{}\n{}\n", specquant_report::markdown(record), notes(record).join("\n"))
}

/// What the terminal shows of a run.
fn screen(record: &Record, folder: &Path) -> String {
    let bundled = record.run.cells.iter().all(|cell| cell.target == "bundled");
    let next = if bundled { " Next: your own pair, run --target DIR --draft DIR" } else { "" };
    format!(
        "{}\n\n{}\n{}\nSaved {} (record.json, report.md).{next}",
        specquant_report::header(record),
        specquant_report::text(record),
        notes(record).join("\n"),
        folder.display()
    )
}

/// What must be known to read the table, and what it means.
fn notes(record: &Record) -> Vec<String> {
    specquant_report::caution(record).into_iter().chain([specquant_report::conclusion(record)]).collect()
}

//! A run with its models loaded and warm, ready to make rounds.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};
use specquant_core::{Clock, RunSpec};
use specquant_engine::Wall;
use specquant_machine::utc_stamp;
use specquant_metrics::Interval;
use specquant_report::{Line, Log, Record, Run, RunFolder, control, intervals};

use super::bench::{Bench, Known};
use super::plan::Plan;
use super::print;
use super::session::Session;
use crate::interrupt::Interrupt;
use crate::note;

/// Models, plan, and what is known of the run.
pub(crate) struct Prepared {
    bench: Bench,
    plan: Plan,
    /// Nanoseconds from the end of loading to the first round.
    spent: u64,
    /// What is known before the first round.
    pub(crate) run: Run,
}

impl Prepared {
    /// Loads the models of the cells and warms every cell up. `None` if the user interrupted.
    pub(crate) fn new(cells: &[RunSpec], interrupt: &Interrupt) -> Result<Option<Prepared>> {
        let progress = progress();
        stage(&progress, "loading the models");
        let mut bench = Bench::load(cells, |cell| specquant_workload::prompts(&cell.workload))?;
        let plan = Plan::of(cells, &bench.requests());
        let (began, clock) = (utc_stamp(), Wall::start());
        stage(&progress, "measuring what the machine can do");
        let peaks = bench.peaks()?;
        let (mut warm_up, mut row_costs, mut known) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (at, cell) in cells.iter().enumerate() {
            let (number, all, weights, speculation) = (at + 1, cells.len(), cell.weights, cell.speculation);
            stage(&progress, &format!("warming up cell {number} of {all}: {weights} {speculation}"));
            let Some(passes) = bench.warm_up(at, &|| interrupt.asked())? else { return Ok(None) };
            warm_up.push(passes);
            row_costs.push(bench.row_costs(at, &mut known)?);
        }
        stage(&progress, "measuring the quality of the weight formats");
        let quality = bench.quality()?;
        progress.finish_and_clear();
        bench.hash()?;
        let run = bench.describe(Known { began, parts: plan.parts, peaks, warm_up, row_costs, quality });
        Ok(Some(Prepared { bench, plan, spent: clock.now(), run }))
    }

    /// Makes a cell slower from now on.
    #[cfg(feature = "debug-knobs")]
    pub(crate) fn slow(&mut self, slow: Option<super::slowed::Slow>) {
        self.bench.slow = slow;
    }

    /// Adds rounds to the log and the folder until they are enough or the user interrupts.
    pub(crate) fn measure(&mut self, log: &mut Log, folder: &mut RunFolder, interrupt: &Interrupt) -> Result<()> {
        let Prepared { bench, plan, spent, run } = self;
        let (cells, clock, progress) = (run.cells.clone(), Wall::start(), progress());
        let counts: Vec<usize> = bench.requests().iter().map(|requests| requests.len()).collect();
        let again = control(&cells);
        let mut pass = |arm: usize, part: usize| {
            let cell = if arm == cells.len() { again } else { arm };
            bench.pass(cell, plan.range(part, counts[cell]), &|| interrupt.asked())
        };
        let mut keep = |log: &Log| keep(log, folder, &progress);
        stage(&progress, "measuring, first round");
        let mut session = Session { cells: &cells, plan: *plan, clock: &clock, spent: *spent, pass: &mut pass };
        let ended = session.run(log, &mut keep)?;
        progress.finish_and_clear();
        log.ended = Some(ended);
        if log.rounds.is_empty() { Ok(()) } else { folder.append(&Line::Ended(ended)) }
    }
}

/// Stores the last round of a log.
fn keep(log: &Log, folder: &mut RunFolder, progress: &ProgressBar) -> Result<()> {
    let Some(round) = log.rounds.last() else { return Ok(()) };
    folder.append(&Line::Round(Box::new(round.clone())))?;
    progress.set_message(state(log)?);
    // Deriving takes longer the more rounds there are, and what is on disk can be derived again at any time.
    if round.number.is_power_of_two() {
        let record = Record::derive(log)?;
        folder.write(&record, &print::report(&record))?;
        if !std::io::stderr().is_terminal() {
            // A file has no spinner.
            note(&state(log)?);
        }
    }
    Ok(())
}

/// How far a run has come.
fn state(log: &Log) -> Result<String> {
    let (made, spec) = (log.rounds.len(), &log.run.cells[0]);
    let rounds = spec.rounds.map_or(format!("{made} rounds"), |wanted| format!("{made} of {wanted} rounds"));
    let widest = intervals(log)?.iter().map(Interval::resolution).reduce(f64::max);
    let width = widest.map_or(String::new(), |widest| format!(", widest interval ±{:.1}%", 100.0 * widest));
    let wanted = match spec.rounds {
        None if widest.is_some() => format!(", ±{:.1}% wanted", 100.0 * spec.precision),
        _ => String::new(),
    };
    Ok(format!("{rounds}{width}{wanted}"))
}

/// Says what is being done: in the spinner, or in a line of its own where stderr is no terminal.
fn stage(progress: &ProgressBar, what: &str) {
    progress.set_message(what.to_string());
    if !std::io::stderr().is_terminal() {
        note(what);
    }
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

//! `specquant run`: every cell over the same prompts, in rounds, to a table and a conclusion.
//!
//! A round that has ended is stored before the next begins, so nothing that was measured can be lost.

mod bench;
mod check;
mod dry;
mod plan;
mod prepared;
mod print;
mod quality;
mod role;
mod rows;
mod session;
#[cfg(feature = "debug-knobs")]
mod slowed;
mod warm;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use specquant_core::{RunSpec, expand};
use specquant_report::{Line, Log, Record, Run, RunFolder, read_log, read_log_anyway, read_spec};

use crate::args::{RerunArgs, RunArgs};
use crate::interrupt::Interrupt;
use crate::overlay::run_table;
use crate::{Ended, note, show};

pub(crate) use bench::Bench;
use prepared::Prepared;

/// Runs the comparison and prints it, or what else the flags ask for.
pub(crate) fn run(args: &RunArgs, json: bool) -> Result<Ended> {
    if let Some(folder) = &args.resume {
        let alone = RunArgs { resume: None, ..args.clone() } == RunArgs::default();
        ensure!(alone, "--resume takes up the spec of {}: give no other flag", folder.display());
        return resume(folder, json);
    }
    let spec = toml::to_string(&run_table(args)?)?;
    let named = args.spec.as_ref().map(|path| path.display().to_string());
    if args.print_spec {
        cells(&spec, named.as_deref())?;
        return show(spec.trim_end()).map(|()| Ended::Done);
    }
    if args.dry_run {
        return dry::dry(&cells(&spec, named.as_deref())?).map(|()| Ended::Done);
    }
    let record = Start {
        spec: &spec,
        named: named.as_deref(),
        out: args.out.as_deref(),
        #[cfg(feature = "debug-knobs")]
        slow: args.debug_slow.as_deref().map(slowed::Slow::parse).transpose()?,
    };
    let record = record.run()?;
    finish(record, json)
}

/// Runs a stored run's spec once more, in a folder of its own, and says whether the same came out.
pub(crate) fn rerun(args: &RerunArgs, json: bool) -> Result<Ended> {
    let old = Record::derive(&read_log(&args.folder)?).with_context(|| args.folder.display().to_string())?;
    let spec = read_spec(&args.folder)?;
    let named = args.folder.join("spec.toml").display().to_string();
    let start = Start {
        spec: &spec,
        named: Some(&named),
        out: args.out.as_deref(),
        #[cfg(feature = "debug-knobs")]
        slow: None,
    };
    let Some((record, folder)) = start.run()? else { return finish(None, json) };
    let same = record.trust.digest.is_some() && record.trust.digest == old.trust.digest;
    let ended = finish(Some((record, folder)), json)?;
    let digest = |digest: &Option<String>| digest.clone().unwrap_or("none".into());
    if same {
        note(&format!("Same exact digest as {}.", args.folder.display()));
        return Ok(ended);
    }
    note(&format!(
        "Other exact digest than {}, {}: tokens or acceptance differ. Models, prompts, program version and instruction set \
         must be the same; there: {} {}",
        args.folder.display(),
        digest(&old.trust.digest),
        old.run.build.version,
        old.run.device,
    ));
    Ok(if ended == Ended::Done { Ended::Wrong } else { ended })
}

/// Takes up a run that was cut off.
fn resume(path: &Path, json: bool) -> Result<Ended> {
    let spec = read_spec(path)?;
    let cells = cells(&spec, Some(&path.join("spec.toml").display().to_string()))?;
    let (mut folder, mut log) = RunFolder::resume(path)?;
    let done = !matches!(log.ended, None | Some(specquant_report::Ended::Interrupted));
    ensure!(!done, "{}: this run has ended; `specquant rerun` runs its spec once more", path.display());
    let interrupt = Interrupt::listen()?;
    let Some(mut prepared) = Prepared::new(&cells, &interrupt)? else {
        // Interrupted once more, it still has the rounds that it had.
        return if log.rounds.is_empty() {
            finish(None, json)
        } else {
            report(path, false, json).map(|_| Ended::Interrupted)
        };
    };
    let now = prepared.run.clone();
    log.run.same(&now).with_context(|| format!("{}: cannot be resumed here", path.display()))?;
    folder.append(&Line::Resumed(now.began))?;
    log.resumed.push(prepared.run.began.clone());
    prepared.measure(&mut log, &mut folder, &interrupt)?;
    finish(close(&log, folder)?, json)
}

/// A run in a folder of its own.
struct Start<'a> {
    /// The spec as text.
    spec: &'a str,
    /// What messages call the spec, if it is not of flags alone.
    named: Option<&'a str>,
    /// The folder; one named by time and machine unless given.
    out: Option<&'a Path>,
    #[cfg(feature = "debug-knobs")]
    slow: Option<slowed::Slow>,
}

impl Start<'_> {
    /// Makes the run. `None` if the user interrupted before the first round ended.
    fn run(&self) -> Result<Option<(Record, PathBuf)>> {
        let cells = cells(self.spec, self.named)?;
        let interrupt = Interrupt::listen()?;
        let Some(mut prepared) = Prepared::new(&cells, &interrupt)? else { return Ok(None) };
        #[cfg(feature = "debug-knobs")]
        prepared.slow(self.slow);
        let run = prepared.run.clone();
        let path = self.out.map_or_else(|| default_folder(&run), Path::to_path_buf);
        let mut folder = RunFolder::create(&path, self.spec)?;
        if let Err(error) = folder.append(&Line::Run(Box::new(run.clone()))) {
            // A folder without its first line could be neither read nor taken up.
            let _ = folder.discard();
            return Err(error.context("nothing was measured; make room there, or give --out another folder"));
        }
        let mut log = Log { run, rounds: Vec::new(), resumed: Vec::new(), ended: None, invalid: Vec::new() };
        prepared.measure(&mut log, &mut folder, &interrupt)?;
        close(&log, folder)
    }
}

/// Writes the record of a run that has ended, or removes its folder if no round did.
fn close(log: &Log, folder: RunFolder) -> Result<Option<(Record, PathBuf)>> {
    if log.rounds.is_empty() {
        folder.discard()?;
        return Ok(None);
    }
    let record = Record::derive(log)?;
    folder.write(&record, &print::report(&record))?;
    Ok(Some((record, folder.path().to_path_buf())))
}

/// Prints a record and says how the command ends that made it; without one the user interrupted too early.
fn finish(record: Option<(Record, PathBuf)>, json: bool) -> Result<Ended> {
    let Some((record, folder)) = record else {
        note("interrupted before the first round ended: nothing was measured");
        return Ok(Ended::Interrupted);
    };
    show(&if json { serde_json::to_string_pretty(&record)? } else { print::screen(&record, &folder) })?;
    Ok(ended(&record))
}

/// Derives a stored run's record and report again, and prints them.
pub(crate) fn report(folder: &Path, anyway: bool, json: bool) -> Result<Ended> {
    let log = if anyway { read_log_anyway(folder)? } else { read_log(folder)? };
    let record = Record::derive(&log).with_context(|| folder.display().to_string())?;
    if !record.invalid.is_empty() {
        show(&if json { serde_json::to_string_pretty(&record)? } else { print::report(&record) })?;
        return Ok(Ended::Wrong);
    }
    specquant_report::write(folder, &record, &print::report(&record))?;
    show(&if json { serde_json::to_string_pretty(&record)? } else { print::screen(&record, folder) })?;
    let wrong = record.has_wrong_output() || record.trust.digest.is_none();
    Ok(if wrong { Ended::Wrong } else { Ended::Done })
}

/// The cells of a spec, each after its control. `named` is what messages call the spec.
fn cells(spec: &str, named: Option<&str>) -> Result<Vec<RunSpec>> {
    let cells = spec.parse().map_err(anyhow::Error::from).and_then(|table| expand(&table));
    let cells = match named {
        Some(name) => cells.with_context(|| name.to_string()),
        None => cells,
    };
    Ok(with_controls(&cells?))
}

/// How the command ends that made this record.
fn ended(record: &Record) -> Ended {
    // Rounds that differ in what no clock decides are as wrong as an arm that differs from its control.
    match (record.has_wrong_output() || record.trust.digest.is_none(), record.interrupted) {
        (true, _) => Ended::Wrong,
        (false, true) => Ended::Interrupted,
        (false, false) => Ended::Done,
    }
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

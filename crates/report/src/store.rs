//! A run's folder: `spec.toml`, `rounds.jsonl`, `record.json`, `report.md`.
//!
//! A round that has ended is on disk before the next begins; every other file is written whole or not at all. A run that
//! was cut off, even in the middle of a line, can be read and taken up again.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::record::Record;
use crate::round::{Line, Log};
use crate::run::SCHEMA;
use crate::sound::{bounded, possible, sound};

/// The folder of one run.
pub struct RunFolder {
    path: PathBuf,
    rounds: File,
    /// Bytes of `rounds.jsonl` that hold whole lines.
    whole: u64,
}

/// Everything that a run writes.
const FILES: [&str; 4] = ["spec.toml", "rounds.jsonl", "record.json", "report.md"];

impl RunFolder {
    /// Makes the folder, which must hold none of a run's files yet, and writes the spec that can repeat the run.
    pub fn create(path: &Path, spec: &str) -> Result<RunFolder> {
        fs::create_dir_all(path).with_context(|| format!("{}: cannot make the run's folder", path.display()))?;
        for name in FILES {
            // A link that leads nowhere is taken too.
            let taken = path.join(name).symlink_metadata().is_ok();
            ensure!(!taken, "{}: {name} is here already; give --out another folder", path.display());
        }
        replace(&path.join("spec.toml"), spec)?;
        let place = path.join("rounds.jsonl");
        let rounds = OpenOptions::new().create_new(true).append(true).open(&place);
        let rounds = rounds.with_context(|| format!("{}: cannot be written", place.display()))?;
        lock(&rounds, &place)?;
        Ok(RunFolder { path: path.to_path_buf(), rounds, whole: 0 })
    }

    /// Opens the folder of a run that was cut off, to add rounds to those in the log.
    pub fn resume(path: &Path) -> Result<(RunFolder, Log)> {
        let place = path.join("rounds.jsonl");
        let refused = || format!("{}: cannot be written", place.display());
        // What is read after it is locked is what will be added to.
        let rounds = OpenOptions::new().append(true).open(&place).with_context(refused)?;
        lock(&rounds, &place)?;
        let (log, whole) = read_lines(path)?;
        refuse_invalid(&log)?;
        rounds.set_len(whole).with_context(refused)?;
        Ok((RunFolder { path: path.to_path_buf(), rounds, whole }, log))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a line, such as a round that has ended. It is on disk when this returns.
    pub fn append(&mut self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        let written = self.rounds.write_all(text.as_bytes()).and_then(|()| self.rounds.sync_data());
        match written {
            Ok(()) => self.whole += text.len() as u64,
            // Half a line would be lost at the next resumption anyway, and nothing more can be said if this fails too.
            Err(_) => drop(self.rounds.set_len(self.whole)),
        }
        written.with_context(|| format!("{}: cannot be written", self.path.join("rounds.jsonl").display()))
    }

    /// Removes the folder of a run in which no round ended.
    pub fn discard(self) -> Result<()> {
        for name in ["spec.toml", "rounds.jsonl"] {
            let path = self.path.join(name);
            fs::remove_file(&path).with_context(|| format!("{}: cannot be removed", path.display()))?;
        }
        // The folder may have been the user's own, with other files in it.
        let _ = fs::remove_dir(&self.path);
        Ok(())
    }

    /// Writes what was derived from the rounds so far.
    pub fn write(&self, record: &Record, report: &str) -> Result<()> {
        write(&self.path, record, report)
    }
}

/// Refuses a file that another run is adding to; the lock ends with the file.
fn lock(file: &File, place: &Path) -> Result<()> {
    match file.try_lock() {
        // Where the system has no such locks, nothing is lost but this check.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            bail!("{}: another specquant is writing this run: wait until it has ended", place.display())
        }
    }
}

/// What a run wrote down. A last line that was cut off is left out.
///
/// # Errors
/// What is no log of this version, or cannot have been measured.
pub fn read_log(path: &Path) -> Result<Log> {
    let log = read_log_anyway(path)?;
    refuse_invalid(&log)?;
    Ok(log)
}

/// As [`read_log`], but what cannot have been measured is read and named in `Log::invalid`.
///
/// # Errors
/// What is no log of this version.
pub fn read_log_anyway(path: &Path) -> Result<Log> {
    Ok(read_lines(path)?.0)
}

fn refuse_invalid(log: &Log) -> Result<()> {
    log.invalid.first().map_or(Ok(()), |first| {
        bail!("{first}; such a run cannot have been measured: `specquant report --anyway` shows it, marked as invalid")
    })
}

/// The spec that repeats a run, as text.
pub fn read_spec(path: &Path) -> Result<String> {
    let spec = path.join("spec.toml");
    fs::read_to_string(&spec).with_context(|| format!("{}: cannot be read; give the folder of a run", spec.display()))
}

/// Writes a record and its report into a run's folder.
pub fn write(path: &Path, record: &Record, report: &str) -> Result<()> {
    replace(&path.join("record.json"), &(serde_json::to_string_pretty(record)? + "\n"))?;
    replace(&path.join("report.md"), report)
}

/// The log, and how many bytes of the file hold its lines.
fn read_lines(path: &Path) -> Result<(Log, u64)> {
    let place = path.join("rounds.jsonl");
    let text = fs::read_to_string(&place)
        .with_context(|| format!("{}: cannot be read; give the folder of a run", place.display()))?;
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let mut log: Option<Log> = None;
    for (number, line) in (1..).zip(text[..whole].lines()) {
        let here = || format!("{}, line {number}", place.display());
        let strange =
            || format!("{}: not what this version writes; read the run with the version that made it", here());
        let value: Value = serde_json::from_str(line).with_context(strange)?;
        value.get("round").map_or(Ok(()), bounded).with_context(here)?;
        let line: Line = serde_json::from_value(value).with_context(strange)?;
        match (&mut log, line) {
            (None, Line::Run(run)) => {
                let schema = run.schema;
                ensure!(schema == SCHEMA, "{}: its form has version {schema} and this program reads {SCHEMA}", here());
                run.validate().with_context(here)?;
                log =
                    Some(Log { run: *run, rounds: Vec::new(), resumed: Vec::new(), ended: None, invalid: Vec::new() });
            }
            (Some(log), Line::Round(round)) => {
                let (arms, expected) = (round.passes.len(), log.run.cells.len() + 1);
                ensure!(round.number == log.rounds.len() + 1, "{}: round {} is out of order", here(), round.number);
                ensure!(arms == expected, "{}: a round of {arms} arms in a run of {expected}", here());
                possible(&round, &log.run).with_context(here)?;
                if let Err(error) = sound(&round, &log.run) {
                    log.invalid.push(format!("{}: {error:#}", here()));
                }
                log.rounds.push(*round);
            }
            (Some(log), Line::Resumed(at)) => {
                log.resumed.push(at);
                log.ended = None;
            }
            (Some(log), Line::Ended(ended)) => log.ended = Some(ended),
            (None, _) | (Some(_), Line::Run(_)) => bail!("{}: a run begins with one line that describes it", here()),
        }
    }
    let log = log.with_context(|| format!("{}: no line is whole, so no round can be read", place.display()))?;
    Ok((log, whole as u64))
}

/// Writes a file beside its place and moves it there, so that a reader never meets half of it.
fn replace(path: &Path, text: &str) -> Result<()> {
    let beside = path.with_extension("partial");
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        fs::rename(&beside, path)
    };
    let written = write();
    if written.is_err() {
        // What is half written is of no use to anyone.
        let _ = fs::remove_file(&beside);
    }
    written.with_context(|| format!("{}: cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::{Ended, Round};
    use crate::sample::log;

    fn filled(path: &Path, log: &Log) -> RunFolder {
        let mut folder = RunFolder::create(path, "rounds = 2\n").unwrap();
        folder.append(&Line::Run(Box::new(log.run.clone()))).unwrap();
        for round in &log.rounds {
            folder.append(&Line::Round(Box::new(round.clone()))).unwrap();
        }
        folder
    }

    #[test]
    fn a_folder_keeps_its_rounds_and_is_never_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("deep/run");
        let log = log(2, 15);
        filled(&path, &log).append(&Line::Ended(Ended::Rounds)).unwrap();
        assert_eq!(read_log(&path).unwrap(), log);
        assert_eq!(read_spec(&path).unwrap(), "rounds = 2\n");
        let error = RunFolder::create(&path, "").err().unwrap().to_string();
        assert!(error.contains("spec.toml is here already"), "{error}");
        assert_eq!(fs::read_to_string(path.join("spec.toml")).unwrap(), "rounds = 2\n");
        assert!(!path.join("spec.partial").exists());
    }

    #[test]
    fn a_run_that_was_cut_off_anywhere_loses_only_the_line_in_the_making() {
        let root = tempfile::tempdir().unwrap();
        let log = log(2, 15);
        drop(filled(&root.path().join("whole"), &log));
        let bytes = fs::read(root.path().join("whole/rounds.jsonl")).unwrap();
        let starts: Vec<usize> = (0..bytes.len()).filter(|&at| at > 0 && bytes[at - 1] == b'\n').collect();
        for cut in [starts[0], starts[0] + 1, starts[1] - 1, starts[1], bytes.len() - 1, bytes.len()] {
            let path = root.path().join(cut.to_string());
            fs::create_dir(&path).unwrap();
            fs::write(path.join("rounds.jsonl"), &bytes[..cut]).unwrap();
            let ended = starts.iter().skip(1).filter(|&&start| start <= cut).count() + usize::from(cut == bytes.len());
            let (mut folder, read) = RunFolder::resume(&path).unwrap();
            assert_eq!((read.rounds.len(), read.ended), (ended, None), "cut at {cut}");
            folder.append(&Line::Resumed("later".into())).unwrap();
            for round in &log.rounds[ended..] {
                folder.append(&Line::Round(Box::new(round.clone()))).unwrap();
            }
            let read = read_log(&path).unwrap();
            assert_eq!((&read.rounds, read.resumed), (&log.rounds, vec!["later".to_string()]));
        }
    }

    #[test]
    fn a_log_that_is_none_is_refused_by_file_and_line() {
        let log = log(1, 15);
        let line = |line: &Line| serde_json::to_string(line).unwrap() + "\n";
        let run = line(&Line::Run(Box::new(log.run.clone())));
        let round = |number, arms| {
            line(&Line::Round(Box::new(Round {
                number,
                passes: vec![log.rounds[0].passes[0].clone(); arms],
                ..log.rounds[0].clone()
            })))
        };
        let mut endless = log.rounds[0].clone();
        endless.passes[1].pass.timelines[0].emissions[0].n = usize::MAX;
        let endless = line(&Line::Round(Box::new(endless)));
        for (text, expected) in [
            (String::new(), "no line is whole"),
            (run.trim_end().to_string(), "no line is whole"),
            (round(1, 4), "line 1: a run begins with one line"),
            (format!("{run}{run}"), "line 2: a run begins with one line"),
            (format!("{run}{}", round(2, 4)), "line 2: round 2 is out of order"),
            (format!("{run}{}", round(1, 3)), "line 2: a round of 3 arms in a run of 4"),
            (format!("{run}null\n"), "line 2: not what this version writes"),
            (run.replace(&format!("\"schema\":{SCHEMA}"), "\"schema\":1"), "line 1: its form has version 1"),
            (format!("{run}{endless}"), "line 2: passes[1].pass.timelines[0].emissions[0].n is 18446744073709551615"),
            (run.replace("\"targets\":[0,0,1]", "\"targets\":[0,0,5]"), "line 1: a cell names model 5 of 3"),
            (run.replace("\"targets\":[0,0,1]", "\"targets\":[0,0]"), "line 1: the run's lists"),
            (run.replace("\"load_ns\":[30000000,", "\"load_ns\":["), "line 1: the run's load times"),
        ] {
            let root = tempfile::tempdir().unwrap();
            fs::write(root.path().join("rounds.jsonl"), text).unwrap();
            let error = format!("{:#}", read_log(root.path()).unwrap_err());
            assert!(error.contains("rounds.jsonl") && error.contains(expected), "{error}");
        }
        let error = format!("{:#}", read_log(Path::new("nowhere")).unwrap_err());
        assert!(error.contains("give the folder of a run"), "{error}");
    }

    #[test]
    fn a_round_that_cannot_have_been_measured_is_refused_and_shown_only_as_invalid() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run");
        let mut log = log(2, 15);
        log.rounds[1].passes[2].pass.timelines[0].emissions[1].n = 0;
        drop(filled(&path, &log));
        let error = format!("{:#}", read_log(&path).unwrap_err());
        let place = "rounds.jsonl, line 3: passes[2].pass.timelines[0].emissions[1].n is 0";
        assert!(error.contains(place) && error.contains("report --anyway"), "{error}");
        assert!(format!("{:#}", RunFolder::resume(&path).err().unwrap()).contains(place));
        let record = Record::derive(&read_log_anyway(&path).unwrap()).unwrap();
        assert!(record.invalid.len() == 1 && record.invalid[0].contains(place), "{:?}", record.invalid);
        let tables = [crate::text(&record), crate::markdown(&record), crate::details(&record)];
        for tables in tables {
            let marked = tables.matches("INVALID").count();
            assert!(marked > 0 && marked >= tables.matches("\n## ").count(), "{tables}");
        }
    }

    #[test]
    fn one_run_at_a_time_adds_to_a_folder() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run");
        let first = filled(&path, &log(1, 15));
        let error = RunFolder::resume(&path).err().unwrap().to_string();
        assert!(error.contains("another specquant is writing this run"), "{error}");
        drop(first);
        RunFolder::resume(&path).unwrap();
    }

    #[test]
    fn files_of_the_user_are_never_replaced() {
        for name in FILES {
            let root = tempfile::tempdir().unwrap();
            fs::write(root.path().join(name), "mine").unwrap();
            let error = RunFolder::create(root.path(), "rounds = 2\n").err().unwrap().to_string();
            assert!(error.contains(name), "{error}");
            assert_eq!(fs::read_to_string(root.path().join(name)).unwrap(), "mine");
            assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing was written before the refusal");
        }
    }

    #[test]
    fn a_run_without_a_round_leaves_nothing() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run");
        RunFolder::create(&path, "").unwrap().discard().unwrap();
        assert!(!path.exists());
    }
}

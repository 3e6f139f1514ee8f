//! A run's folder: `spec.toml`, `rounds.jsonl`, `record.json`, `report.md`.
//!
//! A round that has ended is on disk before the next begins; every other file is written whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::record::Record;
use crate::round::Round;

/// The folder of one run.
pub struct RunFolder {
    path: PathBuf,
    rounds: File,
    /// Bytes of `rounds.jsonl` that hold whole rounds.
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
        Ok(RunFolder { path: path.to_path_buf(), rounds, whole: 0 })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a round that has ended. It is on disk when this returns.
    pub fn append(&mut self, round: &Round) -> Result<()> {
        let mut line = serde_json::to_string(round)?;
        line.push('\n');
        let written = self.rounds.write_all(line.as_bytes()).and_then(|()| self.rounds.sync_data());
        match written {
            Ok(()) => self.whole += line.len() as u64,
            // Half a line would make the file unreadable, and nothing more can be said if this fails too.
            Err(_) => drop(self.rounds.set_len(self.whole)),
        }
        written.with_context(|| format!("{}: cannot append round {}", self.path.display(), round.number))
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
        replace(&self.path.join("record.json"), &serde_json::to_string_pretty(record)?)?;
        replace(&self.path.join("report.md"), report)
    }
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
    write().with_context(|| format!("{}: cannot be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_keeps_its_rounds_and_is_never_overwritten() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("deep/run");
        let mut folder = RunFolder::create(&path, "rounds = 2\n").unwrap();
        for number in 1..=2 {
            folder.append(&Round { number, order: vec![], passes: vec![] }).unwrap();
        }
        let lines = fs::read_to_string(path.join("rounds.jsonl")).unwrap();
        let numbers: Vec<usize> =
            lines.lines().map(|line| serde_json::from_str::<Round>(line).unwrap().number).collect();
        assert_eq!(numbers, [1, 2]);
        let error = RunFolder::create(&path, "").err().unwrap().to_string();
        assert!(error.contains("spec.toml is here already"), "{error}");
        assert_eq!(fs::read_to_string(path.join("spec.toml")).unwrap(), "rounds = 2\n");
        assert!(!path.join("spec.partial").exists());
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

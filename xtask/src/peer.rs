//! llama.cpp on the very same weights: `cargo xtask peer-gguf` writes them for it, `cargo xtask peer-bench` measures both.
//!
//! Both sides do the same work with the same number of threads and keys and values of the same type, and take turns.

mod arguments;
mod files;
mod ours;
mod pair;
mod record;
mod session;
mod table;
mod theirs;

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result};

use crate::command;
use arguments::Arguments;
pub(crate) use arguments::OPTIONS;

/// Writes a model folder as GGUF.
pub(crate) fn gguf(root: &Path, folder: &str) -> Result<bool> {
    let name = Path::new(folder).file_name().with_context(|| format!("{folder}: give the folder of a model"))?;
    let work = work(root);
    std::fs::create_dir_all(&work).with_context(|| format!("{}: cannot be made", work.display()))?;
    let file = work.join(name).with_extension("gguf");
    command::run(&mut write_gguf(root, "python3", Path::new(folder), &file)).map(|()| true)
}

/// Measures a model beside llama.cpp, prints a table, and writes the record where asked to. Bad input exits with 2.
pub(crate) fn bench(root: &Path, words: &[String]) -> Result<ExitCode> {
    let arguments = match Arguments::parse(words, &work(root)).and_then(Arguments::checked) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let record = session::run(root, &arguments)?;
    println!("{}", table::table(&record));
    if let Some(path) = &arguments.json {
        let text = serde_json::to_string_pretty(&record)?;
        std::fs::write(path, text + "\n").with_context(|| format!("{}: cannot be written", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Where files for the peer lie unless told otherwise.
fn work(root: &Path) -> std::path::PathBuf {
    root.join("target/peer")
}

fn write_gguf(root: &Path, python: &str, folder: &Path, file: &Path) -> Command {
    let mut command = Command::new(python);
    command.arg(root.join("xtask/peer/write_gguf.py")).arg(folder).arg(file);
    command
}

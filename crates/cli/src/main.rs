//! The command `specquant`: what speculative decoding and weight formats are worth on one model pair and machine.
//!
//! Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 wrong output, 2 bad input, 130 interrupted.

mod args;
mod build;
mod device;
mod doctor;
mod generate;
mod grow;
mod inspect;
mod interrupt;
mod metrics;
mod overlay;
mod peaks;
mod quality;
mod run;

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};
use clap_complete::Shell;

use args::{Args, Command, ModelCommand};

/// How a command ended that was not stopped by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// It did what was asked.
    Done,
    /// It found wrong output.
    Wrong,
    /// The user interrupted it.
    Interrupted,
}

fn main() -> ExitCode {
    let args = Args::parse_from(json_last(std::env::args_os().collect()));
    let json = args.json;
    let ended = match args.command.unwrap_or(Command::Run(Box::new(args.run))) {
        Command::Run(run) => run::run(&run, args.json),
        Command::Report { folder, anyway } => run::report(&folder, anyway, args.json),
        Command::Rerun(rerun) => run::rerun(&rerun, args.json),
        Command::Doctor(args) => doctor::doctor(&args, json),
        Command::Schema => show(&format!("{:#}", specquant_report::schema())).map(|()| Ended::Done),
        Command::Metrics => metrics::metrics(json),
        Command::Completions { shell } => completions(shell),
        Command::Generate(generate) => generate::generate(&generate, args.json),
        Command::Quality(quality) => quality::quality(&quality, args.json),
        Command::Model { command: ModelCommand::Info(named) } => inspect::info(&named, args.json),
        Command::Model { command: ModelCommand::Logits(logits) } => inspect::logits(&logits, args.json),
        Command::Model { command: ModelCommand::Grow(args) } => grow::grow(&args, json),
        Command::Model { command: ModelCommand::Compare(args) } => grow::compare(&args, json),
    };
    match ended {
        Ok(Ended::Done) => ExitCode::SUCCESS,
        Ok(Ended::Wrong) => ExitCode::from(1),
        Ok(Ended::Interrupted) => ExitCode::from(130),
        Err(error) => {
            // Some libraries break their messages into lines.
            let message = format!("{error:#}");
            note(&format!("error: {}", message.lines().collect::<Vec<_>>().join(" ").trim_end()));
            ExitCode::from(2)
        }
    }
}

/// The command line with a `--json` that stands before a subcommand moved behind it, where it means the same.
fn json_last(mut words: Vec<OsString>) -> Vec<OsString> {
    if words.get(1).is_some_and(|word| word == "--json") {
        words[1..].rotate_left(1);
    }
    words
}

/// Prints the completions of a shell.
fn completions(shell: Shell) -> Result<Ended> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "specquant", &mut script);
    show(&String::from_utf8_lossy(&script))?;
    Ok(Ended::Done)
}

/// Prints a line to stderr, if anybody listens.
fn note(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Prints a result and a line break to stdout. A reader that has gone away is no error: it has seen what it wanted.
fn show(result: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{result}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write to stdout"),
        _ => Ok(()),
    }
}

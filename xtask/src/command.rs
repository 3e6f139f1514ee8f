//! Child processes: built from one line of words, printed as a shell would take them, run to their end.
//!
//! A command is always printed before it starts, so that a reader of the log can repeat it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

/// `cargo` with the given arguments, separated by spaces, in a folder.
pub(crate) fn cargo(folder: &Path, arguments: &str) -> Command {
    let mut command = Command::new("cargo");
    command.args(arguments.split_whitespace()).current_dir(folder);
    command
}

/// Prints the command, runs it, and fails unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    println!("$ {}", shown(command));
    let status = command.status().with_context(|| format!("cannot start `{}`", shown(command)))?;
    succeeded(command, status)
}

/// Like [`run`], and returns the lines of standard output after having shown each as it came.
pub(crate) fn run_and_read(command: &mut Command) -> Result<Vec<String>> {
    println!("$ {}", shown(command));
    let mut child =
        command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start `{}`", shown(command)))?;
    let stdout = child.stdout.take().context("standard output was not piped")?;
    let mut lines = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let line = line.with_context(|| format!("output of `{}`", shown(command)))?;
        println!("{line}");
        lines.push(line);
    }
    let status = child.wait().with_context(|| format!("cannot wait for `{}`", shown(command)))?;
    succeeded(command, status)?;
    Ok(lines)
}

/// The standard output of a command that succeeds, shown to nobody. The last line of what it said else is part of the error.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start `{}`", shown(command)))?;
    let said = String::from_utf8_lossy(&output.stderr);
    succeeded(command, output.status)
        .with_context(|| said.trim_end().lines().last().unwrap_or_default().to_string())?;
    String::from_utf8(output.stdout).with_context(|| format!("the output of `{}` is no text", shown(command)))
}

/// Whether the command can be started and succeeds, with its output thrown away.
pub(crate) fn succeeds_quietly(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

fn succeeded(command: &Command, status: ExitStatus) -> Result<()> {
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// The command as one line for a shell: changed environment variables, program, arguments.
pub(crate) fn shown(command: &Command) -> String {
    let variables = command.get_envs().filter_map(|(name, value)| {
        let value = value?.to_string_lossy();
        Some(format!("{}={}", name.to_string_lossy(), quoted(&value)))
    });
    let program = std::iter::once(command.get_program()).chain(command.get_args());
    let words = program.map(|word| quoted(&word.to_string_lossy()));
    variables.chain(words).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    if word.contains(' ') { format!("\"{word}\"") } else { word.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_a_shell_takes_it() {
        let mut command = cargo(Path::new("."), "doc --no-deps  --locked");
        assert_eq!(shown(&command), "cargo doc --no-deps --locked");
        command.env("RUSTDOCFLAGS", "-D warnings").env_remove("HOME");
        assert_eq!(shown(&command), "RUSTDOCFLAGS=\"-D warnings\" cargo doc --no-deps --locked");
    }

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let mut failing = cargo(Path::new("."), "--no-such-option");
        failing.stderr(Stdio::null());
        let error = run(&mut failing).unwrap_err();
        assert!(error.to_string().starts_with("`cargo --no-such-option` ended with"), "{error}");
        assert!(run_and_read(&mut failing).is_err());
        assert!(!succeeds_quietly(&mut Command::new("a-program-that-does-not-exist")));
    }

    #[test]
    fn the_lines_of_a_command_are_returned() {
        let lines = run_and_read(&mut cargo(Path::new("."), "--version")).unwrap();
        assert!(matches!(&lines[..], [line] if line.starts_with("cargo ")), "{lines:?}");
    }
}

//! What has to pass before a change is merged, in order, ending at the first failure.
//!
//! A step that cannot run here is skipped with its reason in the summary; nothing is left out silently.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::{command, tidy};

/// One thing to check.
struct Step {
    name: &'static str,
    work: fn(&Path) -> Result<Outcome>,
}

/// How a step went if it did not fail.
enum Outcome {
    Passed,
    Skipped(&'static str),
}

/// A step that was started, and its end.
struct Report {
    name: &'static str,
    took: Duration,
    result: Result<Outcome>,
}

/// Cheap steps come first, so that a slip of the pen is known before the long builds.
const STEPS: [Step; 7] = [
    Step { name: "format", work: |root| cargo(root, "fmt --all --check") },
    Step {
        name: "clippy",
        work: |root| cargo(root, "clippy --release --workspace --all-targets --locked -- -D warnings"),
    },
    Step { name: "tidy", work: tidiness },
    Step { name: "documentation", work: documentation },
    Step { name: "dependencies", work: dependencies },
    Step { name: "tests", work: |root| cargo(root, "test --release --workspace --locked") },
    Step { name: "first run", work: first_run },
];

/// Runs every step, prints the summary, and says whether all of them passed.
pub(crate) fn run(root: &Path) -> bool {
    let reports = walk(&STEPS, root);
    println!();
    for report in &reports {
        println!("{report}");
    }
    for step in &STEPS[reports.len()..] {
        println!("{:<14} not reached", step.name);
    }
    reports.iter().all(|report| report.result.is_ok())
}

fn walk(steps: &[Step], root: &Path) -> Vec<Report> {
    let mut reports: Vec<Report> = Vec::new();
    for step in steps {
        println!("\n== {}", step.name);
        let start = Instant::now();
        let result = (step.work)(root);
        reports.push(Report { name: step.name, took: start.elapsed(), result });
        let Some(Report { result: Ok(_), .. }) = reports.last() else { break };
    }
    reports
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<14} ", self.name)?;
        match &self.result {
            Ok(Outcome::Passed) => write!(f, "passed in {:.1} s", self.took.as_secs_f64()),
            Ok(Outcome::Skipped(reason)) => write!(f, "skipped: {reason}"),
            Err(error) => write!(f, "FAILED after {:.1} s: {error:#}", self.took.as_secs_f64()),
        }
    }
}

fn cargo(root: &Path, arguments: &str) -> Result<Outcome> {
    command::run(&mut command::cargo(root, arguments))?;
    Ok(Outcome::Passed)
}

fn tidiness(root: &Path) -> Result<Outcome> {
    println!("$ cargo xtask tidy");
    ensure!(tidy::run(root)?, "the findings are listed above");
    Ok(Outcome::Passed)
}

fn documentation(root: &Path) -> Result<Outcome> {
    let arguments = "doc --release --workspace --no-deps --locked --document-private-items";
    command::run(command::cargo(root, arguments).env("RUSTDOCFLAGS", "-D warnings"))?;
    Ok(Outcome::Passed)
}

/// Tidy has checked licences and origins already; `cargo deny` looks at more, where it is installed. Packages in two
/// versions are warnings, which the graph of each would bury the rest under.
fn dependencies(root: &Path) -> Result<Outcome> {
    if !command::succeeds_quietly(&mut command::cargo(root, "deny --version")) {
        let reason = "cargo-deny is not installed (cargo install cargo-deny --locked)";
        println!("skipped: {reason}");
        return Ok(Outcome::Skipped(reason));
    }
    cargo(root, "deny --locked check --hide-inclusion-graph bans licenses sources")
}

/// Lines of the first run that fit on a newcomer's screen.
const MOST_LINES: usize = 25;

/// The command that the README shows first, in an empty folder, because it writes its record into the current one.
/// The folder lies inside the workspace: there cargo and rustup find their settings, and version control ignores it.
fn first_run(root: &Path) -> Result<Outcome> {
    let folder = root.join("target").join("first-run");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let lines = command::run_and_read(&mut command::cargo(&folder, "run --release"))?;
    ensure!(concludes(&lines), "the run printed no conclusion: a line that starts with `=>`");
    ensure!(lines.len() <= MOST_LINES, "the run printed {} lines, more than a screen of {MOST_LINES}", lines.len());
    Ok(Outcome::Passed)
}

/// Whether a run said what its numbers mean, which it does in a line that starts with an arrow.
fn concludes(lines: &[String]) -> bool {
    lines.iter().any(|line| line.starts_with("=>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_at_the_first_failure() {
        let steps = [
            Step { name: "one", work: |_| Ok(Outcome::Passed) },
            Step { name: "two", work: |_| Ok(Outcome::Skipped("no such tool")) },
            Step { name: "three", work: |_| anyhow::bail!("wrong") },
            Step { name: "four", work: |_| unreachable!("a failure ends the walk") },
        ];
        let reports = walk(&steps, Path::new("."));
        let [one, two, three] = &reports[..] else { panic!("{} reports", reports.len()) };
        assert!(one.to_string().starts_with("one            passed in 0."), "{one}");
        assert_eq!(two.to_string(), "two            skipped: no such tool");
        assert!(three.to_string().ends_with("s: wrong"), "{three}");
    }

    #[test]
    fn a_conclusion_starts_its_line() {
        let check = |text: &str, expected| {
            assert_eq!(concludes(&text.lines().map(str::to_owned).collect::<Vec<_>>()), expected, "{text}");
        };
        check("table\n=> use draft:2\nSaved", true);
        check("table\nuse => draft:2\nSaved", false);
        check("", false);
    }
}

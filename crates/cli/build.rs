//! Facts of the build that a run's record names: commit, compiler, flags, dependencies.
//!
//! Outside a repository, or without git, the commit is `unknown` and nothing fails.

use std::env;
use std::path::Path;
use std::process::Command;

use sha2::{Digest, Sha256};

fn main() {
    let root = Path::new("../..");
    // Whether the tree is dirty can change with every source file; a missing path would run this script every time.
    for path in [".git/HEAD", ".git/index", "Cargo.lock", "Cargo.toml", "crates", "models"] {
        if root.join(path).exists() {
            println!("cargo::rerun-if-changed={}", root.join(path).display());
        }
    }
    let commit = output("git", &["rev-parse", "HEAD"]);
    let changes = output("git", &["status", "--porcelain", "--untracked-files=no"]);
    let dirty = changes.map(|changes| if changes.is_empty() { "no" } else { "yes" }.to_string());
    let lock = std::fs::read(root.join("Cargo.lock")).ok().map(|bytes| hexadecimal(&Sha256::digest(bytes)));
    let variable = |name: &str| env::var(name).ok();
    let flags = variable("CARGO_ENCODED_RUSTFLAGS").map(|flags| flags.replace('\u{1f}', " "));
    let rustc = variable("RUSTC").and_then(|rustc| output(&rustc, &["--version"]));
    for (name, value) in [
        ("COMMIT", commit),
        ("DIRTY", dirty),
        ("RUSTC", rustc),
        ("TARGET", variable("TARGET")),
        ("PROFILE", variable("PROFILE")),
        ("RUSTFLAGS", flags),
        ("LOCK", lock),
    ] {
        println!("cargo::rustc-env=SPECQUANT_{name}={}", value.unwrap_or("unknown".into()));
    }
}

/// What a command prints, if it succeeds.
fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

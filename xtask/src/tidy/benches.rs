//! Libraries and binaries say `bench = false`.
//!
//! Otherwise `cargo bench -- --save-baseline x` starts their unit test harness too, which does not know the
//! argument and fails the whole run.

use serde::Deserialize;

use super::finding::Finding;
use super::workspace::{Member, Target};

const LIBRARY_KINDS: [&str; 6] = ["lib", "rlib", "dylib", "cdylib", "staticlib", "proc-macro"];

/// The part of a manifest that `cargo metadata` leaves out.
#[derive(Default, Deserialize)]
struct Manifest {
    lib: Option<Entry>,
    #[serde(default)]
    bin: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    name: Option<String>,
    bench: Option<bool>,
}

/// Checks the targets of one member. Cargo has read the manifest before, so one that does not parse counts as empty.
pub(crate) fn check(member: &Member) -> Vec<Finding> {
    let manifest: Manifest = toml::from_str(&member.manifest.text).unwrap_or_default();
    let mut findings = Vec::new();
    for target in &member.package.targets {
        let is = |kinds: &[&str]| target.kind.iter().any(|kind| kinds.contains(&kind.as_str()));
        if is(&LIBRARY_KINDS) && !off(manifest.lib.as_ref()) {
            findings.push(finding(member, target, "[lib]"));
        }
        let entry = manifest.bin.iter().find(|entry| entry.name.as_ref() == Some(&target.name));
        if is(&["bin"]) && !off(entry) {
            findings.push(finding(member, target, "[[bin]]"));
        }
    }
    findings
}

fn off(entry: Option<&Entry>) -> bool {
    entry.is_some_and(|entry| entry.bench == Some(false))
}

fn finding(member: &Member, target: &Target, table: &str) -> Finding {
    Finding {
        path: member.manifest.path.clone(),
        line: member.manifest.line_where(|line| line.trim() == table),
        wrong: format!("target {} is benched", target.name),
        remedy: format!("write `bench = false` under its {table}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::workspace::sample::{document, member};
    use super::*;

    #[test]
    fn libraries_and_binaries_only() {
        let check = |kind: &str, text, lines: &[usize]| {
            let mut member = member("specquant-kv", &[]);
            member.package.targets = vec![Target { name: "kv".into(), kind: vec![kind.into()] }];
            member.manifest = document("Cargo.toml", text);
            let findings = check(&member);
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), lines, "{kind}: {text}");
        };
        check("lib", "\n[lib]\nbench = false", &[]);
        check("lib", "\n[lib]\npath = \"a.rs\"", &[2]);
        check("lib", "\n[lib]\nbench = true", &[2]);
        check("lib", "[package]\nname = \"kv\"", &[1]);
        check("bin", "[[bin]]\nname = \"kv\"\nbench = false", &[]);
        check("bin", "[[bin]]\nname = \"kv\"", &[1]);
        check("bin", "[[bin]]\nname = \"other\"\nbench = false", &[1]);
        check("bin", "[lib]\nbench = false", &[1]);
        check("test", "", &[]);
        check("bench", "", &[]);
    }
}

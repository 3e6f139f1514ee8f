//! The rules of the house that the compiler does not know, checked on `cargo metadata` and the sources.
//!
//! A rule is a pure function from what was read to findings, so each is tested on a few lines of text; only `workspace`
//! reads files.

mod benches;
mod finding;
mod frameworks;
mod layers;
mod leftovers;
mod licences;
mod origins;
mod size;
mod token;
mod unsafety;
mod workspace;

use std::path::Path;

use anyhow::Result;

use finding::Finding;
use workspace::Workspace;

/// Prints every finding, and says whether there was none.
pub(crate) fn run(root: &Path) -> Result<bool> {
    let workspace = Workspace::read(root)?;
    let findings = findings(&workspace);
    for finding in &findings {
        println!("{finding}");
    }
    let (crates, files, packages) = (workspace.members.len(), workspace.sources.len(), workspace.packages.len());
    let found = findings.len();
    println!("tidy: {crates} crates, {files} Rust files, {packages} packages in the graph; findings: {found}");
    Ok(findings.is_empty())
}

fn findings(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &workspace.members {
        findings.extend(layers::check(member));
        findings.extend(frameworks::check(member));
        findings.extend(benches::check(member));
    }
    for source in &workspace.sources {
        findings.extend(unsafety::check(source));
        findings.extend(size::check(source));
        findings.extend(leftovers::check(source));
    }
    for package in &workspace.packages {
        findings.extend(licences::check(package, &workspace.allowed_licences, &workspace.lock));
        findings.extend(origins::check(package, &workspace.lock));
    }
    findings.sort();
    findings
}

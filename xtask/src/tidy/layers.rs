//! A crate imports only crates of lower layers, in tests and build scripts as well; siblings never import each other.
//!
//! Every package of the workspace has a layer here: a new one is placed before it is merged.

use super::finding::Finding;
use super::workspace::Member;

/// The one upward look that the layout allows: the command line starts the server.
const ALLOWED: (&str, &str) = ("specquant-cli", "specquant-serve");

/// Checks one member's direct dependencies.
pub(crate) fn check(member: &Member) -> Vec<Finding> {
    let name = &member.package.name;
    let Some(own) = layer(name) else {
        return vec![Finding {
            path: member.manifest.path.clone(),
            line: member.manifest.line_where(|line| line.starts_with("name")),
            wrong: format!("{name} has no layer"),
            remedy: "give it one in xtask/src/tidy/layers.rs and in the layout of ARCHITECTURE.md".into(),
        }];
    };
    let mut findings = Vec::new();
    for dependency in &member.package.dependencies {
        let Some(other) = layer(&dependency.name) else { continue };
        if other >= own && (name.as_str(), dependency.name.as_str()) != ALLOWED {
            findings.push(Finding {
                path: member.manifest.path.clone(),
                line: member.line_of(dependency),
                wrong: format!("{name} (layer {own}) imports {} (layer {other})", dependency.name),
                remedy: "import lower layers only: move what both need down, or the use up".into(),
            });
        }
    }
    findings
}

/// The layer of a package of this workspace.
fn layer(package: &str) -> Option<u8> {
    if package == "xtask" {
        return Some(3);
    }
    match package.strip_prefix("specquant-")? {
        "core" => Some(0),
        "kv" | "workload" | "metrics" | "machine" | "kernels" => Some(1),
        "model" | "engine" | "endpoint" | "report" => Some(2),
        "serve" | "cli" | "benches" => Some(3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::workspace::sample::member;
    use super::*;

    #[test]
    fn lower_layers_only() {
        let check = |name, dependencies: &[&str], lines: &[usize]| {
            let findings = check(&member(name, dependencies));
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), lines, "{name}");
        };
        check("specquant-core", &["serde"], &[]);
        check("specquant-core", &["specquant-kv"], &[2]);
        check("specquant-kv", &["specquant-core", "anyhow"], &[]);
        check("specquant-kv", &["specquant-core", "specquant-metrics"], &[3]);
        check("specquant-engine", &["specquant-kv", "specquant-model", "specquant-report"], &[3, 4]);
        check("specquant-cli", &["specquant-serve", "specquant-model"], &[]);
        check("specquant-serve", &["specquant-cli"], &[2]);
        check("specquant-benches", &["specquant-cli", "criterion"], &[2]);
        check("xtask", &["specquant-report", "toml"], &[]);
    }

    #[test]
    fn a_package_without_a_layer_is_a_finding() {
        let findings = check(&member("specquant-utils", &[]));
        assert_eq!(findings[0].wrong, "specquant-utils has no layer");
    }

    #[test]
    fn a_finding_names_both_layers() {
        let findings = check(&member("specquant-kv", &["specquant-model"]));
        assert_eq!(findings[0].wrong, "specquant-kv (layer 1) imports specquant-model (layer 2)");
    }
}

//! The tensor framework and its kernel language are imported by `kernels` and `model` only.
//!
//! The other crates then build and test in seconds, and a change of framework touches two crates.

use super::finding::Finding;
use super::workspace::Member;

const ALLOWED: [&str; 2] = ["specquant-kernels", "specquant-model"];

/// Checks one member's direct dependencies.
pub(crate) fn check(member: &Member) -> Vec<Finding> {
    let name = &member.package.name;
    if ALLOWED.contains(&name.as_str()) {
        return Vec::new();
    }
    let used = member.package.dependencies.iter().filter(|dependency| is_framework(&dependency.name));
    let finding = |dependency| Finding {
        path: member.manifest.path.clone(),
        line: member.line_of(dependency),
        wrong: format!("{name} imports {}", dependency.name),
        remedy: "keep burn and cubecl inside specquant-kernels and specquant-model, behind `Box<dyn Model>`".into(),
    };
    used.map(finding).collect()
}

/// Whether a package belongs to burn: `burn`, `burn-cuda`, `cubecl-runtime`, but not `burner`.
fn is_framework(package: &str) -> bool {
    let family = package.split(['-', '_']).next();
    family.is_some_and(|family| ["burn", "cubecl", "cubek"].contains(&family))
}

#[cfg(test)]
mod tests {
    use super::super::workspace::sample::member;
    use super::*;

    #[test]
    fn two_crates_only() {
        let check = |name, dependencies: &[&str], lines: &[usize]| {
            let findings = check(&member(name, dependencies));
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), lines, "{name}");
        };
        check("specquant-kernels", &["burn", "cubecl"], &[]);
        check("specquant-model", &["burn"], &[]);
        check("specquant-engine", &["anyhow", "burn"], &[3]);
        check("specquant-cli", &["burn-cuda", "cubecl-runtime", "cubek"], &[2, 3, 4]);
        check("specquant-cli", &["burner", "sunburn"], &[]);
    }
}

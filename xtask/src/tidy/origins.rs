//! Every package comes from crates.io or from a folder of this workspace.
//!
//! A repository address can vanish or change under the same name; crates.io keeps what it has once served.

use super::finding::Finding;
use super::workspace::{Document, Package};

/// The two names that cargo has for crates.io: its former index in git and its index over HTTP.
const CRATES_IO: [&str; 2] =
    ["registry+https://github.com/rust-lang/crates.io-index", "sparse+https://index.crates.io/"];

/// Checks one package.
pub(crate) fn check(package: &Package, lock: &Document) -> Option<Finding> {
    let source = package.source.as_deref()?;
    if CRATES_IO.contains(&source) {
        return None;
    }
    Some(Finding {
        path: lock.path.clone(),
        line: package.line_in(lock),
        wrong: format!("{} {} comes from {source}", package.name, package.version),
        remedy: "depend on a version that crates.io serves".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::workspace::sample::{document, package};
    use super::*;

    #[test]
    fn the_registry_or_a_folder() {
        let check = |source, expected| {
            let finding = check(&package("a", None, source), &document("Cargo.lock", ""));
            assert_eq!(finding.is_none(), expected, "{source:?}");
        };
        check(None, true);
        check(Some("registry+https://github.com/rust-lang/crates.io-index"), true);
        check(Some("sparse+https://index.crates.io/"), true);
        check(Some("sparse+https://index.crates.io.example.org/"), false);
        check(Some("registry+https://example.org/index"), false);
        check(Some("git+https://example.org/a?rev=1#1"), false);
    }
}

//! The licence of every package in the graph allows its use here.
//!
//! An expression is satisfied as SPDX says: one side of an OR, both sides of an AND, and an exception only where
//! the list names it.

use spdx::{Expression, ParseMode};

use super::finding::Finding;
use super::workspace::{Document, Package};

/// Checks one package against the allowed licences.
pub(crate) fn check(package: &Package, allowed: &[String], lock: &Document) -> Option<Finding> {
    let wrong = match &package.license {
        None => "no licence expression".into(),
        Some(license) => match satisfied(license, allowed) {
            Ok(true) => return None,
            Ok(false) => format!("its licence, {license}, is not allowed"),
            Err(reason) => format!("its licence, {license}, cannot be read ({reason})"),
        },
    };
    Some(Finding {
        path: lock.path.clone(),
        line: package.line_in(lock),
        wrong: format!("{} {}: {wrong}", package.name, package.version),
        remedy: "use another package, or add the licence to deny.toml if its terms can be kept".into(),
    })
}

/// Lax, because older packages write `MIT/Apache-2.0` for OR.
fn satisfied(license: &str, allowed: &[String]) -> Result<bool, spdx::error::Reason> {
    let expression = Expression::parse_mode(license, ParseMode::LAX).map_err(|error| error.reason)?;
    Ok(expression.evaluate(|requirement| allowed.contains(&requirement.to_string())))
}

impl Package {
    /// The line of the lock file where the package is listed.
    pub(super) fn line_in(&self, lock: &Document) -> usize {
        let (name, version) = (format!("name = \"{}\"", self.name), format!("version = \"{}\"", self.version));
        let lines: Vec<&str> = lock.text.lines().collect();
        lines.windows(2).position(|two| two == [&name, &version]).map_or(1, |idx| idx + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::super::workspace::sample::{document, package};
    use super::*;

    #[test]
    fn expressions() {
        let allowed = ["MIT", "ISC", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        let lock = document("Cargo.lock", "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n");
        let check = |license, expected| {
            let finding = check(&package("a", license, None), &allowed, &lock);
            assert_eq!(finding.is_none(), expected, "{license:?}: {finding:?}");
            assert!(finding.is_none_or(|finding| finding.line == 2));
        };
        check(Some("MIT"), true);
        check(Some("MIT OR Apache-2.0"), true);
        check(Some("MIT/Apache-2.0"), true);
        check(Some("GPL-3.0-only OR MIT"), true);
        check(Some("Apache-2.0 WITH LLVM-exception"), true);
        check(Some("(MIT OR GPL-2.0-only) AND ISC"), true);
        check(Some("MIT AND GPL-3.0-only"), false);
        check(Some("GPL-3.0-only"), false);
        check(Some("Apache-2.0 WITH Classpath-exception-2.0"), false);
        check(Some("MIT WITH LLVM-exception"), false);
        check(Some("LicenseRef-secret"), false);
        check(Some("as you like"), false);
        check(None, false);
    }
}

//! Files that fit a reader's head: a header that says what the file holds, and not too many lines after it.
//!
//! Unit tests at the end of a file are not counted, so nobody saves on tests to stay small.

use super::finding::Finding;
use super::workspace::Source;

const LIMIT: usize = 400;
/// A file of tests is a list of cases, which is read entry by entry.
const LIMIT_OF_TESTS: usize = 600;

/// Checks one file.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let (path, text) = (&source.document.path, &source.document.text);
    let mut findings = Vec::new();
    if !text.starts_with("//!") {
        findings.push(Finding {
            path: path.clone(),
            line: 1,
            wrong: "no `//!` header".into(),
            remedy: "say in 2 to 6 lines what the file holds and its one invariant".into(),
        });
    }
    let limit = if is_test_file(path) { LIMIT_OF_TESTS } else { LIMIT };
    let n_lines = lines_before_unit_tests(text);
    if n_lines > limit {
        findings.push(Finding {
            path: path.clone(),
            line: limit + 1,
            wrong: format!("{n_lines} lines without unit tests, {limit} is the limit"),
            remedy: "split the file by noun".into(),
        });
    }
    findings
}

fn is_test_file(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs")
}

/// Lines before the first module of unit tests that is written out in the file. A `#[cfg(test)]` on anything else, such
/// as one import, does not end the count.
fn lines_before_unit_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let starts_tests = |idx: usize| {
        let item = lines[idx + 1..].iter().find(|line| !line.starts_with("#[") && !line.starts_with("//"));
        lines[idx] == "#[cfg(test)]" && item.is_some_and(|item| item.contains("mod ") && item.ends_with('{'))
    };
    (0..lines.len()).find(|&idx| starts_tests(idx)).unwrap_or(lines.len())
}

#[cfg(test)]
mod tests {
    use super::super::workspace::sample::source;
    use super::*;

    #[test]
    fn a_file_starts_with_its_header() {
        let check = |text, expected| assert_eq!(check(&source("a.rs", text)).is_empty(), expected, "{text}");
        check("//! Holds a.\nfn a() {}", true);
        check("fn a() {}", false);
        check("/// Does a.\nfn a() {}", false);
        check("#![no_std]\n//! Holds a.", false);
        check("", false);
    }

    #[test]
    fn lines_are_counted_up_to_the_unit_tests() {
        let check = |text, expected| assert_eq!(lines_before_unit_tests(text), expected, "{text}");
        check("fn a() {}\n\n#[cfg(test)]\nmod tests {\n}\n", 2);
        check("fn a() {}\n/// Values.\n#[cfg(test)]\n#[allow(dead_code)]\npub(crate) mod sample {\n}\n", 2);
        check("#[cfg(test)]\nuse b::c;\nfn a() {}\n", 3);
        check("#[cfg(test)]\nmod tests;\nfn a() {}\n", 3);
        check("fn a() {}\n#[cfg(test)]", 2);
        check("", 0);
    }

    #[test]
    fn the_limit_depends_on_the_kind_of_file() {
        let check = |path, n_lines: usize, expected| {
            let text = format!("//! Long.\n{}", "fn a() {}\n".repeat(n_lines - 1));
            assert_eq!(check(&source(path, &text)).is_empty(), expected, "{path} {n_lines}");
        };
        check("crates/kv/src/paged.rs", 400, true);
        check("crates/kv/src/paged.rs", 401, false);
        check("crates/kv/tests/paged.rs", 600, true);
        check("crates/kv/tests/paged.rs", 601, false);
        check("crates/kv/src/paged/tests.rs", 600, true);
        check("crates/kv/src/latests.rs", 401, false);
    }
}

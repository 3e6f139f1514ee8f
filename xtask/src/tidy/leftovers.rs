//! No unfinished work and no disabled test is merged.
//!
//! Macros and attributes are looked for among the tokens; marks for later are looked for in the whole text, because
//! they stand in comments.

use super::finding::Finding;
use super::token::{Token, attributes};
use super::workspace::Source;

const MACROS: [&str; 3] = ["todo", "unimplemented", "dbg"];
/// Joined from halves, or this file would be its own first finding.
const MARKS: [&str; 2] = [concat!("TO", "DO"), concat!("FIX", "ME")];

/// Checks one file.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |line, wrong, remedy: &str| {
        findings.push(Finding { path: source.document.path.clone(), line, wrong, remedy: remedy.into() });
    };
    for token in calls(&source.tokens) {
        add(token.line, format!("`{}!`", token.text), "write the code, or take the call out");
    }
    for attribute in attributes(&source.tokens).filter(|attribute| disables(attribute)) {
        add(
            attribute[0].line,
            "a disabled test".into(),
            "make it pass, gate it by a feature that CI runs, or delete it",
        );
    }
    for (idx, line) in source.document.text.lines().enumerate() {
        for mark in MARKS.iter().filter(|mark| words(line).any(|word| word == **mark)) {
            add(
                idx + 1,
                format!("a mark for later, {mark}"),
                "do it now, or open an issue and say here what holds today",
            );
        }
    }
    findings
}

/// The names of the macros that must not stay, where they are called.
fn calls(tokens: &[Token]) -> impl Iterator<Item = &Token> {
    // A bracket has to follow: `todo != 0` compares a variable.
    let called = tokens.windows(3).filter(|three| {
        MACROS.contains(&three[0].text.as_str())
            && three[1].text == "!"
            && ["(", "[", "{"].contains(&three[2].text.as_str())
    });
    called.map(|three| &three[0])
}

/// Whether an attribute is `ignore`, alone or under a condition.
fn disables(attribute: &[Token]) -> bool {
    let is_ignore = |token: &Token| token.text == "ignore";
    match attribute.first() {
        Some(first) if first.text == "cfg_attr" => attribute.iter().any(is_ignore),
        Some(first) => is_ignore(first),
        None => false,
    }
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
}

#[cfg(test)]
mod tests {
    use super::super::workspace::sample::source;
    use super::*;

    #[test]
    fn nothing_unfinished() {
        let check = |text: &str, lines: &[usize]| {
            let findings = check(&source("a.rs", text));
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), lines, "{text}");
        };
        check("fn f() {\n    todo!()\n}", &[2]);
        check("fn f() { std::unimplemented!(\"x\"); dbg![1]; }", &[1, 1]);
        check("fn f(todo: u8) -> bool { todo != 0 } // todo!()", &[]);
        check("/// Never calls `dbg!(x)`.\nconst S: &str = \"unimplemented!()\";", &[]);
        check("#[test]\n#[ignore]\nfn f() {}", &[2]);
        check("#[ignore = \"slow\"]\nfn f() {}", &[1]);
        check("#[cfg_attr(windows, ignore)]\nfn f() {}", &[1]);
        check("#[allow(dead_code)]\nfn ignore() {} // #[ignore]", &[]);
    }

    #[test]
    fn no_marks_for_later() {
        let check = |mark: &str, text: &str, expected| {
            let text = format!("//! Holds a.\n{}", text.replace('@', mark));
            let lines: Vec<usize> = check(&source("a.rs", &text)).iter().map(|finding| finding.line).collect();
            assert_eq!(lines, if expected { vec![2] } else { vec![] }, "{text}");
        };
        for mark in MARKS {
            check(mark, "// @: later", true);
            check(mark, "/* see @(name) */", true);
            check(mark, "const S: &str = \"@\";", true);
            check(mark, "// @S and MY_@ are other words", false);
        }
    }
}

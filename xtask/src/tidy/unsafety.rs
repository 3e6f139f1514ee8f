//! `unsafe` is written in `crates/kernels` only, where vector instructions and shared buffers need it.
//!
//! The compiler's own lint can be switched off beside the code that it should catch; this one cannot.

use super::finding::Finding;
use super::workspace::Source;

/// Checks one file; the first `unsafe` of a line counts.
pub(crate) fn check(source: &Source) -> Vec<Finding> {
    let path = &source.document.path;
    if path.starts_with("crates/kernels/") {
        return Vec::new();
    }
    let mut lines: Vec<usize> =
        source.tokens.iter().filter(|token| token.text == "unsafe").map(|token| token.line).collect();
    lines.dedup();
    let finding = |line| Finding {
        path: path.clone(),
        line,
        wrong: "`unsafe` outside crates/kernels".into(),
        remedy: "write it safely, or give crates/kernels a safe function for it".into(),
    };
    lines.into_iter().map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::super::workspace::sample::source;
    use super::*;

    #[test]
    fn kernels_only() {
        let check = |path, text, lines: &[usize]| {
            let findings = check(&source(path, text));
            assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), lines, "{text}");
        };
        check("crates/kernels/src/simd.rs", "unsafe fn f() {}", &[]);
        check("crates/kernels_extra/src/lib.rs", "unsafe fn f() {}", &[1]);
        check("crates/kv/src/lib.rs", "fn f() {\n    unsafe { g() }\n}", &[2]);
        check("crates/kv/tests/all.rs", "#[unsafe(no_mangle)]\nfn f() {}", &[1]);
        check("crates/kv/src/lib.rs", "macro_rules! m { () => { unsafe { unsafe { g() } } } }", &[1]);
        check("crates/kv/src/lib.rs", "// unsafe\n/// unsafe\nfn f() -> &'static str { \"unsafe\" }", &[]);
        check("crates/kv/src/lib.rs", "#![forbid(unsafe_code)]\nlet r#unsafe = not_unsafe;", &[]);
    }
}

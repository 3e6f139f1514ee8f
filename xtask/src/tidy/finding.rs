//! One broken rule at one place.
//!
//! A finding is printed as one line that names the place, what is wrong there, and what to do about it.

use std::fmt;

/// A broken rule; ordered by place.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Finding {
    /// Path from the root of the workspace, with `/` on every system.
    pub(crate) path: String,
    /// Line in the file, from 1.
    pub(crate) line: usize,
    pub(crate) wrong: String,
    pub(crate) remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line, self.wrong, self.remedy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line() {
        let finding =
            Finding { path: "a/b.rs".into(), line: 7, wrong: "too wide".into(), remedy: "make it narrow".into() };
        assert_eq!(finding.to_string(), "a/b.rs:7: too wide; make it narrow");
    }
}

//! The texts that come with specquant, and prompts from files.
//!
//! This is the only place of the crate that touches files; the bundled texts are part of the program and need none.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use specquant_core::{FileHash, Workload};

use crate::choose::choose;
use crate::prompts::{Prompt, parse};

const BUNDLED: &str = include_str!("../../../models/data/prompts.jsonl");

/// The bundled prompts: code, documentation, configuration and repetitive text.
pub fn bundled() -> Result<Vec<Prompt>> {
    parse("the bundled prompts", BUNDLED)
}

/// The bundled text for measuring perplexity; no part of it was trained on.
pub fn eval_text() -> &'static str {
    include_str!("../../../models/data/eval.txt")
}

/// The prompts of a JSONL file in UTF-8.
pub fn load(path: &Path) -> Result<Vec<Prompt>> {
    let name = path.display().to_string();
    let content = fs::read_to_string(path)
        .with_context(|| format!("cannot read the prompts in `{name}`: give a JSONL file in UTF-8, or `bundled`"))?;
    parse(&name, &content)
}

/// Which prompts a workload chooses from.
pub fn hash(workload: &Workload) -> Result<FileHash> {
    let name = workload.prompts.as_str();
    Ok(match name {
        "bundled" => FileHash::of("bundled prompts".into(), BUNDLED.as_bytes()),
        path => FileHash::of(name.into(), &fs::read(path).with_context(|| format!("cannot read `{name}`"))?),
    })
}

/// The prompts that a workload names, as many as it asks for.
pub fn prompts(workload: &Workload) -> Result<Vec<Prompt>> {
    let all = match workload.prompts.as_str() {
        "bundled" => bundled()?,
        path => load(Path::new(path))?,
    };
    choose(all, workload.num_prompts).with_context(|| format!("prompts `{}`", workload.prompts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeMap, HashSet};

    /// How many prompts of each category a workload takes, or part of the error.
    fn check(prompts: &str, num_prompts: usize, expected: Result<&[(&str, usize)], &str>) {
        let workload = Workload { prompts: prompts.into(), num_prompts, ..Workload::default() };
        let got = super::prompts(&workload).map(|chosen| {
            let mut counts = BTreeMap::new();
            for prompt in chosen {
                *counts.entry(prompt.category.unwrap_or_default()).or_insert(0) += 1;
            }
            counts.into_iter().collect::<Vec<_>>()
        });
        match (got, expected) {
            (Ok(got), Ok(expected)) => {
                assert_eq!(got.iter().map(|(name, n)| (name.as_str(), *n)).collect::<Vec<_>>(), expected);
            }
            (Err(got), Err(expected)) => assert!(format!("{got:#}").contains(expected), "{got:#}"),
            (got, expected) => panic!("{prompts}: {got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn bundled_prompts_keep_the_proportions_of_their_categories() {
        check("bundled", 0, Ok(&[("code", 36), ("config", 16), ("docs", 24), ("repetitive", 20)]));
        check("bundled", 96, Ok(&[("code", 36), ("config", 16), ("docs", 24), ("repetitive", 20)]));
        check("bundled", 24, Ok(&[("code", 9), ("config", 4), ("docs", 6), ("repetitive", 5)]));
        check("bundled", 4, Ok(&[("code", 1), ("config", 1), ("docs", 1), ("repetitive", 1)]));
        check("bundled", 97, Err("prompts `bundled`: num_prompts 97: there are only 96"));
        let all = bundled().unwrap();
        assert_eq!(all.iter().map(|prompt| &prompt.id).collect::<HashSet<_>>().len(), all.len());
        assert!(eval_text().len() > 10_000);
    }

    #[test]
    fn files_are_read_or_the_error_names_them() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            path.display().to_string()
        };
        check(
            &file("two", b"{\"prompt\":\"a\",\"category\":\"x\"}\r\n{\"prompt\":\"b\"}\n"),
            0,
            Ok(&[("", 1), ("x", 1)]),
        );
        check(&file("bad", b"{\"prompt\":\"a\"}\nb"), 0, Err("bad line 2: not JSON"));
        check(&file("empty", b""), 0, Err("empty holds no prompt"));
        check(&file("latin1", b"{\"prompt\":\"\xe9\"}"), 0, Err("latin1`: give a JSONL file in UTF-8"));
        check("no/such/file.jsonl", 0, Err("cannot read the prompts in `no/such/file.jsonl`"));
        check(&folder.path().display().to_string(), 0, Err("cannot read the prompts in `"));
    }
}

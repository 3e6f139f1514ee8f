//! The texts that come with specquant, and prompts from files.
//!
//! This is the only place of the crate that touches files; the bundled texts are part of the program and need none.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use specquant_core::{FileHash, Workload};

use crate::choose::choose;
use crate::prompts::{Parsed, Prompt, parse};

const BUNDLED: &str = include_str!("../../../models/data/prompts.jsonl");

/// The bundled prompts: code, documentation, configuration and repetitive text.
pub fn bundled() -> Result<Vec<Prompt>> {
    Ok(parse("the bundled prompts", BUNDLED.as_bytes(), false)?.prompts)
}

/// The bundled text for measuring perplexity; no part of it was trained on.
pub fn eval_text() -> &'static str {
    include_str!("../../../models/data/eval.txt")
}

/// The largest text file that is read whole: more than any context holds, and little against memory.
const MOST_BYTES: u64 = 256 << 20;

/// A text file in UTF-8, without the byte-order mark that some editors put at its head.
///
/// # Errors
/// What is no file, such as a folder, a device or a pipe, which may have no end; a file of more than 256 MiB; bytes that are
/// not UTF-8, with their line and place in it.
pub fn text(path: &Path) -> Result<String> {
    let content = bytes(path)?;
    let content = unmarked(&path.display().to_string(), &content)?;
    let text = std::str::from_utf8(content).map_err(|error| {
        let valid = &content[..error.valid_up_to()];
        let line = valid.iter().filter(|&&byte| byte == b'\n').count() + 1;
        let column = valid.iter().rev().take_while(|&&byte| byte != b'\n').count() + 1;
        anyhow!("{}: line {line}, byte {column} is not UTF-8: save the file in UTF-8", path.display())
    })?;
    Ok(text.to_string())
}

/// The contents of a file without the byte-order mark of UTF-8; that of UTF-16, in which every other byte would be an odd
/// character, is refused.
pub(crate) fn unmarked<'a>(name: &str, content: &'a [u8]) -> Result<&'a [u8]> {
    let wide = content.starts_with(&[0xff, 0xfe]) || content.starts_with(&[0xfe, 0xff]);
    ensure!(!wide, "{name}: the file is in UTF-16: save it in UTF-8");
    Ok(content.strip_prefix("\u{feff}".as_bytes()).unwrap_or(content))
}

/// The bytes of a file that has an end.
fn bytes(path: &Path) -> Result<Vec<u8>> {
    let name = path.display();
    let about = fs::metadata(path).with_context(|| format!("{name}: cannot be read"))?;
    ensure!(
        about.is_file(),
        "{name}: {} where a file belongs",
        if about.is_dir() { "a folder" } else { "a device or pipe" }
    );
    ensure!(about.len() <= MOST_BYTES, "{name}: {} bytes, of which at most {MOST_BYTES} are read: cut it", about.len());
    fs::read(path).with_context(|| format!("{name}: cannot be read"))
}

/// Which prompts a workload chooses from.
pub fn hash(workload: &Workload) -> Result<FileHash> {
    let name = workload.prompts.as_str();
    Ok(match name {
        "bundled" => FileHash::of("bundled prompts".into(), BUNDLED.as_bytes()),
        path => FileHash::of(name.into(), &bytes(Path::new(path))?),
    })
}

/// Prompts, and what was noticed in reading them.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// What a reader of the results should know, in a sentence; empty if there is nothing.
    pub notes: Vec<String>,
}

/// The prompts that a workload names, as many as it asks for.
pub fn prompts(workload: &Workload) -> Result<Dataset> {
    let Parsed { prompts, skipped } = match workload.prompts.as_str() {
        "bundled" => Parsed { prompts: bundled()?, skipped: Vec::new() },
        path => {
            let content = bytes(Path::new(path)).context("the prompts, a JSONL file or `bundled`")?;
            parse(path, &content, workload.skip_invalid)?
        }
    };
    let note =
        skipped.first().map(|first| format!("{} lines hold no prompt and were skipped, first {first}", skipped.len()));
    let prompts = choose(prompts, workload.num_prompts).with_context(|| format!("prompts `{}`", workload.prompts))?;
    Ok(Dataset { prompts, notes: note.into_iter().collect() })
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
            for prompt in chosen.prompts {
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
        check(&file("bad", b"{\"prompt\":\"a\"}\nb"), 0, Err("bad line 2: byte 1: expected value"));
        check(&file("empty", b""), 0, Err("empty holds no prompt"));
        check(&file("marked", b"\xef\xbb\xbf{\"prompt\":\"a\"}"), 0, Ok(&[("", 1)]));
        check(
            &file("latin1", b"\n{\"prompt\": \"\xe9\"}"),
            0,
            Err("latin1 line 2: byte 13 is not UTF-8: save the file"),
        );
        check(&file("wide", b"\xff\xfe{\0"), 0, Err("wide: the file is in UTF-16"));
        check("no/such/file.jsonl", 0, Err("a JSONL file or `bundled`: no/such/file.jsonl: cannot be read"));
        check(&folder.path().display().to_string(), 0, Err("a folder where a file belongs"));
        check("/dev/zero", 0, Err("/dev/zero: a device or pipe where a file belongs"));
        let large = folder.path().join("large");
        fs::File::create(&large).unwrap().set_len(MOST_BYTES + 1).unwrap();
        check(&large.display().to_string(), 0, Err("large: 268435457 bytes, of which at most 268435456 are read"));
    }
}

//! The model as GGUF files, one in each of llama.cpp's types, and the check that they hold what their names say.
//!
//! Files are always written anew, so none is of an older model; every matrix is of the one type, the head included.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::arguments::Arguments;
use super::pair::Pair;
use super::write_gguf;
use crate::command::{self, shown};

/// One GGUF file.
#[derive(Debug, Serialize)]
pub(crate) struct GgufFile {
    /// Where it is.
    pub(crate) path: PathBuf,
    /// The type of every matrix, as GGUF names it.
    pub(crate) matrices: &'static str,
    /// How many matrices there are, the embedding table among them.
    pub(crate) n_matrices: usize,
    /// The tensor that scores; `token_embd.weight` where the head is tied.
    pub(crate) head: String,
    /// Size of the file.
    pub(crate) bytes: u64,
}

/// What `tensor_types.py` prints.
#[derive(Deserialize)]
struct Types {
    head: String,
    matrices: BTreeMap<String, Vec<String>>,
}

/// Writes the model for each pair.
pub(crate) fn write(root: &Path, arguments: &Arguments) -> Result<Vec<GgufFile>> {
    let Arguments { model, work, python, .. } = arguments;
    std::fs::create_dir_all(work).with_context(|| format!("{}: cannot be made", work.display()))?;
    let full = model.canonicalize().with_context(|| format!("{}", model.display()))?;
    let name = full.file_name().context("the root folder is no model")?.to_string_lossy().into_owned();
    let stored = work.join(format!("{name}.gguf"));
    command::run(&mut write_gguf(root, python, model, &stored))?;
    let files = arguments.pairs.iter().map(|pair| {
        let file = work.join(format!("{name}-{}.gguf", pair.theirs));
        let mut quantize = quantize(arguments, *pair, &stored, &file);
        println!("$ {}", shown(&quantize));
        command::output(&mut quantize)?;
        let file = described(root, python, *pair, file)?;
        let GgufFile { path, matrices, n_matrices, head, bytes } = &file;
        println!("{}: {n_matrices} matrices, all {matrices}, {head} is the head, {bytes} bytes", path.display());
        Ok(file)
    });
    files.collect()
}

/// `--pure` keeps llama.cpp from giving some matrices more bits; the two others are said as well, lest a version of it
/// leave them out of that.
fn quantize(arguments: &Arguments, pair: Pair, from: &Path, to: &Path) -> Command {
    let mut quantize = Command::new(arguments.llama.join("llama-quantize"));
    let kind = pair.theirs.to_lowercase();
    quantize.args(["--pure", "--token-embedding-type", &kind, "--output-tensor-type", &kind]);
    quantize.arg(from).arg(to).args([pair.theirs, &arguments.threads.to_string()]);
    quantize
}

/// Reads a file back and checks the type of its matrices.
fn described(root: &Path, python: &str, pair: Pair, path: PathBuf) -> Result<GgufFile> {
    let mut read = Command::new(python);
    let text = command::output(read.arg(root.join("xtask/peer/tensor_types.py")).arg(&path))?;
    let types: Types = serde_json::from_str(&text).context("tensor_types.py")?;
    let n_matrices = uniform(&types.matrices, pair.theirs).with_context(|| format!("{}", path.display()))?;
    let bytes = path.metadata().with_context(|| format!("{}", path.display()))?.len();
    Ok(GgufFile { path, matrices: pair.theirs, n_matrices, head: types.head, bytes })
}

/// How many matrices there are, if all are of one type.
fn uniform(matrices: &BTreeMap<String, Vec<String>>, expected: &str) -> Result<usize> {
    for (kind, names) in matrices {
        ensure!(
            kind == expected,
            "{} is {kind} and not {expected}: is the length of its rows a multiple of 32?",
            names.join(", ")
        );
    }
    let n = matrices.values().map(Vec::len).sum();
    ensure!(n > 0, "holds no matrix");
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_matrix_of_another_type_is_an_error_that_names_it() {
        let matrices = |groups: &[(&str, &[&str])]| {
            groups
                .iter()
                .map(|(kind, names)| ((*kind).into(), names.iter().map(|name| (*name).into()).collect()))
                .collect()
        };
        assert_eq!(uniform(&matrices(&[("Q4_0", &["a", "b"])]), "Q4_0").unwrap(), 2);
        let error = uniform(&matrices(&[("Q4_0", &["a", "b"]), ("Q6_K", &["token_embd.weight"])]), "Q4_0").unwrap_err();
        assert!(error.to_string().starts_with("token_embd.weight is Q6_K and not Q4_0"), "{error}");
        assert!(uniform(&matrices(&[]), "Q4_0").is_err());
    }
}

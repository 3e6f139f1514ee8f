//! Our side: the example `decode_rate`, built once and started anew for every measurement, as llama-bench is.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use specquant_metrics::Spread;

use super::pair::{Pair, REPETITIONS, Work};
use crate::command;

/// Our program and how it came about.
#[derive(Debug, Serialize)]
pub(crate) struct Ours {
    /// The example.
    #[serde(skip)]
    program: PathBuf,
    /// The commit that it was built from.
    pub(crate) commit: String,
    /// Whether files under version control had changed since.
    pub(crate) changed: bool,
}

/// What one start of it says.
#[derive(Debug, Deserialize)]
pub(crate) struct OurSample {
    model: OurModel,
    samples_ts: Vec<f64>,
}

/// The part of a model's description that is looked at here.
#[derive(Debug, Deserialize)]
struct OurModel {
    device: String,
    kv_dtype: String,
}

impl Ours {
    /// Builds the program.
    pub(crate) fn build(root: &Path) -> Result<Ours> {
        command::run(&mut command::cargo(root, "build --release --locked -p specquant-model --example decode_rate"))?;
        let git = |words: &str| {
            let mut git = Command::new("git");
            command::output(git.args(words.split(' ')).current_dir(root))
        };
        let commit = git("rev-parse --short HEAD").map_or("unknown".to_string(), |hash| hash.trim().to_string());
        let changed = git("status --porcelain --untracked-files=no").is_ok_and(|files| !files.is_empty());
        Ok(Ours { program: root.join("target/release/examples/decode_rate"), commit, changed })
    }

    /// The command that measures.
    pub(crate) fn command(&self, model: &Path, pair: Pair, work: Work, threads: usize) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("-m").arg(model).args(["-w", pair.ours]).args(work.arguments(threads)).args(["-r", REPETITIONS]);
        command
    }
}

impl OurSample {
    /// Reads what the program printed.
    pub(crate) fn parse(text: &str) -> Result<OurSample> {
        let samples: Vec<OurSample> = serde_json::from_str(text).context("the output of decode_rate")?;
        samples.into_iter().next().context("decode_rate measured nothing")
    }

    /// Tokens per second, the median of its repetitions.
    pub(crate) fn rate(&self) -> Result<f64> {
        let spread = Spread::of(self.samples_ts.iter().copied()).context("decode_rate measured nothing")?;
        Ok(spread.p50.value)
    }

    /// Such as `cpu avx2, 2 threads`.
    pub(crate) fn device(&self) -> &str {
        &self.model.device
    }

    /// Type of keys and values, such as `f16`.
    pub(crate) fn kv(&self) -> &str {
        &self.model.kv_dtype
    }
}

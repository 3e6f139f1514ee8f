//! llama.cpp's side: `llama-bench`, its defaults but for threads, and flash attention as it is faster.
//!
//! What llama-bench prints of itself goes into the record, so that a reader sees the settings that it really had.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use specquant_metrics::Spread;

use super::pair::{REPETITIONS, Work};
use crate::command;

/// What of llama.cpp's build decides about speed.
const FLAGS: [&str; 7] = [
    "CMAKE_BUILD_TYPE",
    "CMAKE_C_FLAGS",
    "GGML_NATIVE",
    "GGML_LLAMAFILE",
    "GGML_CPU_REPACK",
    "GGML_OPENMP_ENABLED",
    "GGML_BLAS",
];

/// llama.cpp's program and how it came about.
#[derive(Debug, Serialize)]
pub(crate) struct Theirs {
    #[serde(skip)]
    program: PathBuf,
    /// The options that it was configured with, such as `GGML_NATIVE=ON`; empty where its build folder is not beside it.
    pub(crate) flags: Vec<String>,
}

/// What one test of llama-bench says, by its own names.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct TheirSample {
    /// The commit that it was built from.
    pub(crate) build_commit: String,
    build_number: u64,
    backends: String,
    model_type: String,
    n_batch: u64,
    n_ubatch: u64,
    n_threads: u64,
    /// Type of the keys.
    pub(crate) type_k: String,
    /// Type of the values.
    pub(crate) type_v: String,
    /// 1 with flash attention, 0 without.
    pub(crate) flash_attn: i32,
    samples_ts: Vec<f64>,
}

impl Theirs {
    /// The program in a folder.
    pub(crate) fn find(folder: &Path) -> Theirs {
        let cache = std::fs::read_to_string(folder.join("../CMakeCache.txt")).unwrap_or_default();
        Theirs { program: folder.join("llama-bench"), flags: flags(&cache) }
    }

    /// The command that measures, as often as `-r` then says; `flash` is 0, 1 or both.
    pub(crate) fn command(&self, file: &Path, work: Work, threads: usize, flash: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("-m").arg(file).args(work.arguments(threads)).args(["-fa", flash]);
        command.args(["-ctk", "f16", "-ctv", "f16", "-o", "json"]);
        command
    }

    /// Measures with and without flash attention: tokens per second of 0 and of 1.
    pub(crate) fn probe(&self, file: &Path, work: Work, threads: usize) -> Result<[f64; 2]> {
        let mut command = self.command(file, work, threads, "0,1");
        let samples = TheirSample::parse(&command::output(command.args(["-r", REPETITIONS]))?)?;
        let rate = |flash| {
            let sample = samples.iter().find(|sample| sample.flash_attn == flash);
            sample.context("llama-bench did not measure flash attention")?.rate()
        };
        Ok([rate(0)?, rate(1)?])
    }
}

impl TheirSample {
    /// Reads what llama-bench printed.
    pub(crate) fn parse(text: &str) -> Result<Vec<TheirSample>> {
        serde_json::from_str(text).context("the output of llama-bench")
    }

    /// Tokens per second, the median of its repetitions.
    pub(crate) fn rate(&self) -> Result<f64> {
        let spread = Spread::of(self.samples_ts.iter().copied()).context("llama-bench measured nothing")?;
        Ok(spread.p50.value)
    }
}

/// The flags as CMake stored them: lines such as `GGML_NATIVE:BOOL=ON`.
fn flags(cache: &str) -> Vec<String> {
    let value = |flag: &str| {
        let mut values = cache.lines().filter_map(|line| line.strip_prefix(flag)?.strip_prefix(':')?.split_once('='));
        let (_, value) = values.next()?;
        (!value.is_empty()).then(|| format!("{flag}={value}"))
    };
    FLAGS.iter().filter_map(|flag| value(flag)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_from_the_cache_of_cmake() {
        let cache = "// native\nGGML_NATIVE:BOOL=ON\nGGML_NATIVE_X:BOOL=OFF\nCMAKE_BUILD_TYPE:STRING=Release\nCMAKE_C_FLAGS:STRING=\n";
        assert_eq!(flags(cache), ["CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON"]);
        assert!(flags("").is_empty());
    }

    #[test]
    fn the_output_of_llama_bench_is_read() {
        let text = r#"[{"build_commit": "0c1e570", "build_number": 1, "backends": "CPU", "model_type": "llama ?B F16",
            "n_batch": 2048, "n_ubatch": 512, "n_threads": 2, "type_k": "f16", "type_v": "f16", "flash_attn": 1,
            "samples_ns": [1, 2, 3], "samples_ts": [3.0, 1.0, 2.0]}]"#;
        let samples = TheirSample::parse(text).unwrap();
        assert_eq!((samples[0].rate().unwrap(), samples[0].flash_attn), (2.0, 1));
        assert!(TheirSample::parse("error: no such file").is_err());
    }
}

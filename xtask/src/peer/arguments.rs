//! The words after `cargo xtask peer-bench`, and whether what they name is there.
//!
//! Whatever can be seen to be wrong is an error before anything is written or measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use specquant_machine::Machine;

use super::pair::{PAIRS, Pair, Work};
use crate::command;

/// What `peer-bench` takes.
pub(crate) const OPTIONS: &str = "\
    --llama DIR   the folder with llama.cpp's programs llama-bench and llama-quantize; needed
    --python P    a Python with the packages gguf and numpy; python3
    --work DIR    where the GGUF files are written; target/peer
    --pairs LIST  of f16, int8-a8:g32 and int4-a8:g32, which meet F16, Q8_0 and Q4_0; all
    --turns N     measurements of each side; 5
    --threads N   of both; the physical cores
    --prompt N    tokens of a prefill, or 0; 512
    --generate N  tokens of a decode at batch 1, or 0; 128
    --depth LIST  tokens in the context before; 0
    --json FILE   where the record is written
";

/// What to measure, and with what.
#[derive(Debug)]
pub(crate) struct Arguments {
    /// The model's folder.
    pub(crate) model: PathBuf,
    /// The folder of llama.cpp's programs.
    pub(crate) llama: PathBuf,
    /// The Python that has `gguf`.
    pub(crate) python: String,
    /// The folder of the GGUF files.
    pub(crate) work: PathBuf,
    /// What meets what.
    pub(crate) pairs: Vec<Pair>,
    /// Measurements of each side.
    pub(crate) turns: usize,
    /// Threads of each side.
    pub(crate) threads: usize,
    /// Where the record goes.
    pub(crate) json: Option<PathBuf>,
    prompt: usize,
    generate: usize,
    depths: Vec<usize>,
}

impl Arguments {
    /// Reads the words; files go to `work` unless they say otherwise.
    pub(crate) fn parse(words: &[String], work: &Path) -> Result<Arguments> {
        let (model, llama) = (PathBuf::new(), PathBuf::new());
        let (python, work, pairs) = ("python3".to_string(), work.to_path_buf(), PAIRS.to_vec());
        let (turns, threads, prompt, generate) = (5, 0, 512, 128);
        let (json, depths) = (None, vec![0]);
        let mut arguments =
            Arguments { model, llama, python, work, pairs, turns, threads, json, prompt, generate, depths };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if word.starts_with("--") {
                let value = words.next().with_context(|| format!("{word}: needs a value"))?;
                arguments.set(word, value)?;
            } else {
                ensure!(arguments.model.as_os_str().is_empty(), "`{word}`: only one model can be measured");
                arguments.model = word.into();
            }
        }
        if arguments.threads == 0 {
            arguments.threads = Machine::read().physical_cores;
        }
        Ok(arguments)
    }

    fn set(&mut self, option: &str, value: &str) -> Result<()> {
        let number = |text: &str| {
            let number: Option<u32> = text.trim().parse().ok();
            number.map(|number| number as usize).with_context(|| format!("{option} {value}: give a whole number"))
        };
        match option {
            "--llama" => self.llama = value.into(),
            "--python" => self.python = value.into(),
            "--work" => self.work = value.into(),
            "--json" => self.json = Some(value.into()),
            "--pairs" => self.pairs = Pair::parse(value)?,
            "--turns" => self.turns = number(value)?,
            "--threads" => self.threads = number(value)?,
            "--prompt" => self.prompt = number(value)?,
            "--generate" => self.generate = number(value)?,
            "--depth" => self.depths = value.split(',').map(number).collect::<Result<_>>()?,
            _ => bail!("`{option}` is no option of peer-bench, which has\n{OPTIONS}"),
        }
        Ok(())
    }

    /// Whether all that is named is there and can be measured.
    pub(crate) fn checked(self) -> Result<Arguments> {
        let folder = self.model.display();
        ensure!(!self.model.as_os_str().is_empty(), "give the folder of a model, such as models/target");
        ensure!(self.turns > 0, "--turns 0: needs at least one; five give an interval worth reading");
        ensure!(!self.works().is_empty(), "--prompt 0 --generate 0: leaves nothing to measure");
        let (context, need) = (context(&self.model)?, self.positions());
        ensure!(
            need <= context,
            "{folder} has a context of {context}, and {need} tokens are asked for: lower --depth, --prompt or --generate"
        );
        let remedy = "give the folder of a build of llama.cpp with --llama: \
                      `cmake --build build --target llama-bench llama-quantize` writes them to build/bin";
        for program in ["llama-bench", "llama-quantize"] {
            let there = ["", ".exe"].iter().any(|end| self.llama.join(format!("{program}{end}")).is_file());
            ensure!(there, "{}: no {program} in this folder; {remedy}", self.llama.display());
        }
        let mut import = Command::new(&self.python);
        ensure!(
            command::succeeds_quietly(import.args(["-c", "import gguf, numpy"])),
            "{}: cannot import gguf and numpy; `pip install gguf numpy`, or name a Python that has them with --python",
            self.python
        );
        if let Some(path) = &self.json {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            ensure!(parent.is_dir(), "--json {}: {} is no folder; make it first", path.display(), parent.display());
        }
        Ok(self)
    }

    /// Everything that is timed.
    pub(crate) fn works(&self) -> Vec<Work> {
        let at = |depth| {
            let works =
                [Work { prompt: self.prompt, generate: 0, depth }, Work { prompt: 0, generate: self.generate, depth }];
            works.into_iter().filter(|work| work.prompt + work.generate > 0)
        };
        self.depths.iter().copied().flat_map(at).collect()
    }

    /// Positions that the longest work takes.
    fn positions(&self) -> usize {
        self.works().iter().map(|work| work.depth + work.prompt + work.generate).max().unwrap_or(0)
    }
}

/// The most tokens that a model's sequences may have.
fn context(model: &Path) -> Result<usize> {
    let path = model.join("config.json");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("{}: cannot be read; give the folder of a Hugging Face checkpoint", path.display()))?;
    let config: Value = serde_json::from_str(&text).with_context(|| format!("{}: is no JSON", path.display()))?;
    let context = config["max_position_embeddings"].as_u64();
    Ok(context.with_context(|| format!("{}: has no max_position_embeddings", path.display()))? as usize)
}

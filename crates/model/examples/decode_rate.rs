//! Prints how fast one sequence is prefilled and decoded, as JSON: the counterpart of llama.cpp's `llama-bench`.
//!
//! `cargo run --release -p specquant-model --example decode_rate -- -m models/target -w f16 -p 512 -n 128 -d 0 -t 2 -r 5`
//! does llama-bench's work in its order: a warm-up, then for each repetition an untimed context of D random tokens, and timed
//! either P random tokens with the last one scored, or N forwards of one random token, each scored. KV is f16.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use specquant_core::{Batch, KvDtype, Model, ModelInfo, Quantizer, Rng, Run, Score, Use, WeightFormat};
use specquant_kernels::{Isa, Team};
use specquant_model::{LoadOptions, ModelFiles, load};

/// Tokens of one forward while the context or a prompt is read; llama.cpp's default micro-batch.
const CHUNK: usize = 512;

/// What is measured, by llama-bench's letters.
struct Request {
    model: String,
    weights: WeightFormat,
    prompt: usize,
    generate: usize,
    depth: usize,
    threads: usize,
    repetitions: usize,
}

/// One measurement, its fields named as llama-bench names them.
#[derive(Serialize)]
struct Measured<'a> {
    model: &'a ModelInfo,
    n_prompt: usize,
    n_gen: usize,
    n_depth: usize,
    /// Of each repetition.
    samples_ns: Vec<u64>,
    /// Tokens per second of each repetition.
    samples_ts: Vec<f64>,
}

fn main() -> Result<()> {
    let request = Request::parse(std::env::args().skip(1))?;
    let slots = request.depth + request.prompt.max(request.generate);
    let options = LoadOptions {
        weights: request.weights,
        // As llama-quantize does it; the codes decide nothing about the time, and searching for better ones takes minutes.
        quantizer: Quantizer::Rtn,
        kv_dtype: KvDtype::F16,
        kv_slots: slots,
        team: Team::new(request.threads, Isa::detect())?,
    };
    let files = ModelFiles::folder(Path::new(&request.model))?;
    let mut sequence = Sequence { model: load(&files, &options)?, slots: (0..slots as u32).collect() };
    let context = sequence.model.info().context;
    ensure!(slots <= context, "{slots} tokens are more than the model's context of {context}: lower -d, -p or -n");
    let mut samples = Vec::new();
    for (prompt, generate) in [(request.prompt, 0), (0, request.generate)] {
        if prompt + generate > 0 {
            samples.push((prompt, generate, sequence.measure(prompt, generate, &request)?));
        }
    }
    let measured = samples.into_iter().map(|(n_prompt, n_gen, samples_ns)| {
        let rate = |ns: &u64| (n_prompt + n_gen) as f64 * 1e9 / *ns as f64;
        let samples_ts = samples_ns.iter().map(rate).collect();
        Measured { model: sequence.model.info(), n_prompt, n_gen, n_depth: request.depth, samples_ns, samples_ts }
    });
    println!("{}", serde_json::to_string_pretty(&measured.collect::<Vec<_>>())?);
    Ok(())
}

impl Request {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Request> {
        let (model, weights) = (String::new(), WeightFormat::F16);
        let mut request = Request { model, weights, prompt: 512, generate: 128, depth: 0, threads: 1, repetitions: 5 };
        while let Some(letter) = words.next() {
            let value = words.next().with_context(|| format!("{letter}: needs a value"))?;
            let number = || value.parse().with_context(|| format!("{letter} {value}: give a whole number"));
            match letter.as_str() {
                "-m" => request.model.clone_from(&value),
                "-w" => request.weights = value.parse().context("-w")?,
                "-p" => request.prompt = number()?,
                "-n" => request.generate = number()?,
                "-d" => request.depth = number()?,
                "-t" => request.threads = number()?,
                "-r" => request.repetitions = number()?,
                _ => bail!("`{letter}` is no option: use -m FOLDER, -w FORMAT, -p, -n, -d, -t and -r"),
            }
        }
        ensure!(!request.model.is_empty(), "-m: give the folder of a Hugging Face checkpoint");
        ensure!(request.prompt + request.generate > 0, "-p 0 -n 0: nothing to measure");
        Ok(request)
    }
}

/// A model and the one sequence that it runs, whose slots are its positions.
struct Sequence {
    model: Box<dyn Model>,
    slots: Vec<u32>,
}

impl Sequence {
    /// Nanoseconds of each repetition.
    fn measure(&mut self, prompt: usize, generate: usize, request: &Request) -> Result<Vec<u64>> {
        self.prefill(0, prompt)?;
        self.decode(0, generate.min(1))?;
        let mut samples = Vec::new();
        for _ in 0..request.repetitions {
            self.prefill(0, request.depth)?;
            let start = Instant::now();
            self.prefill(request.depth, prompt)?;
            self.decode(request.depth, generate)?;
            samples.push(start.elapsed().as_nanos() as u64);
        }
        Ok(samples)
    }

    /// Runs `n` tokens from position `start` in as few forwards as the chunk allows, and scores the last row of each.
    fn prefill(&mut self, start: usize, n: usize) -> Result<()> {
        (start..start + n).step_by(CHUNK).try_for_each(|at| self.forward(at, CHUNK.min(start + n - at)))
    }

    /// Runs `n` tokens from position `start` one by one, each scored.
    fn decode(&mut self, start: usize, n: usize) -> Result<()> {
        (start..start + n).try_for_each(|at| self.forward(at, 1))
    }

    fn forward(&mut self, start: usize, n: usize) -> Result<()> {
        let (vocab, rng) = (self.model.info().vocab as f64, Rng { seed: 0, request: 0 });
        let tokens: Vec<u32> = (start..start + n).map(|at| (rng.uniform(at, Use::Draft) * vocab) as u32).collect();
        let (slots, score) = (&self.slots[..start + n], Score::Greedy { rows: 1 });
        self.model.forward(&Batch { runs: vec![Run { seq: 0, tokens: &tokens, start, slots, score }] })?;
        Ok(())
    }
}

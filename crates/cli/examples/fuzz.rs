//! Mutated inputs of every kind that specquant reads, for as long as asked: `fuzz TARGET SECONDS RUN_FOLDER [SEED]`.
//!
//! Every input must end in a value or an error within a second or two: no panic, and no more memory than a multiple of the
//! input. Inputs follow from seed and number alone, so a finding is repeated by its number; `cargo xtask fuzz` runs all targets.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use peak_alloc::PeakAlloc;
use specquant_core::{KvDtype, Quantizer, Rng, Text, TextState, Use, WeightFormat};
use specquant_kernels::{Isa, Team};
use specquant_model::{LoadOptions, ModelFiles, Tokenizer, load};
use specquant_report::{Record, details, markdown, read_log_anyway, text};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Memory that an input may take: a multiple of its length for the tree that a parser makes of it, and a floor for everything
/// that does not depend on it. A length in an input that is believed breaks it at once.
const MOST: (usize, usize) = (64, 32 << 20);

/// No input takes longer.
const LONGEST: Duration = Duration::from_secs(10);

/// What is done with an input.
type Try = Box<dyn Fn(&[u8]) -> Result<()>>;

type Files = BTreeMap<String, Vec<u8>>;

/// A kind of input.
struct Target {
    name: &'static str,
    /// Sound inputs, which are mutated.
    corpus: Vec<Vec<u8>>,
    run: Try,
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [name, seconds, folder, rest @ ..] = &words[..] else { bail!("usage: fuzz TARGET SECONDS RUN_FOLDER [SEED]") };
    let seed = rest.first().map_or(Ok(0), |seed| seed.parse()).context("SEED")?;
    let limit = Duration::from_secs(seconds.parse().context("SECONDS")?);
    let target = targets(Path::new(folder))?.into_iter().find(|target| target.name == name.as_str());
    fuzz(&target.with_context(|| format!("no target `{name}`"))?, limit, seed)
}

fn fuzz(target: &Target, limit: Duration, seed: u64) -> Result<()> {
    for sound in &target.corpus {
        (target.run)(sound).context("a sound input is refused")?;
    }
    let (start, mut number, mut accepted, mut most) = (Instant::now(), 0u64, 0u64, (0, 0));
    while start.elapsed() < limit {
        let input = mutated(&target.corpus, Rng { seed, request: number });
        let began = Instant::now();
        let (outcome, mut used) = measured(target, &input);
        let (took, bound) = (began.elapsed(), MOST.0 * input.len() + MOST.1);
        if used > bound {
            // Libraries fill caches of their own now and then; what an input takes, it takes each time.
            used = used.min(measured(target, &input).1);
        }
        let found = |what: String| {
            let path = std::env::temp_dir().join(format!("fuzz-{}-{seed}-{number}", target.name));
            std::fs::write(&path, &input)?;
            bail!("{} input {number} of seed {seed}, kept in {}: {what}", target.name, path.display());
        };
        match outcome {
            Some(outcome) => accepted += u64::from(outcome.is_ok()),
            None => return found("panicked".into()),
        }
        if took > LONGEST {
            return found(format!("took {took:?}"));
        }
        if used > bound {
            return found(format!("took {used} bytes for {}", input.len()));
        }
        most = most.max((used, input.len()));
        number += 1;
    }
    println!(
        "{}: {number} inputs in {:.0} s, {accepted} accepted, no panic; at most {} KiB of memory, for an input of {} bytes",
        target.name,
        start.elapsed().as_secs_f64(),
        most.0 >> 10,
        most.1
    );
    Ok(())
}

/// What became of an input, `None` for a panic, and the memory that it took.
fn measured(target: &Target, input: &[u8]) -> (Option<Result<()>>, usize) {
    let held = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let outcome = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    (outcome.ok(), MEMORY.peak_usage().saturating_sub(held))
}

/// A sound input after a few changes.
fn mutated(corpus: &[Vec<u8>], rng: Rng) -> Vec<u8> {
    let mut draws = 0;
    let mut below = |n: usize| {
        draws += 1;
        (rng.uniform(draws, Use::Draft) * n as f64) as usize
    };
    let mut input = corpus[below(corpus.len())].clone();
    for _ in 0..1 + below(4) {
        let at = below(input.len() + 1);
        let end = (at + 1 + below(16)).min(input.len());
        match below(9) {
            0 => input.truncate(at),
            1 => drop(input.drain(at..end)),
            2 if at < input.len() => input[at] ^= 1 << below(8),
            3 => {
                let part = input[at..end].to_vec();
                input.splice(at..at, part);
            }
            4 => {
                let other = &corpus[below(corpus.len())];
                let from = below(other.len() + 1);
                let part = other[from..(from + 1 + below(64)).min(other.len())].to_vec();
                input.splice(at..end, part);
            }
            5..7 => {
                let number = NUMBERS[below(NUMBERS.len())];
                replace_number(&mut input, at, number.as_bytes());
            }
            7 => drop(input.splice(at..end, VALUES[below(VALUES.len())].bytes())),
            _ => drop(input.splice(at..at, (0..1 + below(8)).map(|_| below(256) as u8).collect::<Vec<_>>())),
        }
    }
    input
}

const NUMBERS: [&str; 12] = [
    "0",
    "1",
    "-1",
    "2",
    "65536",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "1e308",
    "1e999",
    "0.5",
];

const VALUES: [&str; 10] =
    ["null", "true", "[]", "{}", "\"\"", "\"\u{feff}\"", "\"\\ud83e\"", "[[[[", "{\"type\":\"Sequence\"}", ","];

/// Puts another number in the place of the first one from `at` on.
fn replace_number(input: &mut Vec<u8>, at: usize, number: &[u8]) {
    let Some(start) = (at..input.len()).find(|&i| input[i].is_ascii_digit()) else { return };
    let end = (start..input.len()).find(|&i| !input[i].is_ascii_digit()).unwrap_or(input.len());
    input.splice(start..end, number.iter().copied());
}

fn targets(run: &Path) -> Result<Vec<Target>> {
    let tiny = tiny()?;
    let golden = include_str!("../../../models/data/begin.json");
    let golden: serde_json::Value = serde_json::from_str(golden)?;
    let gemma = golden["tokenizers"]["gemma"]["json"].to_string().into_bytes();
    let mut bpe: serde_json::Value = serde_json::from_slice(include_bytes!("../../../models/draft/tokenizer.json"))?;
    shorten(&mut bpe);
    let file = |name: &str| tiny[name].clone();
    let prompts = include_bytes!("../../../models/data/prompts.jsonl");
    let end = prompts.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(3).map_or(0, |(at, _)| at);
    Ok(vec![
        Target { name: "safetensors", corpus: vec![file("model.safetensors")], run: model(&tiny, "model.safetensors") },
        Target { name: "config", corpus: vec![file("config.json")], run: model(&tiny, "config.json") },
        Target {
            name: "index",
            corpus: vec![file("model.safetensors.index.json")],
            run: model(&tiny, "model.safetensors.index.json"),
        },
        Target { name: "tokenizer", corpus: vec![gemma, bpe.to_string().into_bytes()], run: Box::new(tokenizer) },
        Target {
            name: "prompts",
            corpus: vec![prompts[..end].to_vec(), b"\xef\xbb\xbf{\"prompt\":\"a\"}\r\n".to_vec()],
            run: Box::new(|input| {
                let _ = specquant_workload::parse("input", input, true);
                specquant_workload::parse("input", input, false).map(drop)
            }),
        },
        Target { name: "rounds", corpus: vec![std::fs::read(run.join("rounds.jsonl"))?], run: rounds()? },
    ])
}

/// The parts of a vocabulary that a short tokenizer needs.
fn shorten(tokenizer: &mut serde_json::Value) {
    if let Some(vocab) = tokenizer["model"]["vocab"].as_object_mut() {
        vocab.retain(|_, id| id.as_u64().is_some_and(|id| id < 300));
    }
    tokenizer["model"]["merges"] = serde_json::json!([]);
}

/// Reads a model of which one file is the input, loads it and runs a token.
fn model(files: &Files, name: &'static str) -> Try {
    let (files, team) = (files.clone(), Team::new(1, Isa::detect()));
    Box::new(move |input| {
        let mut files = files.clone();
        if name != "model.safetensors.index.json" {
            files.remove("model.safetensors.index.json");
        }
        files.insert(name.into(), input.to_vec());
        let files = files.into_iter().map(|(name, bytes)| (name, Cow::Owned(bytes))).collect();
        let files = ModelFiles::memory("input", files);
        files.summary()?;
        // Whatever the headers allow may be as large as they say; what is no larger than the file is loaded.
        let (weights, kv_dtype, kv_slots) = (WeightFormat::F16, KvDtype::F32, 4);
        let memory = files.footprint(weights, kv_dtype, kv_slots)?;
        ensure!(memory.matrices + memory.embedding + memory.kv < 1 << 22, "too large to be tried");
        let team = team.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?.clone();
        let mut model = load(&files, &LoadOptions { weights, quantizer: Quantizer::Rtn, kv_dtype, kv_slots, team })?;
        specquant_engine::finite(&mut *model)
    })
}

fn tokenizer(input: &[u8]) -> Result<()> {
    let tokenizer = Tokenizer::parse("input", input)?;
    for text in ["", "a", " fn  main() {\n\t}", "naïve 🦀 한국어", "<|begin|>x"] {
        let (ids, _) = tokenizer.template().around(&tokenizer.encode(text)?);
        let mut state = TextState::default();
        for id in ids {
            tokenizer.step(&mut state, id)?;
        }
    }
    Ok(())
}

/// Reads a log, derives its record and prints it.
fn rounds() -> Result<Try> {
    let folder = tempfile::tempdir()?;
    Ok(Box::new(move |input| {
        std::fs::write(folder.path().join("rounds.jsonl"), input)?;
        let record = Record::derive(&read_log_anyway(folder.path())?)?;
        let _ = (text(&record), markdown(&record), details(&record), specquant_report::conclusion(&record));
        let _ = (specquant_report::kv(&record), specquant_report::trust(&record), specquant_report::caution(&record));
        ensure!(record.invalid.is_empty(), "invalid");
        Ok(())
    }))
}

/// A Llama model of a few KiB.
fn tiny() -> Result<Files> {
    let (hidden, vocab) = (8usize, 300usize);
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_string(), vec![vocab, hidden]),
        ("model.norm.weight".to_string(), vec![hidden]),
    ];
    let square = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let wide = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
    let name = |part: &str| format!("model.layers.0.{part}.weight");
    shapes.extend(["input_layernorm", "post_attention_layernorm"].map(|part| (name(part), vec![hidden])));
    shapes.extend(square.iter().chain(&wide).map(|part| (name(part), vec![hidden, hidden])));
    let (mut header, mut data, mut map) = (serde_json::Map::new(), Vec::new(), serde_json::Map::new());
    for (name, shape) in shapes {
        let elements: usize = shape.iter().product();
        let start = data.len();
        data.extend((0..elements).flat_map(|i| half::f16::from_f32((i % 7) as f32 / 8.0 - 0.4).to_le_bytes()));
        let entry = serde_json::json!({ "dtype": "F16", "shape": shape, "data_offsets": [start, data.len()] });
        map.insert(name.clone(), "model.safetensors".into());
        header.insert(name, entry);
    }
    let header = serde_json::Value::from(header).to_string().into_bytes();
    let weights = [(header.len() as u64).to_le_bytes().as_slice(), &header, &data].concat();
    let config = serde_json::json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden, "intermediate_size": hidden,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5,
        "rope_theta": 1e4, "vocab_size": vocab, "max_position_embeddings": 64, "tie_word_embeddings": true,
    });
    Ok(Files::from([
        ("config.json".into(), config.to_string().into_bytes()),
        ("model.safetensors".into(), weights),
        (
            "model.safetensors.index.json".into(),
            serde_json::json!({ "metadata": {}, "weight_map": map }).to_string().into_bytes(),
        ),
    ]))
}

//! The bundled pair against golden values that transformers computed in float32 from the same weights.
//!
//! The same check fails when the model's arithmetic is changed by little, so its passing says something.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::{Value, json};
use specquant_core::{Batch, KvDtype, Quantizer, Run, Score, Scores, Text, WeightFormat};
use specquant_kernels::{Isa, Team};
use specquant_model::{LoadOptions, ModelFiles, bundled, load, same_vocabulary};

use crate::runs::{in_chunks, loaded, max_diff};

const BOUND: f64 = 2e-4;
const CONTEXT: usize = 512;

#[derive(Deserialize)]
struct Prompt {
    id: String,
    prompt_tokens: Vec<u32>,
    greedy: Vec<u32>,
}

fn data(file: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models/data").join(file);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn golden(role: &str) -> (Vec<Prompt>, String) {
    let golden: Value = serde_json::from_slice(&data("golden.json")).unwrap();
    let prompts = serde_json::from_value(golden[role].clone()).unwrap();
    (prompts, golden[format!("{role}_rows_prompt")].as_str().unwrap().to_string())
}

/// Rows of a golden tensor.
fn rows(tensors: &SafeTensors<'_>, name: &str, vocab: usize) -> Option<Vec<Vec<f64>>> {
    let bytes = tensors.tensor(name).ok()?.data();
    let values: Vec<f64> = bytes.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect();
    Some(values.chunks(vocab).map(<[f64]>::to_vec).collect())
}

/// The largest difference of the model's logits from the golden ones.
fn check_logits(role: &str, files: &ModelFiles) -> Result<f64> {
    let mut model = loaded(files, WeightFormat::F32, KvDtype::F32, 2);
    let (prompts, rows_prompt) = golden(role);
    let stored = data("golden.safetensors");
    let tensors = SafeTensors::deserialize(&stored)?;
    let (vocab, slots) = (model.info().vocab, (0..CONTEXT as u32).collect::<Vec<_>>());
    let (mut most, mut compared) = (0.0, 0);
    for prompt in &prompts {
        let last = rows(&tensors, &format!("{role}.{}.last", prompt.id), vocab);
        let first = (prompt.id == rows_prompt).then(|| rows(&tensors, &format!("{role}.rows"), vocab)).flatten();
        if last.is_none() && first.is_none() {
            continue;
        }
        let logits = in_chunks(&mut *model, &prompt.prompt_tokens, CONTEXT, &slots);
        for (name, got, expected) in
            [("last row", &logits[logits.len() - 1..], last), ("first rows", &logits[..48.min(logits.len())], first)]
        {
            let Some(expected) = expected else { continue };
            let diff = max_diff(got, &expected);
            ensure!(diff <= BOUND, "{role} {} {name}: logits differ by {diff:e}", prompt.id);
            most = f64::max(most, diff);
            compared += expected.len();
        }
    }
    ensure!(compared == 8 + 48, "{compared} golden rows compared");
    Ok(most)
}

/// Whether every greedy continuation is the golden one, all prompts in one batch.
fn check_greedy(role: &str, files: &ModelFiles) -> Result<()> {
    let (prompts, _) = golden(role);
    let team = Team::new(2, Isa::detect())?;
    let kv_slots = prompts.len() * CONTEXT;
    let options =
        LoadOptions { weights: WeightFormat::F32, quantizer: Quantizer::Mse, kv_dtype: KvDtype::F32, kv_slots, team };
    let mut model = load(files, &options)?;
    let slots: Vec<u32> = (0..kv_slots as u32).collect();
    let mut outputs: Vec<Vec<u32>> = vec![Vec::new(); prompts.len()];
    for n in 0..64 {
        let run = |(i, prompt): (usize, &Prompt)| {
            let (start, tokens) = match n {
                0 => (0, prompt.prompt_tokens.clone()),
                _ => (prompt.prompt_tokens.len() + n - 1, vec![outputs[i][n - 1]]),
            };
            (tokens, start, &slots[i * CONTEXT..])
        };
        let steps: Vec<_> = prompts.iter().enumerate().map(run).collect();
        let runs = steps.iter().zip(0..).map(|((tokens, start, slots), seq)| {
            let end = start + tokens.len();
            Run { seq, tokens, start: *start, slots: &slots[..end], score: Score::Greedy { rows: 1 } }
        });
        let scores = model.forward(&Batch { runs: runs.collect() })?;
        for (output, scores) in outputs.iter_mut().zip(scores) {
            let Scores::Greedy(rows) = scores else { anyhow::bail!("asked for the best tokens") };
            output.push(rows[0].id);
        }
    }
    for (prompt, output) in prompts.iter().zip(&outputs) {
        let same = output.iter().zip(&prompt.greedy).take_while(|(got, expected)| got == expected).count();
        ensure!(*output == prompt.greedy, "{role} {}: {same} of 64 tokens agree", prompt.id);
    }
    ensure!(prompts.len() == 32, "{} golden prompts", prompts.len());
    Ok(())
}

#[test]
fn the_bundled_pair_computes_the_golden_logits_and_texts() {
    for role in ["target", "draft"] {
        let files = bundled(role).unwrap();
        let diff = check_logits(role, &files).unwrap();
        println!("{role}: max |diff| {diff:.2e}");
        check_greedy(role, &files).unwrap();
    }
}

#[test]
fn a_golden_check_fails_on_a_model_that_computes_something_else() {
    type Change = fn(&mut BTreeMap<String, Vec<u8>>);
    let changes: [(&str, Change); 3] = [
        ("rms_norm_eps x 10", |files| config(files, |config| config["rms_norm_eps"] = json!(1e-4))),
        ("rope_theta x 1.01", |files| {
            config(files, |config| config["rope_parameters"]["rope_theta"] = json!(10_100.0));
        }),
        ("one norm without its scale", |files| {
            ones(files.get_mut("model.safetensors").unwrap(), "model.layers.1.input_layernorm.weight").unwrap();
        }),
    ];
    for role in ["target", "draft"] {
        for (name, change) in changes {
            let mut files = read(role);
            change(&mut files);
            let files = files.into_iter().map(|(name, bytes)| (name, Cow::Owned(bytes))).collect();
            let files = ModelFiles::memory("changed", files);
            let error = check_logits(role, &files).expect_err(name);
            println!("{role}, {name}: {error}");
            assert!(error.to_string().contains("logits differ by"), "{name}: {error:#}");
        }
        check_logits(role, &ModelFiles::memory("same", read(role).into_iter().map(|(k, v)| (k, v.into())).collect()))
            .expect("unchanged files pass");
    }
}

/// The files of a bundled model, to be changed.
fn read(role: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models").join(role);
    let read = |name: &str| (name.to_string(), std::fs::read(folder.join(name)).unwrap());
    ["config.json", "generation_config.json", "tokenizer.json", "model.safetensors"].map(read).into()
}

fn config(files: &mut BTreeMap<String, Vec<u8>>, change: fn(&mut Value)) {
    let config = files.get_mut("config.json").unwrap();
    let mut value: Value = serde_json::from_slice(config).unwrap();
    change(&mut value);
    *config = value.to_string().into_bytes();
}

/// Overwrites an f16 tensor with ones.
fn ones(file: &mut [u8], tensor: &str) -> Result<()> {
    let range = {
        let tensors = SafeTensors::deserialize(file)?;
        let data = tensors.tensor(tensor).context("no such tensor")?.data();
        let start = data.as_ptr() as usize - file.as_ptr() as usize;
        start..start + data.len()
    };
    file[range].as_chunks_mut::<2>().0.fill(half::f16::ONE.to_le_bytes());
    Ok(())
}

#[test]
fn prompts_encode_to_the_golden_tokens_and_decode_to_their_text() {
    #[derive(Deserialize)]
    struct Line {
        id: String,
        prompt: String,
    }
    let tokenizers = ["target", "draft"].map(|role| bundled(role).unwrap().tokenizer().unwrap());
    same_vocabulary(&tokenizers[0], &tokenizers[1]).unwrap();
    let lines = String::from_utf8(data("prompts.jsonl")).unwrap();
    let texts: BTreeMap<String, String> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .map(|line: Line| (line.id, line.prompt))
        .collect();
    assert_eq!(texts.len(), 96);
    for (role, tokenizer) in ["target", "draft"].into_iter().zip(&tokenizers) {
        for prompt in golden(role).0 {
            let text = &texts[&prompt.id];
            assert_eq!(tokenizer.encode(text).unwrap(), prompt.prompt_tokens, "{role} {}", prompt.id);
        }
    }
    for text in texts.values() {
        let mut state = specquant_core::TextState::default();
        let ids = tokenizers[0].encode(text).unwrap();
        let pieces: String = ids.iter().filter_map(|&id| tokenizers[0].step(&mut state, id).unwrap()).collect();
        assert_eq!(pieces, *text);
    }
}

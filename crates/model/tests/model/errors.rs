//! What is said about a checkpoint that cannot be loaded and about a batch that cannot be run.

use safetensors::Dtype;
use serde_json::{Value, json};
use specquant_core::{Batch, KvDtype, Quantizer, Run, Score, SlotCopy, WeightFormat};
use specquant_kernels::{Isa, Team};
use specquant_model::{LoadOptions, ModelFiles, load};

use crate::runs::loaded;
use crate::tiny::{Files, TINY, Tensors, Tiny, model, safetensors};

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const SHARD: &str = "model-00002-of-00003.safetensors";
const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
const QUERY: &str = "model.layers.1.self_attn.q_proj.weight";

fn options(weights: WeightFormat) -> LoadOptions {
    LoadOptions {
        weights,
        quantizer: Quantizer::Mse,
        kv_dtype: KvDtype::F32,
        kv_slots: 16,
        team: Team::new(1, Isa::detect()).unwrap(),
    }
}

fn contains(error: &anyhow::Error, parts: &[&str]) {
    let message = format!("{error:#}");
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

/// Loading `tiny` after a change to its files says all of `parts`.
fn check(tiny: Tiny, change: impl FnOnce(&mut Files), parts: &[&str]) {
    let mut files = tiny.files();
    change(&mut files);
    match load(&model(files), &options(WeightFormat::F16)) {
        Ok(_) => assert!(parts.is_empty(), "loaded instead of: {parts:?}"),
        Err(error) => {
            assert!(!parts.is_empty(), "{error:#}");
            contains(&error, parts);
        }
    }
}

/// A change to the tensors of a checkpoint in one file.
fn tensors(tiny: Tiny, change: impl FnOnce(&mut Tensors)) -> impl FnOnce(&mut Files) {
    move |files| {
        let mut tensors = tiny.tensors();
        change(&mut tensors);
        files.insert(WEIGHTS.to_string(), safetensors(tiny.dtype, &tensors.into_iter().collect::<Vec<_>>()));
    }
}

fn config(change: impl FnOnce(&mut Value)) -> impl FnOnce(&mut Files) {
    move |files| {
        let mut config = serde_json::from_slice(&files["config.json"]).unwrap();
        change(&mut config);
        files.insert("config.json".to_string(), config.to_string().into_bytes());
    }
}

fn cut(file: &str, bytes: usize) -> impl FnOnce(&mut Files) {
    let file = file.to_string();
    move |files| {
        let content = files.get_mut(&file).unwrap();
        content.truncate(content.len() - bytes);
    }
}

#[test]
fn a_tensor_that_is_not_as_it_must_be_is_named() {
    let untied = Tiny { tied: false, ..TINY };
    check(TINY, |_| {}, &[]);
    let parts = ["tiny", WEIGHTS, QUERY, "[32, 32]", "missing"];
    check(TINY, tensors(TINY, |tensors| drop(tensors.remove(QUERY))), &parts);
    check(untied, tensors(TINY, |_| {}), &[HEAD, "[64, 32]", "missing", "tie_word_embeddings"]);
    let shorter = tensors(TINY, |tensors| {
        tensors.insert(QUERY.to_string(), (vec![31, 32], vec![0.0; 31 * 32]));
    });
    check(TINY, shorter, &[WEIGHTS, QUERY, "[31, 32]", "[32, 32]"]);
    let flat = tensors(TINY, |tensors| tensors.get_mut(QUERY).unwrap().0 = vec![32 * 32]);
    check(TINY, flat, &[WEIGHTS, QUERY, "[1024]", "[32, 32]"]);
    let doubles = Tiny { dtype: Dtype::F64, ..TINY };
    check(doubles, |_| {}, &[WEIGHTS, "weight`", "F64", "F32, F16 or BF16"]);
    let deeper = config(|config| config["num_hidden_layers"] = json!(1));
    check(TINY, deeper, &[WEIGHTS, "model.layers.1.", "ignored"]);
    for (name, at) in [(QUERY, 5), (EMBEDDING, 9), ("model.norm.weight", 3)] {
        for value in [f64::NAN, f64::INFINITY] {
            let damaged = tensors(untied, |tensors| tensors.get_mut(name).unwrap().1[at] = value);
            check(untied, damaged, &["tiny", name, "which is no weight", "damaged"]);
        }
    }
    let strange = |files: &mut Files| {
        let text = b"\"F32\"";
        let bytes = files.get_mut(WEIGHTS).unwrap();
        let at = bytes.windows(5).position(|five| five == text).unwrap();
        bytes[at..at + 5].copy_from_slice(b"\"F9\" ");
    };
    check(TINY, strange, &[WEIGHTS, "model.embed_tokens.weight", "F9"]);
    let large = Tiny { dtype: Dtype::BF16, ..TINY };
    let overflow = tensors(large, |tensors| tensors.get_mut(QUERY).unwrap().1[5] = 1e5);
    check(large, overflow, &["tiny", QUERY, "bf16"]);
}

#[test]
fn harmless_further_tensors_are_accepted() {
    let further = |name: &'static str, change: fn(&mut Tensors, &str)| {
        tensors(TINY, move |tensors| {
            tensors.insert(name.to_string(), tensors[EMBEDDING].clone());
            change(tensors, name);
        })
    };
    check(TINY, further("model.layers.0.self_attn.rotary_emb.inv_freq", |_, _| {}), &[]);
    check(TINY, further(HEAD, |_, _| {}), &[]);
    check(TINY, further("vision.weight", |_, _| {}), &[WEIGHTS, "vision.weight", "[64, 32]", "ignored"]);
}

#[test]
fn a_damaged_or_missing_file_is_named() {
    let sharded = Tiny { shards: 3, ..TINY };
    let whole = TINY.files()[WEIGHTS].len();
    let (expected, found) = (whole.to_string(), (whole - 1).to_string());
    check(TINY, cut(WEIGHTS, 1), &[WEIGHTS, "truncated", &expected, &found]);
    check(TINY, cut(WEIGHTS, whole - 5), &[WEIGHTS, "truncated", "5"]);
    check(TINY, cut(WEIGHTS, whole - 50), &[WEIGHTS, "truncated", "50"]);
    let longer = |files: &mut Files| files.get_mut(WEIGHTS).unwrap().push(0);
    check(TINY, longer, &[WEIGHTS, "after the last tensor"]);
    let garbage = |files: &mut Files| files.get_mut(WEIGHTS).unwrap()[8..20].fill(b'x');
    check(TINY, garbage, &[WEIGHTS, "not a safetensors header"]);
    check(TINY, |files| drop(files.remove(WEIGHTS)), &["tiny", WEIGHTS, INDEX, "neither"]);
    check(TINY, |files| drop(files.remove("config.json")), &["tiny", "config.json is missing"]);
    check(TINY, cut("config.json", 1), &["tiny", "config.json: not valid JSON"]);
    check(TINY, config(|config| config["hidden_size"] = json!("32")), &["config.json", "hidden_size", "\"32\""]);
    check(sharded, |_| {}, &[]);
    check(sharded, |files| drop(files.remove(SHARD)), &[INDEX, SHARD, "missing"]);
    check(sharded, cut(SHARD, 3), &[SHARD, "truncated"]);
    let index =
        |index: Value| move |files: &mut Files| drop(files.insert(INDEX.to_string(), index.to_string().into_bytes()));
    check(sharded, index(json!({})), &[INDEX, "weight_map"]);
    check(sharded, index(json!({ "weight_map": { "x": "../model.safetensors" } })), &[INDEX, "../", "`x`"]);
    check(sharded, index(json!({ "weight_map": { "x": 3 } })), &[INDEX, "`x`", "3"]);
    let elsewhere = index(json!({ "weight_map": { EMBEDDING: SHARD } }));
    check(sharded, elsewhere, &[INDEX, EMBEDDING, SHARD]);
    let twice =
        |files: &mut Files| drop(files.insert(SHARD.to_string(), files["model-00001-of-00003.safetensors"].clone()));
    check(sharded, twice, &["model-00001-of-00003.safetensors", SHARD, "is in"]);
}

#[test]
fn a_folder_that_is_none_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    contains(&ModelFiles::folder(&path.join("nowhere")).unwrap_err(), &["nowhere", "not a folder"]);
    contains(&ModelFiles::folder(path).unwrap_err(), &[&path.display().to_string(), "no config.json"]);
    for (name, bytes) in TINY.files() {
        std::fs::write(path.join(name), bytes).unwrap();
    }
    let files = ModelFiles::folder(path).unwrap();
    contains(&files.tokenizer().unwrap_err(), &[&path.display().to_string(), "tokenizer.json is missing"]);
    let foreign = include_bytes!("../../../../models/target/tokenizer.json");
    std::fs::write(path.join("tokenizer.json"), foreign).unwrap();
    contains(&files.tokenizer().unwrap_err(), &["tokenizer.json", "4095", "vocab_size 64", "two models"]);
    for length in [0, 7, 2000] {
        std::fs::write(path.join(WEIGHTS), &TINY.files()[WEIGHTS][..length]).unwrap();
        let error = load(&files, &options(WeightFormat::F32)).err().expect("truncated");
        contains(&error, &[&path.display().to_string(), WEIGHTS, "truncated", &length.to_string()]);
    }
}

#[test]
fn a_batch_that_cannot_be_run_is_refused() {
    let mut model = loaded(&model(TINY.files()), WeightFormat::F32, KvDtype::F32, 1);
    let slots: Vec<u32> = (0..200).collect();
    let run = Run { seq: 7, tokens: &[1, 2, 3], start: 4, slots: &slots[..7], score: Score::Greedy { rows: 3 } };
    let mut check = |run: Run<'_>, parts: &[&str]| {
        let result = model.forward(&Batch { runs: vec![run.clone()] });
        match result {
            Ok(_) => assert!(parts.is_empty(), "{run:?} was run"),
            Err(error) => {
                assert!(!parts.is_empty(), "{error:#}");
                contains(&error, &["sequence 7"]);
                contains(&error, parts);
            }
        }
    };
    check(run.clone(), &[]);
    check(Run { score: Score::Nothing, ..run.clone() }, &[]);
    check(Run { tokens: &[], ..run.clone() }, &["no tokens"]);
    check(Run { tokens: &[1, 64, 3], ..run.clone() }, &["token 64", "vocabulary of 64"]);
    check(Run { start: 126, slots: &slots[..129], ..run.clone() }, &["126..129", "context of 128"]);
    check(Run { start: usize::MAX, ..run.clone() }, &["context of 128"]);
    check(Run { start: 125, slots: &slots[..128], ..run.clone() }, &[]);
    check(Run { slots: &slots[..6], ..run.clone() }, &["6 slots for 7 positions"]);
    check(Run { slots: &slots[..8], ..run.clone() }, &["8 slots for 7 positions"]);
    check(Run { slots: &[0, 1, 1024, 3, 4, 5, 6], ..run.clone() }, &["slot 1024", "1024 slots"]);
    check(Run { score: Score::Greedy { rows: 4 }, ..run.clone() }, &["4 rows", "3 new tokens"]);
    check(Run { score: Score::Logits { rows: 0 }, ..run.clone() }, &["0 rows"]);
    model.copy_kv(&[SlotCopy { from: 0, to: 1023 }]).unwrap();
    for copy in [SlotCopy { from: 1024, to: 0 }, SlotCopy { from: 0, to: 1024 }] {
        contains(&model.copy_kv(&[copy]).unwrap_err(), &["1024", "beyond the 1024 slots"]);
    }
    let small = options(WeightFormat::F32);
    let mut model = load(&self::model(TINY.files()), &small).unwrap();
    let (tokens, same) = ([1; 20], [0; 20]);
    let run = Run { seq: 7, tokens: &tokens, start: 0, slots: &same, score: Score::Nothing };
    contains(&model.forward(&Batch { runs: vec![run] }).unwrap_err(), &["0..20", "16 slots"]);
    let none = LoadOptions { kv_slots: 0, ..small };
    contains(&load(&self::model(TINY.files()), &none).err().expect("no slots"), &["kv_slots 0"]);
}

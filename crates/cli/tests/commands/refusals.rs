//! Bad input: one error with the name of what is wrong and the remedy, and nothing stored.

use std::fs;

use serde_json::Value;

use crate::{model, refuses, replace, specquant};

#[test]
fn bad_values_are_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::write(folder.join("empty.jsonl"), "\n").unwrap();
    fs::write(folder.join("broken.jsonl"), "{\"prompt\": \"a\"}\n{\"prompt\": 3}\n").unwrap();
    let long = format!("{{\"prompt\": \"{}\"}}\n", "fn main ".repeat(600));
    fs::write(folder.join("long.jsonl"), long).unwrap();
    fs::write(folder.join("spec.toml"), "weigths = 'f16'\n").unwrap();
    for (words, parts) in [
        ("run --weights q4_0", &["unknown weight format `q4_0`", "f32, f16, bf16, fp8:channel", "weights"][..]),
        ("run --speculation medusa", &["unknown speculation `medusa`", "draft:4"]),
        ("run --kv slab", &["unknown KV allocator `slab`", "paged:16"]),
        ("run --quantizer awq", &["unknown quantizer `awq`", "mse or rtn", "quantizer"]),
        ("run --precision 2", &["precision 2", "0.01"]),
        ("quality --draft nowhere", &["--draft nowhere", "not a folder"]),
        ("run --device tpu", &["unknown device `tpu`", "auto or cpu"]),
        ("run --max-new-tokens 0", &["max_new_tokens 0"]),
        ("run --max-new-tokens many", &["many", "workload.max_new_tokens"]),
        ("run --temperature -1", &["temperature -1"]),
        ("run --batch 0", &["continuous:0"]),
        ("run --num-prompts 97", &["97", "96"]),
        ("run --set rounds", &["KEY=VALUE"]),
        ("run --spec spec.toml", &["spec.toml", "weigths", "expected one of"]),
        ("run --spec nowhere.toml", &["the spec: nowhere.toml", "cannot be read"]),
        ("run --prompts nowhere.jsonl", &["nowhere.jsonl", "JSONL"]),
        ("run --prompts empty.jsonl", &["empty.jsonl", "no prompt"]),
        ("run --prompts broken.jsonl", &["broken.jsonl", "2", "prompt"]),
        ("run --prompts long.jsonl", &["long.jsonl", "tokens", "512", "context"]),
        ("run --target nowhere", &["nowhere", "not a folder", "bundled"]),
        ("generate --prompt x --weights f16,f32", &["one cell"]),
        ("generate --prompt-file nowhere.txt", &["nowhere.txt"]),
        ("quality --chunk 9999", &["9999", "512"]),
        ("model info bundled:middle", &["middle", "target", "draft"]),
        ("model logits bundled:draft --tokens 5000", &["5000", "4096"]),
    ] {
        refuses(folder, words, parts);
    }
    // Nothing was measured, so nothing was stored.
    assert!(!folder.join("runs").exists());
}

#[test]
fn models_are_named_by_place_or_flag_and_json_may_stand_before_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (words, parts) in [
        ("model compare bundled:target", &["give two models"][..]),
        ("model compare --target bundled:target a b", &["give two models"]),
        ("model info --target bundled:middle", &["middle", "target", "draft"]),
        ("quality --target nowhere", &["nowhere", "not a folder"]),
    ] {
        refuses(folder, words, parts);
    }
    let info = |words: &str| serde_json::from_slice::<Value>(&specquant(folder, words).stdout).unwrap();
    let expected = info("model info bundled:draft --json");
    assert_eq!(expected["name"], "bundled draft");
    for words in ["--json model info bundled:draft", "--json model info --target bundled:draft"] {
        assert_eq!(info(words), expected, "{words}");
    }
}

#[test]
fn damaged_models_are_refused_by_file_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let run = |name: &str| format!("run --target {name} --speculation off --num-prompts 1 --rounds 1");

    let truncated = model(folder, "truncated").join("model.safetensors");
    let bytes = fs::read(&truncated).unwrap();
    fs::write(&truncated, &bytes[..bytes.len() / 2]).unwrap();
    refuses(folder, &run("truncated"), &["truncated", "model.safetensors"]);

    replace(&model(folder, "typed").join("config.json"), "\"hidden_size\": 128", "\"hidden_size\": \"wide\"");
    refuses(folder, &run("typed"), &["config.json", "hidden_size"]);

    fs::remove_file(model(folder, "wordless").join("tokenizer.json")).unwrap();
    refuses(folder, &run("wordless"), &["wordless", "tokenizer.json"]);

    replace(&model(folder, "shaped").join("config.json"), "\"intermediate_size\": 384", "\"intermediate_size\": 383");
    refuses(folder, &run("shaped"), &["model.safetensors", "mlp", "383", "384"]);

    // A draft whose token 300 means something else.
    let tokenizer = model(folder, "foreign").join("tokenizer.json");
    let mut vocabulary: Value = serde_json::from_str(&fs::read_to_string(&tokenizer).unwrap()).unwrap();
    let words = vocabulary["model"]["vocab"].as_object_mut().unwrap();
    let of = |id: u64| words.iter().find(|(_, value)| value.as_u64() == Some(id)).unwrap().0.clone();
    let (one, other) = (of(40), of(41));
    words.insert(one, 41.into());
    words.insert(other, 40.into());
    fs::write(&tokenizer, vocabulary.to_string()).unwrap();
    refuses(folder, "run --draft foreign --num-prompts 1", &["foreign", "cannot draft for", "40"]);
}

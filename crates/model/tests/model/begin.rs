//! Special tokens around a text: the ids that Hugging Face's tokenizers give with `add_special_tokens`, but for a token that the
//! text spells out itself; and which of a folder's files says what ends a text.
//!
//! `models/recipe/begin.py` made the golden ids.

use serde_json::{Value, json};
use specquant_core::Text;
use specquant_model::Tokenizer;

use crate::tiny::{TINY, model};

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../../models/data/begin.json")).unwrap()
}

/// A tokenizer of the golden values: a whole one, or the bundled one with parts exchanged.
fn tokenizer(name: &str) -> Vec<u8> {
    let parts = golden()["tokenizers"][name]["json"].clone();
    let mut json: Value = serde_json::from_slice(include_bytes!("../../../../models/target/tokenizer.json")).unwrap();
    json.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
    json.to_string().into_bytes()
}

fn check(name: &str, before: &[u32]) {
    let (golden, tokenizer) = (golden(), Tokenizer::parse(name, &tokenizer(name)).unwrap());
    assert_eq!((&tokenizer.template().before[..], &tokenizer.template().after[..]), (before, &[][..]), "{name}");
    let texts = golden["texts"].as_array().unwrap();
    let all = golden["tokenizers"][name]["ids"].as_array().unwrap();
    assert_eq!(texts.len(), all.len());
    for (text, expected) in texts.iter().zip(all) {
        let mut expected: Vec<u32> = serde_json::from_value(expected.clone()).unwrap();
        let spelled = !before.is_empty() && text.as_str().unwrap().starts_with("<|begin|>");
        if spelled {
            // Added to a text that has it already, the token would stand there twice.
            assert_eq!(expected[..2], [before, before].concat());
            expected.remove(0);
        }
        let ids = tokenizer.encode(text.as_str().unwrap()).unwrap();
        assert_eq!(tokenizer.template().around(&ids), (expected, spelled), "{name}: {text}");
    }
}

#[test]
fn ids_are_those_of_hugging_face() {
    check("llama3", &[4096]);
    check("qwen", &[]);
    check("gemma", &[2]);
}

#[test]
fn what_ends_a_text_is_said_by_the_first_file_that_says_it() {
    let check = |config: Value, generation: Option<Value>, tokenizer_config: Option<Value>, expected: &[u32]| {
        let mut files = TINY.files();
        let mut base: Value = serde_json::from_slice(&files["config.json"]).unwrap();
        base["vocab_size"] = json!(5000);
        base["eos_token_id"] = config;
        let others = [("generation_config.json", generation), ("tokenizer_config.json", tokenizer_config)];
        files.insert("config.json".into(), base.to_string().into_bytes());
        files.insert("tokenizer.json".into(), tokenizer("llama3"));
        files.extend(others.into_iter().filter_map(|(name, json)| Some((name.into(), json?.to_string().into_bytes()))));
        assert_eq!(model(files).config().unwrap().eos_token_ids, expected);
    };
    let token = || Some(json!({ "eos_token": "<|begin|>" }));
    check(json!(5), Some(json!({ "eos_token_id": [7, 9] })), token(), &[7, 9]);
    check(json!(5), Some(json!({})), token(), &[5]);
    check(json!([3, 4]), None, token(), &[3, 4]);
    check(json!(null), None, token(), &[4096]);
    check(json!(null), None, Some(json!({ "eos_token": { "content": "<|endoftext|>" } })), &[0]);
    check(json!(null), None, Some(json!({ "eos_token": "<|nowhere|>" })), &[]);
    check(json!(null), None, Some(json!({ "eos_token": null })), &[]);
    check(json!(null), None, None, &[]);
}

#[test]
fn settings_that_contradict_the_tokenizer_are_told() {
    let check = |name: &str, says: Value, expected: Option<&str>| {
        let mut files = TINY.files();
        let mut base: Value = serde_json::from_slice(&files["config.json"]).unwrap();
        base["vocab_size"] = json!(5000);
        files.insert("config.json".into(), base.to_string().into_bytes());
        files.insert("tokenizer_config.json".into(), json!({ "add_bos_token": says }).to_string().into_bytes());
        let tokenizer = Tokenizer::parse(name, &tokenizer(name)).unwrap();
        let notes = model(files).notes(Some(&tokenizer)).unwrap();
        assert_eq!(notes.len(), usize::from(expected.is_some()), "{notes:?}");
        assert!(notes.iter().zip(expected).all(|(note, expected)| note.contains(expected)), "{notes:?}");
    };
    check("llama3", json!(true), None);
    check("llama3", json!(false), Some("says add_bos_token false, tokenizer.json puts a token before every text"));
    check("qwen", json!(false), None);
    check("qwen", json!(true), Some("says add_bos_token true, tokenizer.json puts none"));
    check("qwen", json!(null), None);
}

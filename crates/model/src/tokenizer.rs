//! Hugging Face tokenizers behind the `Text` trait, and whether two of them mean the same tokens by the same ids.
//!
//! A text is encoded without the tokens that a template adds, and decoded without special tokens.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow, bail};
use specquant_core::{Text, TextState};

/// The tokenizer of one model.
#[derive(Debug)]
pub struct Tokenizer {
    name: String,
    inner: tokenizers::Tokenizer,
    vocab: usize,
}

impl Tokenizer {
    /// Reads the contents of a `tokenizer.json`; `name` stands for the model in messages.
    ///
    /// # Errors
    /// When the contents are not a tokenizer, or have no tokens.
    pub fn parse(name: &str, json: &[u8]) -> Result<Tokenizer> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json).map_err(|error| anyhow!("tokenizer.json: {error}"))?;
        // A checkpoint may carry the settings of its training; a prompt is neither cut nor filled up.
        inner.with_truncation(None).map_err(|error| anyhow!("tokenizer.json: {error}"))?;
        inner.with_padding(None);
        let Some(last) = inner.get_vocab(true).into_values().max() else {
            bail!("tokenizer.json: the vocabulary is empty");
        };
        Ok(Tokenizer { name: name.to_string(), inner, vocab: last as usize + 1 })
    }
}

impl Text for Tokenizer {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false).map_err(|error| anyhow!("{}: {error}", self.name))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn step(&self, state: &mut TextState, id: u32) -> Result<Option<String>> {
        let TextState { ids, prefix, covered } = state;
        tokenizers::tokenizer::step_decode_stream(&self.inner, vec![id], true, ids, prefix, covered)
            .map_err(|error| anyhow!("{}: token {id}: {error}", self.name))
    }
}

/// Whether every id stands for the same text in both tokenizers, added tokens included: what speculation with a draft
/// model rests on.
///
/// # Errors
/// The lowest id at which they differ with both texts, and both sizes where those differ.
pub fn same_vocabulary(a: &Tokenizer, b: &Tokenizer) -> Result<()> {
    let (left, right) = (by_id(a), by_id(b));
    let ids = left.keys().chain(right.keys()).copied();
    let Some(id) = ids.filter(|id| left.get(id) != right.get(id)).min() else { return Ok(()) };
    let text = |side: &BTreeMap<u32, String>| side.get(&id).map_or("nothing".to_string(), |text| format!("{text:?}"));
    let sizes = match (left.len(), right.len()) {
        (left, right) if left != right => format!(" ({left} and {right} tokens)"),
        _ => String::new(),
    };
    bail!(
        "`{}` and `{}` have different vocabularies{sizes}: id {id} is {} and {}; a draft model must share its target's",
        a.name,
        b.name,
        text(&left),
        text(&right)
    )
}

/// Token texts by id. Where an added token takes the id of another, both texts count.
fn by_id(tokenizer: &Tokenizer) -> BTreeMap<u32, String> {
    let mut tokens: Vec<(u32, String)> =
        tokenizer.inner.get_vocab(true).into_iter().map(|(text, id)| (id, text)).collect();
    tokens.sort_unstable();
    let mut texts = BTreeMap::<u32, String>::new();
    for (id, text) in tokens {
        texts.entry(id).and_modify(|first| *first = format!("{first} / {text}")).or_insert(text);
    }
    texts
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn json() -> Value {
        serde_json::from_slice(include_bytes!("../../../models/target/tokenizer.json")).unwrap()
    }

    fn changed(change: impl FnOnce(&mut Value)) -> Tokenizer {
        let mut json = json();
        change(&mut json);
        Tokenizer::parse("changed", json.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn text_comes_out_piece_by_piece_as_it_went_in() {
        let tokenizer = changed(|_| {});
        assert_eq!(tokenizer.vocab(), 4096);
        for text in ["", "fn main() {}\n", "  \t tabs", "naïve café", "한국어 텍스트", "a🦀b", "\u{301}"] {
            let mut ids = tokenizer.encode(text).unwrap();
            // The end-of-text token has no text.
            ids.push(0);
            let mut state = TextState::default();
            let pieces: Vec<_> = ids.iter().map(|&id| tokenizer.step(&mut state, id).unwrap()).collect();
            assert_eq!(pieces.iter().flatten().map(String::as_str).collect::<String>(), text);
            assert!(pieces.iter().flatten().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
        }
    }

    #[test]
    fn prompts_are_neither_cut_nor_filled_up() {
        let training = changed(|json| {
            json["truncation"] =
                json!({ "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0 });
            json["padding"] = json!({
                "strategy": { "Fixed": 8 }, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                "pad_type_id": 0, "pad_token": "<|endoftext|>",
            });
        });
        let text = "pub fn add(a: u32, b: u32) -> u32";
        for text in [text, "a"] {
            assert_eq!(training.encode(text).unwrap(), changed(|_| {}).encode(text).unwrap());
        }
    }

    fn check(change: impl FnOnce(&mut Value), expected: &[&str]) {
        let result = same_vocabulary(&changed(|_| {}), &changed(change));
        match result {
            Ok(()) => assert!(expected.is_empty(), "{expected:?}"),
            Err(error) => {
                assert!(!expected.is_empty(), "{error}");
                for part in expected {
                    assert!(error.to_string().contains(part), "`{part}` is not in: {error}");
                }
            }
        }
    }

    fn add(json: &mut Value, id: u32, content: &str) {
        let token = json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        });
        json["added_tokens"].as_array_mut().unwrap().push(token);
    }

    #[test]
    fn vocabularies_are_the_same_only_where_every_id_is() {
        check(|_| {}, &[]);
        // Bytes are single tokens: of two that change places, the lower id is named, with both texts.
        check(
            |json| {
                let vocab = json["model"]["vocab"].as_object_mut().unwrap();
                let (a, b) = (vocab["a"].clone(), vocab["b"].clone());
                vocab["a"] = b;
                vocab["b"] = a;
            },
            &["id 65", "\"a\"", "\"b\"", "share its target's"],
        );
        check(|json| add(json, 4096, "<|more|>"), &["4096 and 4097 tokens", "id 4096 is nothing and \"<|more|>\""]);
    }

    #[test]
    fn what_is_no_tokenizer_is_refused() {
        for (json, part) in [("{", "tokenizer.json"), ("{}", "tokenizer.json")] {
            let error = Tokenizer::parse("x", json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

//! Hugging Face tokenizers behind the `Text` trait, and whether two of them mean the same tokens by the same ids.
//!
//! What a tokenizer's post-processing puts around a text is its template; a text is decoded without special tokens.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail};
use specquant_core::{Template, Text, TextState};
use tokenizers::models::ModelWrapper;

use crate::guard::guarded;
use crate::json::unmarked;

/// Tokens after which an incomplete character is given up: none has more bytes, and a token has at least one.
const LONGEST_CHARACTER: usize = 4;

/// The tokenizer of one model.
#[derive(Debug)]
pub struct Tokenizer {
    name: String,
    inner: tokenizers::Tokenizer,
    template: Template,
    vocab: usize,
}

impl Tokenizer {
    /// Reads the contents of a `tokenizer.json`; `name` stands for the model in messages.
    ///
    /// # Errors
    /// When the contents are not a tokenizer, or have no tokens.
    pub fn parse(name: &str, json: &[u8]) -> Result<Tokenizer> {
        guarded(|| Tokenizer::build(name, json))
            .and_then(|built| built)
            .map_err(|error| anyhow!("tokenizer.json: {error:#}"))
    }

    fn build(name: &str, json: &[u8]) -> Result<Tokenizer> {
        let mut inner = tokenizers::Tokenizer::from_bytes(unmarked(json)).map_err(|error| anyhow!("{error}"))?;
        // A checkpoint may carry the settings of its training; a prompt is neither cut nor filled up.
        inner.with_truncation(None).map_err(|error| anyhow!("{error}"))?;
        inner.with_padding(None);
        // Dropout makes the ids of a text random.
        if let ModelWrapper::BPE(model) = inner.get_model()
            && model.dropout.is_some()
        {
            let mut certain = model.clone();
            certain.dropout = None;
            inner.with_model(certain);
        }
        let Some(last) = inner.get_vocab(true).into_values().max() else { bail!("the vocabulary is empty") };
        let template = template(&inner).map_err(|error| anyhow!("{error}"))?;
        Ok(Tokenizer { name: name.to_string(), inner, template, vocab: last as usize + 1 })
    }

    /// The id of a token by its text, special ones included.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }
}

/// What post-processing puts around a text: the masked ids at both ends of one that is not empty.
fn template(inner: &tokenizers::Tokenizer) -> tokenizers::Result<Template> {
    let encoding = inner.encode_fast("a", true)?;
    let (ids, mask) = (encoding.get_ids(), encoding.get_special_tokens_mask());
    let before = mask.iter().take_while(|&&special| special == 1).count();
    let after = mask[before..].iter().rev().take_while(|&&special| special == 1).count();
    Ok(Template { before: ids[..before].to_vec(), after: ids[ids.len() - after..].to_vec() })
}

impl Text for Tokenizer {
    fn vocab(&self) -> usize {
        self.vocab
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = guarded(|| self.inner.encode_fast(text, false));
        let encoding = encoding.and_then(|encoding| encoding.map_err(|error| anyhow!("{error}")));
        let encoding = encoding.with_context(|| format!("{}: its tokenizer cannot encode the text", self.name))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn template(&self) -> &Template {
        &self.template
    }

    fn step(&self, state: &mut TextState, id: u32) -> Result<Option<String>> {
        state.ids.push(id);
        let decode = |ids: &[u32]| {
            let text = guarded(|| self.inner.decode(ids, true));
            let text = text.and_then(|text| text.map_err(|error| anyhow!("{error}")));
            text.with_context(|| format!("{}: its tokenizer cannot decode token {id}", self.name))
        };
        // Decoders look at what is before a token, so the last text is decoded again with the new ids behind it.
        let (before, after) = (decode(&state.ids[..state.returned])?, decode(&state.ids)?);
        let waiting = state.ids.len() - state.returned;
        // Some decoders change what came before while bytes are incomplete; bytes that never become a character are
        // shown as the decoder shows them.
        let settled = after.starts_with(&before) && !after.ends_with('\u{fffd}');
        if !settled && waiting < LONGEST_CHARACTER {
            return Ok(None);
        }
        let common = before.bytes().zip(after.bytes()).take_while(|(a, b)| a == b).count();
        let start = (0..=common).rev().find(|&at| after.is_char_boundary(at)).unwrap_or(0);
        let text = after[start..].to_string();
        // A special token has no text; what stands before it stays in view.
        if !text.is_empty() {
            state.ids.drain(..state.returned);
        }
        state.returned = state.ids.len();
        Ok((!text.is_empty()).then_some(text))
    }
}

/// Whether every id that both tokenizers know stands for the same text, added tokens included: what speculation with a draft
/// model rests on. One of them may go on where the other ends; ids beyond are never drafted.
///
/// # Errors
/// The lowest id at which they differ with both texts, and both sizes where those differ.
pub fn same_vocabulary(a: &Tokenizer, b: &Tokenizer) -> Result<()> {
    let (left, right) = (by_id(a), by_id(b));
    let shorter = left.keys().last().min(right.keys().last()).copied();
    let ids = left.keys().chain(right.keys()).copied().filter(|id| Some(*id) <= shorter);
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
    fn an_id_beyond_the_tokenizer_has_no_text_and_stops_nothing() {
        let (tokenizer, mut state) = (changed(|_| {}), TextState::default());
        let ids = [tokenizer.encode("a").unwrap(), vec![4999, 5000], tokenizer.encode("b").unwrap()].concat();
        let pieces: Vec<_> = ids.iter().map(|&id| tokenizer.step(&mut state, id).unwrap()).collect();
        assert_eq!(pieces.iter().flatten().map(String::as_str).collect::<String>(), "ab");
    }

    /// Byte tokens, as tokenizers with byte fallback have them: incomplete bytes change what the decoder makes of the
    /// bytes before them.
    fn byte_fallback() -> Tokenizer {
        let mut vocab = serde_json::Map::new();
        for byte in 0..=255u32 {
            vocab.insert(format!("<0x{byte:02X}>"), byte.into());
        }
        vocab.insert("\u{2581}on".into(), 256.into());
        let json = json!({
            "version": "1.0",
            "added_tokens": [],
            "decoder": { "type": "Sequence", "decoders": [
                { "type": "Replace", "pattern": { "String": "\u{2581}" }, "content": " " },
                { "type": "ByteFallback" },
                { "type": "Fuse" },
                { "type": "Strip", "content": " ", "start": 1, "stop": 0 },
            ] },
            "model": { "type": "BPE", "byte_fallback": true, "vocab": vocab, "merges": [] },
        });
        Tokenizer::parse("bytes", json.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn bytes_are_shown_as_characters_and_wrong_ones_stop_nothing() {
        let check = |ids: &[u32], expected: &str| {
            let (tokenizer, mut state) = (byte_fallback(), TextState::default());
            let pieces: Vec<_> = ids.iter().map(|&id| tokenizer.step(&mut state, id).unwrap()).collect();
            assert_eq!(pieces.iter().flatten().map(String::as_str).collect::<String>(), expected, "{ids:?}");
        };
        check(&[0x41, 0x42, 256], "AB on");
        check(&[0x41, 0xED, 0x95, 0x9C, 0x42], "A한B");
        // A byte that was shown, then one that no character begins with, then text: the decoder makes a mark of each of the
        // two bytes, although the first was shown already.
        check(&[0x3D, 0xFF, 256, 0x41, 0x42], "=\u{fffd}\u{fffd} onAB");
    }

    #[test]
    fn ids_of_a_text_are_certain_whatever_the_training_dropped() {
        let dropping = changed(|json| json["model"]["dropout"] = json!(0.9));
        let text = "pub fn add(a: u32, b: u32) -> u32";
        assert_eq!(dropping.encode(text).unwrap(), changed(|_| {}).encode(text).unwrap());
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
        // One that goes on where the other ends has the same tokens as far as both go.
        check(|json| add(json, 4096, "<|more|>"), &[]);
        check(
            |json| {
                json["model"]["vocab"].as_object_mut().unwrap().remove("~");
                add(json, 4096, "<|more|>");
            },
            &["id 94 is \"~\" and nothing"],
        );
    }

    #[test]
    fn rules_on_which_the_library_panics_are_errors() {
        for rules in [
            json!({ "type": "FixedLength", "length": 0 }),
            json!({ "type": "Split", "pattern": { "String": "" }, "behavior": "Isolated", "invert": false }),
        ] {
            let mut base = json();
            base["pre_tokenizer"] = rules;
            // Whether it can be built or not, it is used without a panic.
            if let Ok(tokenizer) = Tokenizer::parse("hostile", base.to_string().as_bytes()) {
                let _ = tokenizer.encode("some text");
            }
        }
        for rules in [
            json!({ "type": "Replace", "pattern": { "String": "" }, "content": "x" }),
            json!({ "type": "Prepend", "prepend": "" }),
            json!({ "type": "Precompiled", "precompiled_charsmap": "AAAA" }),
        ] {
            let mut base = json();
            base["normalizer"] = rules;
            if let Ok(tokenizer) = Tokenizer::parse("hostile", base.to_string().as_bytes()) {
                let _ = tokenizer.encode("some text");
            }
        }
    }

    #[test]
    fn what_is_no_tokenizer_is_refused() {
        for (json, part) in [("{", "tokenizer.json"), ("{}", "tokenizer.json")] {
            let error = Tokenizer::parse("x", json.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

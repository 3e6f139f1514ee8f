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

//! The tensors that a Llama model is made of: their names, their shapes, and whether a checkpoint has them.
//!
//! After `check` every tensor that the model needs is there with its shape and a float type, and no other tensor is
//! left unused, so a checkpoint of a different model cannot be run by mistake.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

use super::checkpoint::{Checkpoint, Stored, float};
use crate::config::Config;

pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
pub(crate) const FINAL_NORM: &str = "model.norm.weight";
pub(crate) const HEAD: &str = "lm_head.weight";

/// The tensor that turns the last hidden state into logits.
pub(crate) fn head(config: &Config) -> &'static str {
    if config.tie_word_embeddings { EMBEDDING } else { HEAD }
}

/// The name of a layer's tensor, such as `self_attn.q_proj`.
pub(crate) fn in_layer(layer: usize, part: &str) -> String {
    format!("model.layers.{layer}.{part}.weight")
}

/// Every tensor of `config`'s model with its shape.
pub(crate) fn expected(config: &Config) -> BTreeMap<String, Vec<usize>> {
    let (hidden, inner, vocab) = (config.hidden_size, config.intermediate_size, config.vocab_size);
    let (query, kv) = (config.query_width(), config.kv_width());
    let mut tensors = BTreeMap::from([
        (EMBEDDING.to_string(), vec![vocab, hidden]),
        (FINAL_NORM.to_string(), vec![hidden]),
        (head(config).to_string(), vec![vocab, hidden]),
    ]);
    for layer in 0..config.num_hidden_layers {
        let parts = [
            ("input_layernorm", vec![hidden]),
            ("self_attn.q_proj", vec![query, hidden]),
            ("self_attn.k_proj", vec![kv, hidden]),
            ("self_attn.v_proj", vec![kv, hidden]),
            ("self_attn.o_proj", vec![hidden, query]),
            ("post_attention_layernorm", vec![hidden]),
            ("mlp.gate_proj", vec![inner, hidden]),
            ("mlp.up_proj", vec![inner, hidden]),
            ("mlp.down_proj", vec![hidden, inner]),
        ];
        tensors.extend(parts.map(|(part, shape)| (in_layer(layer, part), shape)));
    }
    tensors
}

/// Whether all tensors of `config`'s model are there as they must be, and no others.
///
/// Two kinds of further tensor are accepted: rotary frequencies, which old checkpoints store and which follow from the
/// configuration, and the head of a tied checkpoint, of which [`other_head`] speaks where it is not the embedding.
///
/// Returns the number of elements of the tensors that are used.
///
/// # Errors
/// The first tensor that is missing, of another shape, of a type that is no float, or not used; the message names file,
/// tensor, what config.json makes of it and what is there.
pub(crate) fn check(checkpoint: &Checkpoint<'_>, config: &Config) -> Result<u64> {
    let expected = expected(config);
    for (name, shape) in &expected {
        let stored = checkpoint.tensors().get(name).with_context(|| missing(checkpoint, name, shape))?;
        let file = checkpoint.file(stored);
        ensure!(
            stored.shape == *shape,
            "{file}: tensor `{name}` has shape {:?}, config.json makes it {shape:?}",
            stored.shape
        );
        ensure!(
            float(stored.dtype).is_some(),
            "{file}: tensor `{name}` has dtype {}; F32, F16 or BF16 can be read",
            stored.dtype
        );
    }
    for (name, stored) in checkpoint.tensors().iter().filter(|(name, _)| !expected.contains_key(*name)) {
        check_further(checkpoint, config, name, stored)?;
    }
    Ok(expected.values().map(|shape| shape.iter().product::<usize>() as u64).sum())
}

/// What to say of a tied checkpoint that stores a head as well which is not its embedding.
pub(crate) fn other_head(checkpoint: &Checkpoint<'_>, config: &Config) -> Option<String> {
    let stored = checkpoint.tensors().get(HEAD).filter(|_| config.tie_word_embeddings)?;
    let embedding = checkpoint.tensors().get(EMBEDDING)?;
    let what = if stored.dtype != embedding.dtype || stored.shape != embedding.shape {
        format!("is {} of shape {:?}", stored.dtype, stored.shape)
    } else if checkpoint.bytes(stored) != checkpoint.bytes(embedding) {
        "has other values".to_string()
    } else {
        return None;
    };
    Some(format!(
        "`{HEAD}` {what} than `{EMBEDDING}` ({} of shape {:?}); config.json says tie_word_embeddings, so the embedding is used \
         and this tensor is not",
        embedding.dtype, embedding.shape
    ))
}

fn missing(checkpoint: &Checkpoint<'_>, name: &str, shape: &[usize]) -> String {
    let files: Vec<&str> = checkpoint.shards().iter().map(|shard| shard.file.as_str()).collect();
    let hint = if name == HEAD { "; is tie_word_embeddings missing in config.json?" } else { "" };
    format!(
        "{}: {}: tensor `{name}` with shape {shape:?} is missing among {} tensors{hint}",
        checkpoint.place,
        files.join(", "),
        checkpoint.tensors().len()
    )
}

fn check_further(checkpoint: &Checkpoint<'_>, config: &Config, name: &str, stored: &Stored) -> Result<()> {
    if name.ends_with(".rotary_emb.inv_freq") {
        return Ok(());
    }
    if name == HEAD {
        // Only a tied checkpoint gets here: otherwise the head is among the expected tensors.
        return Ok(());
    }
    let file = checkpoint.file(stored);
    bail!(
        "{file}: tensor `{name}` with shape {:?} is no part of a Llama model with {} layers as config.json describes \
         it, and would be ignored",
        stored.shape,
        config.num_hidden_layers
    )
}

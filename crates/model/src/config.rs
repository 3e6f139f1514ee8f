//! The shape of a Llama checkpoint, read from Hugging Face's `config.json` and `generation_config.json`.
//!
//! A `Config` that exists can be run: every value has been checked, and whatever this crate does not compute (scaled
//! rotary embeddings, biases, other activations, other architectures) has been refused by name.

mod fields;

use anyhow::Result;
use serde::Serialize;
use serde_json::Value;

use fields::Fields;

/// The shape of a Llama decoder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key heads, and as many value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Elements of one head; even.
    pub head_dim: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f64,
    /// Base of the rotary embedding's frequencies.
    pub rope_theta: f64,
    /// Token ids are below this.
    pub vocab_size: usize,
    /// Positions are below this.
    pub max_position_embeddings: usize,
    /// Whether the head is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// Ids that end a text; may be empty.
    pub eos_token_ids: Vec<u32>,
}

/// No dimension is larger, so that the product of any two fits in 64 bits.
const MAX_DIM: usize = 1 << 24;

impl Config {
    /// Reads `config.json` and, where there is one, `generation_config.json`.
    ///
    /// # Errors
    /// A value that is missing, of the wrong type, out of range, or beyond what this crate computes; the message names
    /// file, field, value and remedy.
    pub fn parse(config: &[u8], generation: Option<&[u8]>) -> Result<Config> {
        let file = "config.json";
        let fields = Fields::parse(file, config)?;
        refuse_other_architectures(&fields)?;
        let dim = |key: &str| fields.whole(key, 1..=MAX_DIM)?.ok_or_else(|| fields.missing(key));
        let (hidden_size, heads, vocab_size) = (dim("hidden_size")?, dim("num_attention_heads")?, dim("vocab_size")?);
        let config = Config {
            hidden_size,
            intermediate_size: dim("intermediate_size")?,
            num_hidden_layers: fields
                .whole("num_hidden_layers", 1..=10_000)?
                .ok_or_else(|| fields.missing("num_hidden_layers"))?,
            num_attention_heads: heads,
            num_key_value_heads: fields.whole("num_key_value_heads", 1..=heads)?.unwrap_or(heads),
            head_dim: head_dim(&fields, hidden_size, heads)?,
            rms_norm_eps: fields
                .number("rms_norm_eps", 1e-12..=0.1)?
                .ok_or_else(|| fields.missing("rms_norm_eps"))?,
            rope_theta: rope_theta(&fields)?,
            vocab_size,
            max_position_embeddings: dim("max_position_embeddings")?,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
            eos_token_ids: eos(&fields, generation, vocab_size)?,
        };
        let kv = config.num_key_value_heads;
        if heads % kv != 0 {
            let remedy = format!("must divide num_attention_heads {heads}");
            return Err(fields.refuse("num_key_value_heads", &Value::from(kv), &remedy));
        }
        Ok(config)
    }

    /// Columns of the query projection's output.
    pub fn query_width(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Columns of the key projection's output, and of the value projection's.
    pub fn kv_width(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }
}

fn refuse_other_architectures(fields: &Fields) -> Result<()> {
    let wanted = [
        ("model_type", "llama", "only Llama checkpoints can be run; use one whose model_type is llama"),
        ("hidden_act", "silu", "only silu can be run; use a checkpoint with SwiGLU layers"),
    ];
    for (key, expected, remedy) in wanted {
        match fields.text(key)? {
            Some(found) if found == expected => {}
            Some(found) => return Err(fields.refuse(key, &Value::from(found), remedy)),
            // transformers may leave out what is the class's default, but never the class.
            None if key == "hidden_act" => {}
            None => return Err(fields.missing(key)),
        }
    }
    for key in ["attention_bias", "mlp_bias"] {
        if fields.flag(key)? == Some(true) {
            let remedy = "projections with a bias cannot be run; use a checkpoint without";
            return Err(fields.refuse(key, &Value::from(true), remedy));
        }
    }
    if let Some(value) = fields.get("quantization_config") {
        let remedy = "already quantized weights cannot be read; use the F32, F16 or BF16 checkpoint that they came from";
        return Err(fields.refuse("quantization_config", value, remedy));
    }
    Ok(())
}

fn head_dim(fields: &Fields, hidden_size: usize, heads: usize) -> Result<usize> {
    let dim = match fields.whole("head_dim", 1..=MAX_DIM)? {
        Some(dim) => dim,
        None if hidden_size % heads == 0 => hidden_size / heads,
        None => {
            let remedy = format!("must divide hidden_size {hidden_size} where head_dim is not given");
            return Err(fields.refuse("num_attention_heads", &Value::from(heads), &remedy));
        }
    };
    if dim % 2 != 0 {
        let remedy = "must be even: the rotary embedding turns pairs of elements";
        return Err(fields.refuse("head_dim", &Value::from(dim), remedy));
    }
    if heads * dim > MAX_DIM {
        return Err(fields.refuse("head_dim", &Value::from(dim), &format!("too large for {heads} heads")));
    }
    Ok(dim)
}

/// transformers 5 writes `rope_parameters`; earlier versions a `rope_theta` beside an optional `rope_scaling`.
fn rope_theta(fields: &Fields) -> Result<f64> {
    let range = 1.0..=1e12;
    let mut theta = fields.number("rope_theta", range.clone())?;
    for object in ["rope_scaling", "rope_parameters"] {
        let Some(rope) = fields.object(object)? else { continue };
        for key in ["rope_type", "type"] {
            match rope.text(key)? {
                None | Some("default") => {}
                Some(other) => {
                    let remedy = "scaled rotary embeddings cannot be run; use a checkpoint whose type is `default`";
                    return Err(rope.refuse(key, &Value::from(other), remedy));
                }
            }
        }
        if let Some(part) = rope.number("partial_rotary_factor", 0.0..=1.0)?.filter(|&part| part != 1.0) {
            let remedy = "only heads that turn whole can be run; must be 1 or absent";
            return Err(rope.refuse("partial_rotary_factor", &Value::from(part), remedy));
        }
        theta = rope.number("rope_theta", range.clone())?.or(theta);
    }
    Ok(theta.unwrap_or(10_000.0))
}

/// `generation_config.json` decides where it says something: it is what Hugging Face's `generate` follows.
fn eos(config: &Fields, generation: Option<&[u8]>, vocab: usize) -> Result<Vec<u32>> {
    let key = "eos_token_id";
    let generation = generation.map(|bytes| Fields::parse("generation_config.json", bytes)).transpose()?;
    match generation.map(|fields| fields.ids(key, vocab)).transpose()?.flatten() {
        Some(ids) => Ok(ids),
        None => Ok(config.ids(key, vocab)?.unwrap_or_default()),
    }
}

//! The shape of a Llama checkpoint, read from Hugging Face's `config.json` and `generation_config.json`.
//!
//! A `Config` that exists can be run: every value has been checked, and whatever this crate does not compute (scaled
//! rotary embeddings, biases, other activations, other architectures) has been refused by name.

mod fields;
mod notes;
mod refused;
mod rope;

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
            rms_norm_eps: fields.number("rms_norm_eps", 1e-12..=0.1)?.ok_or_else(|| fields.missing("rms_norm_eps"))?,
            rope_theta: rope::theta(&fields)?,
            vocab_size,
            max_position_embeddings: dim("max_position_embeddings")?,
            tie_word_embeddings: fields.flag("tie_word_embeddings")?.unwrap_or(false),
            eos_token_ids: eos(&fields, generation, vocab_size)?,
        };
        refused::refuse(&fields, config.head_dim, config.max_position_embeddings)?;
        let kv = config.num_key_value_heads;
        if !heads.is_multiple_of(kv) {
            let remedy = format!("must divide num_attention_heads {heads}");
            return Err(fields.refuse("num_key_value_heads", &Value::from(kv), &remedy));
        }
        Ok(config)
    }

    /// What `config.json` leaves open or says twice, and how it is read, in sentences.
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn notes(config: &[u8]) -> Result<Vec<String>> {
        notes::notes(&Fields::parse("config.json", config)?)
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
        ("hidden_activation", "silu", "only silu can be run; use a checkpoint with SwiGLU layers"),
    ];
    for (key, expected, remedy) in wanted {
        match fields.text(key)? {
            Some(found) if found == expected => {}
            Some(found) => return Err(fields.refuse(key, &Value::from(found), remedy)),
            // transformers may leave out what is the class's default, but never the class.
            None if key != "model_type" => {}
            None => return Err(fields.missing(key)),
        }
    }
    if let Some(value) = fields.get("quantization_config") {
        let remedy =
            "already quantized weights cannot be read; use the F32, F16 or BF16 checkpoint that they came from";
        return Err(fields.refuse("quantization_config", value, remedy));
    }
    Ok(())
}

fn head_dim(fields: &Fields, hidden_size: usize, heads: usize) -> Result<usize> {
    let dim = match fields.whole("head_dim", 1..=MAX_DIM)? {
        Some(dim) => dim,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
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

/// `generation_config.json` decides where it says something: it is what Hugging Face's `generate` follows.
fn eos(config: &Fields, generation: Option<&[u8]>, vocab: usize) -> Result<Vec<u32>> {
    let key = "eos_token_id";
    let generation = generation.map(|bytes| Fields::parse("generation_config.json", bytes)).transpose()?;
    match generation.map(|fields| fields.ids(key, vocab)).transpose()?.flatten() {
        Some(ids) => Ok(ids),
        None => Ok(config.ids(key, vocab)?.unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The configuration of the bundled target after `changes`, of which a null takes a field away.
    fn parse(changes: &Value, generation: Option<&str>) -> Result<Config> {
        let mut config: Value = serde_json::from_slice(include_bytes!("../../../models/target/config.json")).unwrap();
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        Config::parse(config.to_string().as_bytes(), generation.map(str::as_bytes))
    }

    fn check(changes: &Value, expected: impl Fn(&mut Config)) {
        let mut config = Config {
            hidden_size: 256,
            intermediate_size: 640,
            num_hidden_layers: 6,
            num_attention_heads: 8,
            num_key_value_heads: 4,
            head_dim: 32,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.0,
            vocab_size: 4096,
            max_position_embeddings: 512,
            tie_word_embeddings: true,
            eos_token_ids: vec![0],
        };
        expected(&mut config);
        assert_eq!(parse(changes, None).unwrap(), config, "{changes}");
    }

    fn refused(changes: &Value, parts: &[&str]) {
        let message = format!("{:#}", parse(changes, None).unwrap_err());
        for part in ["config.json"].iter().chain(parts) {
            assert!(message.contains(part), "{changes}: `{part}` is not in: {message}");
        }
    }

    #[test]
    fn values_are_read_and_defaults_are_those_of_llama() {
        check(&json!({}), |_| {});
        check(&json!({ "hidden_act": null, "some_new_field": { "a": 1 } }), |_| {});
        check(&json!({ "num_key_value_heads": null }), |config| config.num_key_value_heads = 8);
        check(&json!({ "head_dim": null, "num_attention_heads": 4 }), |config| {
            (config.head_dim, config.num_attention_heads) = (64, 4);
        });
        check(&json!({ "head_dim": 48 }), |config| config.head_dim = 48);
        check(&json!({ "tie_word_embeddings": null }), |config| config.tie_word_embeddings = false);
        check(&json!({ "rope_parameters": null }), |_| {});
        check(&json!({ "rope_parameters": null, "rope_theta": 5e5 }), |config| config.rope_theta = 5e5);
        check(&json!({ "rope_parameters": {}, "rope_theta": 500_000 }), |config| config.rope_theta = 5e5);
        check(
            &json!({ "rope_parameters": { "rope_theta": 77, "rope_type": "default", "type": "default" } }),
            |config| {
                config.rope_theta = 77.0;
            },
        );
        check(&json!({ "rope_parameters": { "rope_theta": 5e5 }, "rope_theta": 500_000 }), |config| {
            config.rope_theta = 5e5;
        });
        check(&json!({ "attention_bias": false, "logits_scaling": 1.0, "final_logit_softcapping": null }), |_| {});
        check(
            &json!({ "num_local_experts": 0, "query_pre_attn_scalar": 32, "layer_types": ["full_attention"] }),
            |_| {},
        );
        check(&json!({ "sliding_window": 8, "use_sliding_window": false }), |_| {});
        check(&json!({ "sliding_window": 512, "use_sliding_window": true }), |_| {});
        check(&json!({ "rope_scaling": { "type": "default" } }), |_| {});
        check(&json!({ "eos_token_id": [3, 5] }), |config| config.eos_token_ids = vec![3, 5]);
        check(&json!({ "eos_token_id": null }), |config| config.eos_token_ids.clear());
    }

    #[test]
    fn what_cannot_be_run_is_named_with_its_value_and_a_remedy() {
        refused(&json!({ "model_type": "mistral" }), &["model_type", "mistral", "whose model_type is llama"]);
        refused(&json!({ "model_type": null }), &["model_type is missing"]);
        refused(&json!({ "hidden_act": "gelu" }), &["hidden_act", "gelu", "SwiGLU"]);
        refused(&json!({ "hidden_activation": "gelu_pytorch_tanh" }), &["hidden_activation", "SwiGLU"]);
        for (key, value) in [
            ("attention_bias", json!(true)),
            ("mlp_bias", json!(true)),
            ("logits_scaling", json!(8.0)),
            ("residual_multiplier", json!(0.22)),
            ("embedding_multiplier", json!(12.0)),
            ("final_logit_softcapping", json!(30.0)),
            ("attn_logit_softcapping", json!(50.0)),
            ("partial_rotary_factor", json!(0.5)),
            ("num_local_experts", json!(8)),
            ("no_rope_layers", json!([1, 1, 0])),
        ] {
            let found = format!("{key} is {value}");
            refused(&json!({ key: value }), &[&found, "would change the output"]);
        }
        refused(&json!({ "attention_multiplier": 0.0078125 }), &["attention_multiplier is 0.0078125", "head_dim 32"]);
        refused(&json!({ "query_pre_attn_scalar": 256 }), &["query_pre_attn_scalar is 256", "only 32"]);
        refused(&json!({ "sliding_window": 8 }), &["sliding_window is 8", "use_sliding_window false"]);
        refused(&json!({ "sliding_window": 8, "use_sliding_window": true }), &["sliding_window is 8"]);
        refused(&json!({ "layer_types": ["full_attention", "sliding_attention"] }), &["layer_types", "full_attention"]);
        refused(
            &json!({ "quantization_config": { "bits": 4 } }),
            &["quantization_config", "bits", "that they came from"],
        );
    }

    #[test]
    fn rotary_embeddings_that_cannot_be_run_or_contradict_themselves_are_named() {
        let scaled = json!({ "rope_type": "llama3", "factor": 8.0 });
        refused(&json!({ "rope_scaling": scaled }), &["rope_scaling: rope_type", "llama3", "`default`"]);
        refused(&json!({ "rope_parameters": scaled }), &["rope_parameters: rope_type", "llama3"]);
        refused(&json!({ "rope_scaling": { "type": "linear" } }), &["type", "linear"]);
        refused(&json!({ "rope_parameters": { "partial_rotary_factor": 0.5 } }), &["partial_rotary_factor", "0.5"]);
        refused(
            &json!({ "rope_parameters": { "rope_theta": 77 }, "rope_theta": 5e5 }),
            &["rope_parameters: rope_theta is 77", "rope_theta is 500000"],
        );
        refused(
            &json!({ "rope_parameters": { "rope_type": "default", "type": "linear" } }),
            &["rope_type is \"default\"", "type is \"linear\""],
        );
        refused(&json!({ "rope_scaling": { "factor": 4.0 } }), &["rope_scaling: factor is 4.0", "without a rope_type"]);
        refused(
            &json!({ "rope_parameters": { "full_attention": { "rope_theta": 1e6 } } }),
            &["rope_parameters: full_attention", "from layer to layer"],
        );
        let twice = br#"{"model_type": "llama", "hidden_size": 1, "hidden_size": 2}"#;
        let error = format!("{:#}", Config::parse(twice, None).unwrap_err());
        assert!(error.contains("duplicate key `hidden_size`"), "{error}");
    }

    #[test]
    fn a_value_of_the_wrong_type_or_size_is_named() {
        let whole = "whole number in 1..=";
        refused(&json!({ "hidden_size": "256" }), &["hidden_size is \"256\"", whole]);
        refused(&json!({ "hidden_size": null }), &["hidden_size is missing"]);
        refused(&json!({ "hidden_size": 0 }), &["hidden_size is 0", whole]);
        refused(&json!({ "hidden_size": -1 }), &["hidden_size is -1", whole]);
        refused(&json!({ "hidden_size": 256.5 }), &["hidden_size is 256.5", whole]);
        refused(&json!({ "hidden_size": 1u64 << 40 }), &["hidden_size", whole]);
        refused(&json!({ "intermediate_size": 0 }), &["intermediate_size", whole]);
        refused(&json!({ "num_hidden_layers": 0 }), &["num_hidden_layers", whole]);
        refused(&json!({ "vocab_size": [] }), &["vocab_size is []", whole]);
        refused(&json!({ "max_position_embeddings": 0 }), &["max_position_embeddings", whole]);
        refused(&json!({ "num_key_value_heads": 3 }), &["num_key_value_heads is 3", "divide num_attention_heads 8"]);
        refused(&json!({ "num_key_value_heads": 16 }), &["num_key_value_heads is 16", "1..=8"]);
        refused(&json!({ "head_dim": 33 }), &["head_dim is 33", "even"]);
        refused(&json!({ "head_dim": 1 << 23 }), &["head_dim", "too large"]);
        refused(
            &json!({ "head_dim": null, "num_attention_heads": 7 }),
            &["num_attention_heads is 7", "hidden_size 256"],
        );
        refused(&json!({ "rms_norm_eps": 0 }), &["rms_norm_eps is 0", "a number in"]);
        refused(&json!({ "rms_norm_eps": "small" }), &["rms_norm_eps is \"small\""]);
        refused(&json!({ "rope_theta": -1 }), &["rope_theta is -1"]);
        refused(&json!({ "rope_parameters": 3 }), &["rope_parameters is 3", "an object"]);
        refused(&json!({ "tie_word_embeddings": "yes" }), &["tie_word_embeddings", "true or false"]);
        refused(&json!({ "eos_token_id": 4096 }), &["eos_token_id is 4096", "below vocab_size 4096"]);
        refused(&json!({ "eos_token_id": [1, "a"] }), &["eos_token_id", "[1,\"a\"]"]);
        assert!(Config::parse(b"[]", None).unwrap_err().to_string().contains("a JSON object, found a list"));
    }

    #[test]
    fn what_is_open_or_said_twice_is_told() {
        let check = |config: Value, expected: &[&str]| {
            let notes = Config::notes(config.to_string().as_bytes()).unwrap();
            assert_eq!(notes.len(), expected.len(), "{notes:?}");
            for (note, part) in notes.iter().zip(expected) {
                assert!(note.contains(part), "`{part}` is not in: {note}");
            }
        };
        let base = |more: Value| {
            let mut config = json!({ "rope_theta": 1e4 });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            config
        };
        check(base(json!({})), &[]);
        check(json!({ "rope_parameters": { "rope_theta": 5 } }), &[]);
        check(json!({}), &["no rope_theta: 10000 is the default"]);
        check(base(json!({ "dtype": "bfloat16", "torch_dtype": "bfloat16" })), &[]);
        check(
            base(json!({ "dtype": "bfloat16", "torch_dtype": "float16" })),
            &["dtype bfloat16 and torch_dtype float16"],
        );
        check(
            base(json!({ "sliding_window": 8, "use_sliding_window": false })),
            &["sliding_window that is not in use"],
        );
    }

    #[test]
    fn the_generation_config_decides_what_ends_a_text() {
        for (generation, expected) in [
            (r#"{"eos_token_id": [7, 9]}"#, vec![7, 9]),
            (r#"{"eos_token_id": 7}"#, vec![7]),
            (r#"{"eos_token_id": null}"#, vec![0]),
            ("{}", vec![0]),
        ] {
            assert_eq!(parse(&json!({}), Some(generation)).unwrap().eos_token_ids, expected, "{generation}");
        }
        let error = parse(&json!({}), Some(r#"{"eos_token_id": "</s>"}"#)).unwrap_err().to_string();
        assert!(error.contains("generation_config.json: eos_token_id is \"</s>\""), "{error}");
    }
}

//! A Llama checkpoint small enough to check by hand, with pseudo-random weights, as the files of a Hugging Face folder.

use std::borrow::Cow;
use std::collections::BTreeMap;

use half::{bf16, f16};
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use serde_json::{Value, json};
use specquant_model::ModelFiles;

pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// Shape and elements of a tensor; the elements are those that the stored type holds.
pub(crate) type Tensor = (Vec<usize>, Vec<f64>);

pub(crate) type Tensors = BTreeMap<String, Tensor>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiny {
    pub(crate) dtype: Dtype,
    pub(crate) tied: bool,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) shards: usize,
}

pub(crate) const TINY: Tiny = Tiny { dtype: Dtype::F32, tied: true, kv_heads: 2, head_dim: 8, shards: 1 };
pub(crate) const HIDDEN: usize = 32;
pub(crate) const INNER: usize = 48;
pub(crate) const LAYERS: usize = 2;
pub(crate) const HEADS: usize = 4;
pub(crate) const VOCAB: usize = 64;
pub(crate) const EPS: f64 = 1e-5;
pub(crate) const THETA: f64 = 500.0;

impl Tiny {
    pub(crate) fn config(&self) -> Value {
        json!({
            "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": INNER,
            "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "rms_norm_eps": EPS, "rope_theta": THETA, "vocab_size": VOCAB,
            "max_position_embeddings": 128, "tie_word_embeddings": self.tied, "eos_token_id": [1, 2],
        })
    }

    pub(crate) fn tensors(&self) -> Tensors {
        let (query, kv) = (HEADS * self.head_dim, self.kv_heads * self.head_dim);
        let mut tensors = Tensors::new();
        let mut add = |name: &str, shape: &[usize]| {
            let elements = self.elements(name, shape);
            tensors.insert(name.to_string(), (shape.to_vec(), elements));
        };
        add("model.embed_tokens.weight", &[VOCAB, HIDDEN]);
        add("model.norm.weight", &[HIDDEN]);
        if !self.tied {
            add("lm_head.weight", &[VOCAB, HIDDEN]);
        }
        for layer in 0..LAYERS {
            let mut part = |part: &str, shape: &[usize]| add(&format!("model.layers.{layer}.{part}.weight"), shape);
            part("input_layernorm", &[HIDDEN]);
            part("self_attn.q_proj", &[query, HIDDEN]);
            part("self_attn.k_proj", &[kv, HIDDEN]);
            part("self_attn.v_proj", &[kv, HIDDEN]);
            part("self_attn.o_proj", &[HIDDEN, query]);
            part("post_attention_layernorm", &[HIDDEN]);
            part("mlp.gate_proj", &[INNER, HIDDEN]);
            part("mlp.up_proj", &[INNER, HIDDEN]);
            part("mlp.down_proj", &[HIDDEN, INNER]);
        }
        tensors
    }

    fn elements(&self, name: &str, shape: &[usize]) -> Vec<f64> {
        let seed = name.bytes().fold(1u64, |hash, byte| mix(hash ^ u64::from(byte)));
        let uniform = |i: u64| (mix(seed ^ i) >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
        let scaled = |i: u64| match shape {
            [_] => 1.0 + 0.3 * uniform(i),
            _ => 2.5 * uniform(i) / (HIDDEN as f64).sqrt(),
        };
        let n = shape.iter().product::<usize>() as u64;
        (0..n).map(|i| round(self.dtype, scaled(i))).collect()
    }

    pub(crate) fn files(&self) -> Files {
        let tensors: Vec<_> = self.tensors().into_iter().collect();
        let mut files = Files::from([("config.json".to_string(), self.config().to_string().into_bytes())]);
        let per_shard = tensors.len().div_ceil(self.shards);
        let mut weight_map = serde_json::Map::new();
        for (i, shard) in tensors.chunks(per_shard).enumerate() {
            let file = match self.shards {
                1 => "model.safetensors".to_string(),
                shards => format!("model-{:05}-of-{shards:05}.safetensors", i + 1),
            };
            weight_map.extend(shard.iter().map(|(name, _)| (name.clone(), json!(file))));
            files.insert(file, safetensors(self.dtype, shard));
        }
        if self.shards > 1 {
            let index = json!({ "metadata": {}, "weight_map": weight_map });
            files.insert("model.safetensors.index.json".to_string(), index.to_string().into_bytes());
        }
        files
    }
}

/// The files of a checkpoint in memory.
pub(crate) fn model(files: Files) -> ModelFiles {
    ModelFiles::memory("tiny", files.into_iter().map(|(name, bytes)| (name, Cow::Owned(bytes))).collect())
}

/// A safetensors file that holds these tensors as `dtype`.
pub(crate) fn safetensors(dtype: Dtype, tensors: &[(String, Tensor)]) -> Vec<u8> {
    let stored: Vec<_> =
        tensors.iter().map(|(name, (shape, elements))| (name, shape, store(dtype, elements))).collect();
    let views = stored.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(dtype, (*shape).clone(), bytes).expect("the bytes fit the shape"))
    });
    serialize(views, None).expect("the tensors can be written")
}

fn store(dtype: Dtype, elements: &[f64]) -> Vec<u8> {
    let bytes = |&x: &f64| match dtype {
        Dtype::F32 => (x as f32).to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f64(x).to_le_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f64(x).to_le_bytes().to_vec(),
        Dtype::F64 => x.to_le_bytes().to_vec(),
        other => panic!("no test writes {other}"),
    };
    elements.iter().flat_map(bytes).collect()
}

/// `x` as `dtype` holds it.
pub(crate) fn round(dtype: Dtype, x: f64) -> f64 {
    match dtype {
        Dtype::F32 => f64::from(x as f32),
        Dtype::F16 => f16::from_f64(x).to_f64(),
        Dtype::BF16 => bf16::from_f64(x).to_f64(),
        _ => x,
    }
}

/// SplitMix64.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `n` pseudo-random token ids.
pub(crate) fn tokens(n: usize, vocab: usize) -> Vec<u32> {
    (0..n as u64).map(|i| (mix(i) % vocab as u64) as u32).collect()
}

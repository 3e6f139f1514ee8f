//! From the files of a checkpoint to a model that can run.
//!
//! The files are mapped while the weights are packed and released before `load` returns, so what stays in memory is
//! what `ModelInfo::memory` counts.

mod check;
mod checkpoint;
mod files;
mod summary;
mod weights;

use anyhow::{Context, Result, ensure};
use burn::backend::Flex;
use burn::tensor::{DType, Tensor, TensorData};
use specquant_core::{KvDtype, Memory, Model, ModelInfo, Quantizer, WeightFormat, Work};
use specquant_kernels::{Backend, DenseMatrix, Dtype, Heads, KvShape, RopeTable, Team};

use crate::config::Config;
use crate::decoder::{Decoder, Layer};
use check::head;

pub(crate) use check::{EMBEDDING, FINAL_NORM, HEAD, check, in_layer};
pub(crate) use checkpoint::Checkpoint;
pub use files::ModelFiles;
pub use summary::{DtypeSize, FileSize, Summary};

/// How a model is loaded.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Format of the matrices while running.
    pub weights: WeightFormat,
    /// How they are quantized, where that format has fewer than 16 bits.
    pub quantizer: Quantizer,
    /// Format of keys and values.
    pub kv_dtype: KvDtype,
    /// KV cache slots, one for each token; at least 1.
    pub kv_slots: usize,
    /// The threads that compute; models may share them.
    pub team: Team,
}

/// Loads a model for the CPU.
///
/// The embedding table stays as stored, so a tied head is a packed copy of its own, and both are counted.
///
/// # Errors
/// A file that is missing or damaged, a configuration that cannot be run, a tensor that is missing, of the wrong shape
/// or type or not used, a weight that the format cannot hold, a KV cache that does not fit in memory. The message names
/// file, field or tensor, what was expected and what was found.
pub fn load(files: &ModelFiles, options: &LoadOptions) -> Result<Box<dyn Model>> {
    let config = files.config()?;
    let checkpoint = Checkpoint::open(files)?;
    let parameters = check(&checkpoint, &config)?;
    let info = ModelInfo {
        name: files.name().to_string(),
        parameters,
        vocab: config.vocab_size,
        context: config.max_position_embeddings,
        layers: config.num_hidden_layers,
        hidden: config.hidden_size,
        eos: config.eos_token_ids.clone(),
        weights: options.weights,
        kv_dtype: options.kv_dtype,
        kv_slots: options.kv_slots,
        device: device(&options.team),
        memory: Memory::default(),
        work: Work::default(),
    };
    let decoder = decoder::<Flex>(&checkpoint, &config, info, options);
    Ok(Box::new(decoder.with_context(|| files.place())?))
}

/// Such as `cpu avx2, 2 threads`.
fn device(team: &Team) -> String {
    let threads = team.threads();
    format!("cpu {}, {threads} thread{}", team.isa(), if threads == 1 { "" } else { "s" })
}

/// Packs the weights and makes the KV cache; `info` says in which formats, and gets memory and work counted.
fn decoder<B: Backend<Team = Team>>(
    checkpoint: &Checkpoint<'_>,
    config: &Config,
    mut info: ModelInfo,
    options: &LoadOptions,
) -> Result<Decoder<B>> {
    let LoadOptions { quantizer, ref team, .. } = *options;
    ensure!(info.kv_slots > 0, "kv_slots 0: the KV cache needs at least one slot");
    let heads = Heads { query: config.num_attention_heads, kv: config.num_key_value_heads, dim: config.head_dim };
    let shape = KvShape {
        layers: info.layers,
        slots: info.kv_slots,
        kv_heads: heads.kv,
        head_dim: heads.dim,
        dtype: info.kv_dtype,
    };
    let (format, memory) = (info.weights, Memory::default());
    let mut weights = Weights::<B> { checkpoint, format, quantizer, team, elements: 0, memory };
    let embedding = weights.table(EMBEDDING)?;
    let layers = (0..info.layers).map(|layer| weights.layer(layer)).collect::<Result<_>>()?;
    let norm = weights.vector(FINAL_NORM)?;
    let (elements, bytes) = (weights.elements, weights.memory.matrices);
    let head = weights.pack(&[head(config)])?;
    info.work = Work {
        row_flops: 2 * elements,
        scored_flops: 2 * (weights.elements - elements),
        key_flops: 4 * (heads.query * heads.dim * info.layers) as u64,
        head_bytes: weights.memory.matrices - bytes,
    };
    let kv = B::kv_store(shape, team)?;
    info.memory = Memory { kv: B::kv_bytes(&kv) as u64, ..weights.memory };
    // A sequence never has more positions than the cache has slots.
    let positions = info.context.min(info.kv_slots);
    let rope = RopeTable::new(&RopeTable::inv_freq(config.rope_theta, heads.dim), positions);
    let eps = config.rms_norm_eps as f32;
    Ok(Decoder { info, embedding, layers, norm, head, heads, rope, eps, kv, team: team.clone() })
}

/// Takes weights out of a checkpoint and counts what they will hold.
struct Weights<'a, B: Backend> {
    checkpoint: &'a Checkpoint<'a>,
    format: WeightFormat,
    quantizer: Quantizer,
    team: &'a B::Team,
    /// Elements of the matrices that were packed, without padding.
    elements: u64,
    memory: Memory,
}

impl<B: Backend> Weights<'_, B> {
    fn layer(&mut self, layer: usize) -> Result<Layer<B>> {
        let name = |part: &str| in_layer(layer, part);
        let (query, key, value) = (name("self_attn.q_proj"), name("self_attn.k_proj"), name("self_attn.v_proj"));
        Ok(Layer {
            attention_norm: self.vector(&name("input_layernorm"))?,
            qkv: self.pack(&[&query, &key, &value])?,
            output: self.pack(&[&name("self_attn.o_proj")])?,
            mlp_norm: self.vector(&name("post_attention_layernorm"))?,
            gate_up: self.pack(&[&name("mlp.gate_proj"), &name("mlp.up_proj")])?,
            down: self.pack(&[&name("mlp.down_proj")])?,
        })
    }

    /// Matrices that share their inputs, stacked along the outputs.
    fn pack(&mut self, names: &[&str]) -> Result<B::Packed> {
        let parts = names.iter().map(|name| self.checkpoint.matrix(name)).collect::<Result<Vec<_>>>()?;
        let packed = B::pack(&parts, self.format, self.quantizer, self.team)?;
        self.elements += parts.iter().map(|part| (part.outputs * part.inputs) as u64).sum::<u64>();
        self.memory.matrices += B::packed_bytes(&packed) as u64;
        self.memory.matrices_exact +=
            parts.iter().map(|part| self.format.bytes(part.outputs, part.inputs)).sum::<u64>();
        Ok(packed)
    }

    /// A matrix as it is stored.
    fn table(&mut self, name: &str) -> Result<Tensor<B, 2>> {
        let DenseMatrix { outputs, inputs, dtype, bytes, .. } = self.checkpoint.matrix(name)?;
        self.memory.embedding += bytes.len() as u64;
        ensure!(finite(bytes, dtype), "`{name}` holds NaN or infinity, which is no weight: the checkpoint is damaged");
        let dtype = match dtype {
            Dtype::F32 => DType::F32,
            Dtype::F16 => DType::F16,
            Dtype::Bf16 => DType::BF16,
        };
        Ok(Tensor::from_data(
            TensorData::from_bytes_vec(bytes.to_vec(), [outputs, inputs], dtype),
            (&B::Device::default(), dtype),
        ))
    }

    /// A vector, widened to f32.
    fn vector(&mut self, name: &str) -> Result<Tensor<B, 1>> {
        let vector: Vec<f32> = widen(&self.checkpoint.matrix(name)?);
        let wrong = vector.iter().find(|weight| !weight.is_finite());
        ensure!(
            wrong.is_none(),
            "`{name}` holds {}, which is no weight: the checkpoint is damaged",
            wrong.unwrap_or(&0.0)
        );
        self.memory.embedding += 4 * vector.len() as u64;
        Ok(Tensor::from_data(TensorData::from(&vector[..]), (&B::Device::default(), DType::F32)))
    }
}

/// The elements of a stored tensor as f32, which holds all three types exactly.
pub(crate) fn widen(stored: &DenseMatrix<'_>) -> Vec<f32> {
    let halves = stored.bytes.as_chunks::<2>().0;
    match stored.dtype {
        Dtype::F32 => stored.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        Dtype::F16 => halves.iter().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect(),
        Dtype::Bf16 => halves.iter().map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32()).collect(),
    }
}

/// Whether no element has an exponent of ones, as NaN and infinities have.
fn finite(bytes: &[u8], dtype: Dtype) -> bool {
    let halves = |ones: u16| bytes.chunks_exact(2).all(|two| u16::from_le_bytes([two[0], two[1]]) & ones != ones);
    match dtype {
        Dtype::F16 => halves(0x7c00),
        Dtype::Bf16 => halves(0x7f80),
        Dtype::F32 => {
            bytes.chunks_exact(4).all(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]]).is_finite())
        }
    }
}

//! The trait behind which every model runs, and what a model says of itself.

use anyhow::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::axis::{KvDtype, WeightFormat};
use crate::batch::{Batch, SlotCopy};
use crate::scores::Scores;

/// A language model with its own KV cache, addressed by slot.
///
/// It never samples and never allocates slots: it runs the tokens that it is given and scores the rows it is asked for.
pub trait Model: Send {
    /// What the model is.
    fn info(&self) -> &ModelInfo;

    /// Runs one step and returns the answers of each run, in order.
    ///
    /// Keys and values of the new tokens are in the cache afterwards. The answer holds host values, so a timestamp
    /// taken after the call is honest. Errors: a token id beyond the vocabulary, a position beyond the context, a slot
    /// beyond the cache.
    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Scores>>;

    /// Copies keys and values between slots, in every layer, in the given order.
    fn copy_kv(&mut self, copies: &[SlotCopy]) -> Result<()>;
}

/// Shape, formats and memory of a loaded model.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ModelInfo {
    /// The folder's name, or `bundled target`.
    pub name: String,
    /// Elements of all tensors in the checkpoint; a tied head counts once.
    pub parameters: u64,
    /// Token ids are below this.
    pub vocab: usize,
    /// Positions are below this.
    pub context: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Ids that end a text.
    pub eos: Vec<u32>,
    /// Format of the weights while running.
    #[schemars(with = "String")]
    pub weights: WeightFormat,
    /// Format of keys and values.
    #[schemars(with = "String")]
    pub kv_dtype: KvDtype,
    /// KV cache slots, one for each token.
    pub kv_slots: usize,
    /// Where it runs, such as `cpu avx2, 2 threads`.
    pub device: String,
    /// Bytes that it holds.
    pub memory: Memory,
    /// What running it takes.
    pub work: Work,
}

/// Bytes that a loaded model holds, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Memory {
    /// Packed matrices, the head among them, padding included.
    pub matrices: u64,
    /// Of those, the bytes that the weight format asks for: codes and scales without padding.
    pub matrices_exact: u64,
    /// The float embedding table and the norm weights.
    pub embedding: u64,
    /// The KV cache.
    pub kv: u64,
}

/// Arithmetic and memory traffic of a forward, by what makes it more. A multiply-add is 2 FLOPs; norms, softmax and rotations
/// are left out, as is usual.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Work {
    /// FLOPs of each row: 2 x the elements of all matrices but the head.
    pub row_flops: u64,
    /// FLOPs of each scored row on top: 2 x the elements of the head, which other rows do not enter.
    pub scored_flops: u64,
    /// FLOPs of each key that a row attends to: 4 x width of the queries x layers.
    pub key_flops: u64,
    /// Bytes of the head, which are among `Memory::matrices` and stay unread where no row is scored.
    pub head_bytes: u64,
}

impl ModelInfo {
    /// Bytes of keys and values of one token, in all layers.
    pub fn kv_bytes_per_token(&self) -> u64 {
        if self.kv_slots == 0 { 0 } else { self.memory.kv / self.kv_slots as u64 }
    }
}

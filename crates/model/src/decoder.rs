//! The Llama decoder: one `forward` for every kind of step.
//!
//! All new tokens of a step are the rows of one matrix. A row sees others only through the KV cache, and every kernel is
//! batch-invariant, so a sequence's logits have the same bits however its tokens were split into steps.

use anyhow::{Result, ensure};
use burn::tensor::{DType, Int, Tensor, TensorData};
use specquant_core::{Batch, Greedy, Model, ModelInfo, Score, Scores, SlotCopy, greedy};
use specquant_kernels::{Backend, Heads, RopeTable};

use crate::rows::Rows;

/// A loaded Llama model with its KV cache.
pub(crate) struct Decoder<B: Backend> {
    pub(crate) info: ModelInfo,
    /// The embedding table as stored: `[vocab, hidden]`.
    pub(crate) embedding: Tensor<B, 2>,
    pub(crate) layers: Vec<Layer<B>>,
    pub(crate) norm: Tensor<B, 1>,
    /// `[hidden] -> [vocab]`
    pub(crate) head: B::Packed,
    pub(crate) heads: Heads,
    pub(crate) rope: RopeTable,
    pub(crate) eps: f32,
    pub(crate) kv: B::KvStore,
    pub(crate) team: B::Team,
}

/// The weights of one layer.
pub(crate) struct Layer<B: Backend> {
    pub(crate) attention_norm: Tensor<B, 1>,
    /// `[hidden] -> [(query + 2 kv) * dim]`
    pub(crate) qkv: B::Packed,
    /// `[query * dim] -> [hidden]`
    pub(crate) output: B::Packed,
    pub(crate) mlp_norm: Tensor<B, 1>,
    /// `[hidden] -> [2 * inner]`
    pub(crate) gate_up: B::Packed,
    /// `[inner] -> [hidden]`
    pub(crate) down: B::Packed,
}

impl<B: Backend> Model for Decoder<B> {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Scores>> {
        let rows = Rows::new(batch, &self.info)?;
        if rows.ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut x = self.embed(&rows.ids);
        for layer in 0..self.layers.len() {
            x = self.attention(layer, x, &rows);
            x = self.mlp(layer, x);
        }
        let logits = self.logits(x, &rows);
        Ok(split(batch, &logits, self.info.vocab))
    }

    fn copy_kv(&mut self, copies: &[SlotCopy]) -> Result<()> {
        let slots = self.info.kv_slots;
        for SlotCopy { from, to } in copies {
            let inside = (*from as usize) < slots && (*to as usize) < slots;
            ensure!(inside, "copy of slot {from} to {to}: beyond the {slots} slots of the KV cache");
        }
        B::copy_kv(&mut self.kv, copies);
        Ok(())
    }
}

impl<B: Backend> Decoder<B> {
    /// `[rows] -> [rows, hidden]`
    fn embed(&self, ids: &[u32]) -> Tensor<B, 2> {
        gather(self.embedding.clone(), ids).cast(DType::F32)
    }

    /// `x` plus the attention of its rows to their sequences: `[rows, hidden] -> [rows, hidden]`.
    fn attention(&mut self, layer: usize, x: Tensor<B, 2>, rows: &Rows<'_>) -> Tensor<B, 2> {
        let Layer { attention_norm, qkv, output, .. } = &self.layers[layer];
        let (heads, team) = (&self.heads, &self.team);
        let normed = B::norm(&x, attention_norm, self.eps, team);
        let qkv = linear::<B>(normed, qkv, team); // [rows, (query + 2 kv) * dim]
        let qkv = B::rope(qkv, heads, &self.rope, &rows.positions, team);
        B::kv_write(&qkv, heads, &mut self.kv, layer, &rows.slots, team);
        let mixed = B::attend(&qkv, heads, &self.kv, layer, &rows.keys, team); // [rows, query * dim]
        x + linear::<B>(mixed, output, team)
    }

    /// `x` plus the feed-forward layer of its rows: `[rows, hidden] -> [rows, hidden]`.
    fn mlp(&self, layer: usize, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let Layer { mlp_norm, gate_up, down, .. } = &self.layers[layer];
        let team = &self.team;
        let normed = B::norm(&x, mlp_norm, self.eps, team);
        let gate_up = linear::<B>(normed, gate_up, team); // [rows, 2 * inner]
        let inner = B::silu_mul(gate_up, team); // [rows, inner]
        x + linear::<B>(inner, down, team)
    }

    /// Logits of the scored rows, on the host: `[rows, hidden] -> [scored, vocab]`.
    fn logits(&self, x: Tensor<B, 2>, rows: &Rows<'_>) -> TensorData {
        if rows.scored.is_empty() {
            return TensorData::new(Vec::<f32>::new(), [0, self.info.vocab]);
        }
        let all = rows.scored.len() == rows.ids.len();
        let x = if all { x } else { gather(x, &rows.scored) };
        let normed = B::norm(&x, &self.norm, self.eps, &self.team);
        linear::<B>(normed, &self.head, &self.team).into_data()
    }
}

/// `[rows, inputs] -> [rows, outputs]`; burn's own backend traits have a `linear` as well.
fn linear<B: Backend>(x: Tensor<B, 2>, w: &B::Packed, team: &B::Team) -> Tensor<B, 2> {
    <B as Backend>::linear(x, w, team)
}

/// The rows `ids` of a table: `[n, width] -> [ids, width]`.
fn gather<B: Backend>(table: Tensor<B, 2>, ids: &[u32]) -> Tensor<B, 2> {
    let device = table.device();
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    table.select(0, Tensor::<B, 1, Int>::from_data(TensorData::from(&ids[..]), &device))
}

/// Hands the rows of `logits` back to the runs that asked for them.
fn split(batch: &Batch<'_>, logits: &TensorData, vocab: usize) -> Vec<Scores> {
    let logits: &[f32] = logits.as_slice().expect("kernels return f32");
    let mut rows = logits.chunks_exact(vocab);
    let answer = |score: Score| match score {
        Score::Nothing => Scores::Greedy(Vec::new()),
        Score::Greedy { rows: n } => Scores::Greedy(rows.by_ref().take(n).map(greedy).collect::<Vec<Greedy>>()),
        Score::Logits { rows: n } => Scores::Logits(rows.by_ref().take(n).map(<[f32]>::to_vec).collect()),
    };
    batch.runs.iter().map(|run| run.score).map(answer).collect()
}

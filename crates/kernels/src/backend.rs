//! The operations that specquant owns on top of a burn backend, and the plain values that they take.
//!
//! Every operation is batch-invariant: the bits of a row depend on that row's own values and keys only, never on the
//! other rows of the call, on how a sequence was split into calls, or on the team's thread count.

use anyhow::Result;
use burn::tensor::Tensor;
use specquant_core::{KvDtype, Quantizer, SlotCopy, WeightFormat};

use crate::rope::RopeTable;

/// A burn backend with the matrix product, attention, normalization, rotary embedding and activation of a
/// Llama-shaped decoder.
///
/// Matrix, KV store and team are associated types because each backend keeps them where it computes. Activations are
/// f32. Operations panic on shapes that do not fit together: the caller has built both sides.
pub trait Backend: burn::tensor::backend::Backend {
    /// What executes the operations; made once, shared by every model.
    type Team: Clone + Send + Sync + 'static;
    /// A weight matrix in the layout that `linear` reads.
    type Packed: Send + 'static;
    /// The keys and values of all slots in all layers.
    type KvStore: Send + 'static;

    /// Packs matrices that share their inputs, stacked along the outputs in the given order (query, key, value; or
    /// gate, up).
    ///
    /// A format equal to the stored dtype loses nothing; other float formats round to nearest even, and the rest do as
    /// `quantizer` says.
    ///
    /// # Errors
    /// When a part's bytes do not match its shape, the parts' inputs differ, groups do not divide the inputs, a finite
    /// weight would become infinite in `format`, or a weight that is not finite is to be quantized; the message names the
    /// tensor.
    fn pack(
        parts: &[DenseMatrix<'_>],
        format: WeightFormat,
        quantizer: Quantizer,
        team: &Self::Team,
    ) -> Result<Self::Packed>;

    /// Bytes that the matrix keeps resident, padding included.
    fn packed_bytes(w: &Self::Packed) -> usize;

    /// `x` times the transpose of `w`: `[rows, inputs] -> [rows, outputs]`.
    fn linear(x: Tensor<Self, 2>, w: &Self::Packed, team: &Self::Team) -> Tensor<Self, 2>;

    /// RMSNorm: each row over the root of its mean square plus `eps`, times `weight`; `[rows, width] -> [rows, width]`.
    fn norm(x: &Tensor<Self, 2>, weight: &Tensor<Self, 1>, eps: f32, team: &Self::Team) -> Tensor<Self, 2>;

    /// Rotates the queries and keys of `[rows, (query + 2 kv) * dim]` to their positions, element `i` of a head paired
    /// with `i + dim / 2`; values pass unchanged.
    fn rope(
        qkv: Tensor<Self, 2>,
        heads: &Heads,
        table: &RopeTable,
        positions: &[u32],
        team: &Self::Team,
    ) -> Tensor<Self, 2>;

    /// A zeroed store.
    ///
    /// # Errors
    /// When there is no memory for it; the message says how much it needs.
    fn kv_store(shape: KvShape, team: &Self::Team) -> Result<Self::KvStore>;

    /// Bytes that the store keeps resident, padding included.
    fn kv_bytes(store: &Self::KvStore) -> usize;

    /// Writes the keys and values of row `r` to slot `slots[r]` of one layer, rounded to the store's dtype.
    fn kv_write(
        qkv: &Tensor<Self, 2>,
        heads: &Heads,
        store: &mut Self::KvStore,
        layer: usize,
        slots: &[u32],
        team: &Self::Team,
    );

    /// Attention of each row's queries to the keys in `rows[r]`, the slots of positions `0..=p` of a row at position
    /// `p`: the causal mask is the slice's length. `[rows, (query + 2 kv) * dim] -> [rows, query * dim]`, scores scaled
    /// by `1 / sqrt(dim)`.
    ///
    /// Keys and values are read from the store only, so a chunk's own keys must have been written before.
    fn attend(
        qkv: &Tensor<Self, 2>,
        heads: &Heads,
        store: &Self::KvStore,
        layer: usize,
        rows: &[&[u32]],
        team: &Self::Team,
    ) -> Tensor<Self, 2>;

    /// `silu(gate) * up` of `[rows, 2 * width]`, gate first: `[rows, width]`.
    fn silu_mul(gate_up: Tensor<Self, 2>, team: &Self::Team) -> Tensor<Self, 2>;

    /// Copies slots in every layer, in order.
    fn copy_kv(store: &mut Self::KvStore, copies: &[SlotCopy]);
}

/// A matrix as a checkpoint stores it: row-major `[outputs, inputs]`, as PyTorch's `nn.Linear` has it.
#[derive(Clone, Copy, Debug)]
pub struct DenseMatrix<'a> {
    /// The tensor's name in the checkpoint, for errors.
    pub name: &'a str,
    /// Rows: the width of what `linear` returns.
    pub outputs: usize,
    /// Columns: the width of what `linear` takes.
    pub inputs: usize,
    /// The type of the stored elements.
    pub dtype: Dtype,
    /// The elements, little-endian, at any alignment.
    pub bytes: &'a [u8],
}

/// The element type of a [`DenseMatrix`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

/// How the columns of a `qkv` tensor divide into heads: queries, then keys, then values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads, a multiple of `kv`; consecutive ones share a key and value head.
    pub query: usize,
    /// Key heads, and as many value heads.
    pub kv: usize,
    /// Elements of one head; even.
    pub dim: usize,
}

impl Heads {
    /// Columns of a `qkv` tensor.
    pub fn width(&self) -> usize {
        (self.query + 2 * self.kv) * self.dim
    }

    /// Query heads that share one key and value head.
    pub fn group(&self) -> usize {
        self.query / self.kv
    }
}

/// The size of a KV store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Decoder layers.
    pub layers: usize,
    /// Tokens that fit.
    pub slots: usize,
    /// Key heads, and as many value heads.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// How keys and values are stored.
    pub dtype: KvDtype,
}

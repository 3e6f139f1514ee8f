//! The costly operations without tensors, on plain numbers: what benches measure. The backend's operations are these with
//! tensors around them.

use anyhow::Result;

use crate::attention::attend;
use crate::backend::{Heads, KvShape};
use crate::kv_store::KvStore;
use crate::linear::linear;
use crate::packed::PackedMatrix;
use crate::team::Team;

/// `x` `[rows, inputs]` times the transpose of `w`: `[rows, outputs]`.
pub fn product(x: &[f32], w: &PackedMatrix, team: &Team) -> Vec<f32> {
    // SAFETY: there is room for the result's elements, all of which are written.
    unsafe { filled(x.len() / w.inputs() * w.outputs(), |y| linear(x, w, team, y)) }
}

/// A KV store with the keys and values of `qkv`, one row for each slot of `slots`, in its first layer.
///
/// # Errors
/// When there is no memory for the store.
pub fn store(qkv: &[f32], heads: &Heads, shape: KvShape, slots: &[u32], team: &Team) -> Result<KvStore> {
    let mut store = KvStore::new(shape)?;
    store.write(qkv, heads, 0, slots, team);
    Ok(store)
}

/// Attention of the rows of `qkv` in the first layer; row `r` sees `rows[r]`.
pub fn attention(qkv: &[f32], heads: &Heads, store: &KvStore, rows: &[&[u32]], team: &Team) -> Vec<f32> {
    // SAFETY: as in `product`.
    unsafe { filled(rows.len() * heads.query * heads.dim, |y| attend(qkv, heads, store, 0, rows, team, y)) }
}

/// So many numbers, which `fill` writes, without the pass over memory that zeros them first.
///
/// # Safety
/// `fill` must write all of them, or panic.
pub(crate) unsafe fn filled(elements: usize, fill: impl FnOnce(*mut f32)) -> Vec<f32> {
    let mut values: Vec<f32> = Vec::with_capacity(elements);
    fill(values.as_mut_ptr());
    // SAFETY: the capacity suffices, and the caller promises that the elements are written.
    unsafe { values.set_len(elements) };
    values
}

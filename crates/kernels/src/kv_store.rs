//! The keys and values of all slots: `[layer][key, value][kv head][slot][stride]`.
//!
//! A head's slots lie together, so that attention streams them; the stride is the head size rounded up to the widest
//! vector, with zeros behind the head. Which sequence a slot belongs to is the allocator's business.

use std::fmt;

use anyhow::{Context, Result, ensure};
use half::f16;
use specquant_core::{KvDtype, SlotCopy};

use crate::backend::{Heads, KvShape};
use crate::buffer::Buffer;
use crate::simd::{KvElement, MAX_LANES, Simd, for_isa, load_up_to};
use crate::team::{Output, Team};

/// The KV store of one model. In f16 a value beyond 65504 becomes infinite.
pub struct KvStore {
    shape: KvShape,
    stride: usize,
    data: Buffer,
}

impl KvStore {
    /// A zeroed store.
    ///
    /// # Errors
    /// When a dimension is zero or there is no memory for it.
    pub fn new(shape: KvShape) -> Result<KvStore> {
        let KvShape { layers, slots, kv_heads, head_dim, dtype } = shape;
        ensure!(layers * slots * kv_heads * head_dim > 0, "a KV store needs layers, slots and heads: {shape:?}");
        let stride = head_dim.next_multiple_of(MAX_LANES);
        let bytes = 2 * layers * kv_heads * slots * stride * dtype.bytes();
        let data = Buffer::zeroed(bytes).with_context(|| format!("a KV store of {slots} {dtype} slots"))?;
        Ok(KvStore { shape, stride, data })
    }

    /// The store's size.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Resident bytes, padding included.
    pub fn bytes(&self) -> usize {
        self.data.bytes()
    }

    /// Elements between the same head of neighbouring slots.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Where the keys (0) or values (1) of a head begin, in elements.
    pub(crate) fn plane(&self, layer: usize, side: usize, head: usize) -> usize {
        ((layer * 2 + side) * self.shape.kv_heads + head) * self.shape.slots * self.stride
    }

    /// The first element; `E` is the store's element type.
    pub(crate) fn elements<E: KvElement>(&self) -> *const E {
        self.data.start().cast()
    }

    /// Panics unless the store has this layer and heads of this shape.
    pub(crate) fn check(&self, heads: &Heads, layer: usize) {
        let KvShape { layers, kv_heads, head_dim, .. } = self.shape;
        assert!(layer < layers, "layer {layer} of {layers}");
        assert_eq!((heads.kv, heads.dim), (kv_heads, head_dim), "the store is for other heads");
    }

    /// Writes the keys and values of `qkv` `[rows, (query + 2 kv) * dim]`, row `r` to slot `slots[r]`.
    pub(crate) fn write(&mut self, qkv: &[f32], heads: &Heads, layer: usize, slots: &[u32], team: &Team) {
        self.check(heads, layer);
        assert_eq!(qkv.len(), slots.len() * heads.width(), "one row for each slot");
        assert!(slots.iter().all(|slot| (*slot as usize) < self.shape.slots), "a slot beyond {}", self.shape.slots);
        match self.shape.dtype {
            KvDtype::F32 => self.write_as::<f32>(qkv, heads, layer, slots, team),
            KvDtype::F16 => self.write_as::<f16>(qkv, heads, layer, slots, team),
        }
    }

    fn write_as<E: KvElement>(&mut self, qkv: &[f32], heads: &Heads, layer: usize, slots: &[u32], team: &Team) {
        let data = Output::new(self.data.start_mut().cast::<E>());
        let (isa, store) = (team.isa(), &*self);
        // Parts are heads, not rows: should two rows name one slot, the later row wins instead of racing.
        let planes = 2 * heads.kv;
        team.run(planes * heads.dim * slots.len(), planes, &|part| {
            let (side, head) = (part / heads.kv, part % heads.kv);
            for (row, slot) in slots.iter().enumerate() {
                let from = row * heads.width() + (heads.query + part) * heads.dim;
                let to = store.plane(layer, side, head) + *slot as usize * store.stride;
                // SAFETY: the slot lies in the plane, which is this part's own; its stride holds whole vectors.
                unsafe { head_on::<E>(isa, &qkv[from..from + heads.dim], data.get().add(to)) }
            }
        });
    }

    /// Copies slots in every layer, in order.
    pub(crate) fn copy(&mut self, copies: &[SlotCopy]) {
        let KvShape { layers, slots, kv_heads, dtype, .. } = self.shape;
        let size = self.stride * dtype.bytes();
        let start = self.data.start_mut();
        for SlotCopy { from, to } in copies {
            let (from, to) = (*from as usize, *to as usize);
            assert!(from < slots && to < slots, "copy of slot {from} to {to} beyond {slots}");
            for plane in 0..layers * 2 * kv_heads {
                let (source, target) = ((plane * slots + from) * size, (plane * slots + to) * size);
                // SAFETY: both slots lie in the plane, which lies in the buffer; equal slots may overlap.
                unsafe { start.add(source).copy_to(start.add(target), size) };
            }
        }
    }
}

for_isa!(fn head_on[E: KvElement](x: &[f32], to: *mut E) = head);

/// Writes one head, with zeros up to the next full vector.
///
/// # Safety
/// `to` covers the length of `x`, rounded up to a full vector.
#[inline(always)]
unsafe fn head<S: Simd, E: KvElement>(x: &[f32], to: *mut E) {
    let mut i = 0;
    while i < x.len() {
        // SAFETY: the caller keeps the contract.
        unsafe { E::store::<S>(to.add(i), load_up_to::<S>(x.as_ptr().add(i), x.len() - i)) };
        i += S::LANES;
    }
}

impl fmt::Debug for KvStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "KvStore({:?})", self.shape)
    }
}

//! The operations on burn's CPU backend, Flex: takes the numbers out of its tensors and wraps the results.
//!
//! No operation changes a tensor that someone else still holds; results are written once and not copied.

use anyhow::Result;
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use specquant_core::{Quantizer, SlotCopy, WeightFormat};

use crate::attention::attend;
use crate::backend::{Backend, DenseMatrix, Heads, KvShape};
use crate::bare;
use crate::kv_store::KvStore;
use crate::linear::linear;
use crate::norm::norm;
use crate::packed::PackedMatrix;
use crate::rope::{RopeTable, rope};
use crate::silu::silu_mul;
use crate::team::Team;

impl Backend for Flex {
    type Team = Team;
    type Packed = PackedMatrix;
    type KvStore = KvStore;

    fn pack(
        parts: &[DenseMatrix<'_>],
        format: WeightFormat,
        quantizer: Quantizer,
        team: &Team,
    ) -> Result<PackedMatrix> {
        PackedMatrix::new(parts, format, quantizer, team)
    }

    fn packed_bytes(w: &PackedMatrix) -> usize {
        w.bytes()
    }

    fn linear(x: Tensor<Flex, 2>, w: &PackedMatrix, team: &Team) -> Tensor<Flex, 2> {
        let [rows, inputs] = x.dims();
        assert_eq!(inputs, w.inputs(), "the matrix takes {} inputs", w.inputs());
        let x = dense(x);
        // SAFETY: `filled` gives room for exactly the result's elements, and `linear` writes them all.
        unsafe { filled([rows, w.outputs()], |y| linear(values(&x), w, team, y)) }
    }

    fn norm(x: &Tensor<Flex, 2>, weight: &Tensor<Flex, 1>, eps: f32, team: &Team) -> Tensor<Flex, 2> {
        let shape @ [_, width] = x.dims();
        assert_eq!([width], weight.dims(), "one weight for each column");
        let (x, weight) = (dense(x.clone()), dense(weight.clone()));
        // SAFETY: as in `linear`.
        unsafe { filled(shape, |y| norm(values(&x), values(&weight), eps, team, y)) }
    }

    fn rope(qkv: Tensor<Flex, 2>, heads: &Heads, table: &RopeTable, positions: &[u32], team: &Team) -> Tensor<Flex, 2> {
        assert_eq!(qkv.dims(), [positions.len(), heads.width()], "one row of heads for each position");
        let mut qkv = dense(qkv);
        // A view into a larger buffer is copied whole rather than changed in the middle.
        if qkv.storage::<f32>().len() != positions.len() * heads.width() {
            qkv = qkv.to_contiguous();
        }
        // Copies first if someone else holds the tensor.
        rope(qkv.storage_mut(), heads, table, positions, team);
        Tensor::from_primitive(TensorPrimitive::Float(qkv))
    }

    fn kv_store(shape: KvShape, _team: &Team) -> Result<KvStore> {
        KvStore::new(shape)
    }

    fn kv_bytes(store: &KvStore) -> usize {
        store.bytes()
    }

    fn kv_write(qkv: &Tensor<Flex, 2>, heads: &Heads, store: &mut KvStore, layer: usize, slots: &[u32], team: &Team) {
        store.write(values(&dense(qkv.clone())), heads, layer, slots, team);
    }

    fn attend(
        qkv: &Tensor<Flex, 2>,
        heads: &Heads,
        store: &KvStore,
        layer: usize,
        rows: &[&[u32]],
        team: &Team,
    ) -> Tensor<Flex, 2> {
        let qkv = dense(qkv.clone());
        // SAFETY: as in `linear`.
        unsafe {
            filled([rows.len(), heads.query * heads.dim], |y| {
                attend(values(&qkv), heads, store, layer, rows, team, y);
            })
        }
    }

    fn silu_mul(gate_up: Tensor<Flex, 2>, team: &Team) -> Tensor<Flex, 2> {
        let [rows, columns] = gate_up.dims();
        assert_eq!(columns % 2, 0, "gate and up are equally wide");
        let gate_up = dense(gate_up);
        // SAFETY: as in `linear`.
        unsafe { filled([rows, columns / 2], |y| silu_mul(values(&gate_up), columns / 2, team, y)) }
    }

    fn copy_kv(store: &mut KvStore, copies: &[SlotCopy]) {
        store.copy(copies);
    }
}

/// The primitive, contiguous and f32; shares the tensor's buffer when that is so already.
fn dense<const D: usize>(x: Tensor<Flex, D>) -> FlexTensor {
    let x = x.into_primitive().tensor();
    assert_eq!(x.dtype(), DType::F32, "activations are f32");
    if x.as_slice::<f32>().is_some() { x } else { x.to_contiguous() }
}

/// The elements of a tensor that `dense` returned.
fn values(x: &FlexTensor) -> &[f32] {
    x.as_slice().expect("`dense` returns contiguous f32")
}

/// A tensor whose elements `fill` writes, without the pass over memory that zeros them first.
///
/// # Safety
/// `fill` must write as many elements as `shape` has, or panic.
unsafe fn filled(shape: [usize; 2], fill: impl FnOnce(*mut f32)) -> Tensor<Flex, 2> {
    // SAFETY: the caller keeps the contract.
    let values = unsafe { bare::filled(shape[0] * shape[1], fill) };
    let primitive = FlexTensor::from_data(TensorData::new(values, shape));
    Tensor::from_primitive(TensorPrimitive::Float(primitive))
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::{Tensor, TensorData};
    use specquant_core::{KvDtype, Quantizer, WeightFormat};

    use crate::testing::{bits, host, numbers, teams, tensor};
    use crate::{Backend, DenseMatrix, Dtype, Heads, Isa, KvShape, RopeTable, Team};

    #[test]
    fn no_operation_changes_its_inputs() {
        let heads = Heads { query: 4, kv: 2, dim: 16 };
        let table = RopeTable::new(&RopeTable::inv_freq(1e4, 16), 64);
        let (slots, positions) = ([3u32, 1, 2], [9u32, 10, 11]);
        let values = numbers(1, 3 * heads.width());
        for team in teams(&[1, 2]) {
            let x = tensor(&values, heads.width());
            let bytes = vec![0x3c; 5 * heads.width() * 2];
            let matrix = DenseMatrix { name: "w", outputs: 5, inputs: heads.width(), dtype: Dtype::F16, bytes: &bytes };
            let w = Flex::pack(&[matrix], WeightFormat::F16, Quantizer::Mse, &team).unwrap();
            let gain = Tensor::<Flex, 1>::ones([heads.width()], &Default::default());
            let shape = KvShape { layers: 1, slots: 4, kv_heads: 2, head_dim: 16, dtype: KvDtype::F16 };
            let mut store = Flex::kv_store(shape, &team).unwrap();
            Flex::kv_write(&x, &heads, &mut store, 0, &slots, &team);
            let results = [
                Flex::linear(x.clone(), &w, &team),
                Flex::norm(&x, &gain, 1e-5, &team),
                Flex::rope(x.clone(), &heads, &table, &positions, &team),
                Flex::attend(&x, &heads, &store, 0, &[&slots[..1], &slots[..2], &slots], &team),
                Flex::silu_mul(x.clone(), &team),
            ];
            assert_eq!(bits(&host(x)), bits(&values), "{team:?}");
            assert!(results.into_iter().all(|y| host(y).iter().all(|y| y.is_finite())), "{team:?}");
        }
    }

    #[test]
    fn views_count_as_the_rows_that_they_show() {
        let heads = Heads { query: 1, kv: 1, dim: 8 };
        let table = RopeTable::new(&RopeTable::inv_freq(1e4, 8), 64);
        let team = Team::new(2, Isa::detect()).unwrap();
        let values = numbers(1, 6 * heads.width());
        let whole = tensor(&values, heads.width());
        let view = || whole.clone().slice([2..4, 0..heads.width()]);
        let copy = || tensor(&values[2 * heads.width()..4 * heads.width()], heads.width());
        let same = |a: Tensor<Flex, 2>, b: Tensor<Flex, 2>| assert_eq!(bits(&host(a)), bits(&host(b)));
        same(Flex::silu_mul(view(), &team), Flex::silu_mul(copy(), &team));
        same(Flex::rope(view(), &heads, &table, &[5, 6], &team), Flex::rope(copy(), &heads, &table, &[5, 6], &team));
        // A transposed view is not contiguous.
        let square = numbers(2, 24 * 24);
        let flipped: Vec<f32> = (0..24 * 24).map(|i| square[i % 24 * 24 + i / 24]).collect();
        same(Flex::silu_mul(tensor(&square, 24).transpose(), &team), Flex::silu_mul(tensor(&flipped, 24), &team));
        assert_eq!(bits(&host(whole)), bits(&values));
    }

    #[test]
    fn a_shared_tensor_is_copied_and_an_own_one_changed_in_place() {
        let heads = Heads { query: 1, kv: 1, dim: 8 };
        let table = RopeTable::new(&RopeTable::inv_freq(1e4, 8), 64);
        let team = Team::new(1, Isa::detect()).unwrap();
        let x: Tensor<Flex, 2> = Tensor::from_data(TensorData::new(numbers(1, 24), [1, 24]), &Default::default());
        let address = |x: &Tensor<Flex, 2>| x.clone().into_primitive().tensor().bytes().as_ptr() as usize;
        let before = address(&x);
        let held = x.clone();
        let turned = Flex::rope(x, &heads, &table, &[1], &team);
        assert_ne!(address(&turned), before);
        drop(turned);
        let turned = Flex::rope(held, &heads, &table, &[1], &team);
        assert_eq!(address(&turned), before);
    }
}

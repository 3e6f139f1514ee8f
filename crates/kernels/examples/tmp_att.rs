use burn::backend::Flex;
use burn::tensor::*;
use specquant_core::*;
use specquant_kernels::*;
use std::time::Instant;
fn main() {
    let team = Team::new(1, Isa::detect()).unwrap();
    for heads in [Heads { query: 8, kv: 4, dim: 32 }, Heads { query: 32, kv: 8, dim: 64 }] {
        let slots = 512;
        let shape = KvShape { layers: 1, slots, kv_heads: heads.kv, head_dim: heads.dim, dtype: KvDtype::F16 };
        let mut store = Flex::kv_store(shape, &team).unwrap();
        let all: Vec<u32> = (0..slots as u32).collect();
        let n = |r: usize| -> Tensor<Flex, 2> {
            Tensor::from_data(
                TensorData::new(
                    (0..r * heads.width()).map(|i| (i * 7919 % 2003) as f32 / 2003.0 - 0.5).collect::<Vec<f32>>(),
                    [r, heads.width()],
                ),
                &Default::default(),
            )
        };
        Flex::kv_write(&n(slots), &heads, &mut store, 0, &all, &team);
        let q = n(1);
        let mut best = f64::MAX;
        for _ in 0..200 {
            let t = Instant::now();
            for _ in 0..50 {
                drop(Flex::attend(&q, &heads, &store, 0, &[&all], &team));
            }
            best = best.min(t.elapsed().as_secs_f64() / 50.0);
        }
        println!(
            "{heads:?} {:.2} us {:.1} GFLOP/s",
            best * 1e6,
            4.0 * (slots * heads.query * heads.dim) as f64 / best / 1e9
        );
    }
}

use burn::backend::Flex;
use burn::tensor::*;
use specquant_core::*;
use specquant_kernels::*;
use std::time::Instant;
fn main() {
    let team = Team::new(1, Isa::detect()).unwrap();
    for (rows, inputs, outputs) in [
        (128, 2048, 8192),
        (16, 2048, 8192),
        (128, 2048, 8000),
        (128, 2000, 8000),
        (128, 256, 4096),
        (128, 256, 4000),
        (128, 8192, 2048),
    ] {
        let bytes = vec![0x2cu8; inputs * outputs * 2];
        let w = Flex::pack(
            &[DenseMatrix { name: "w", outputs, inputs, dtype: Dtype::F16, bytes: &bytes }],
            WeightFormat::F16,
            &team,
        )
        .unwrap();
        let x: Tensor<Flex, 2> = Tensor::ones([rows, inputs], &Default::default());
        let mut best = f64::MAX;
        let s = Instant::now();
        while s.elapsed().as_secs_f64() < 1.5 {
            let t = Instant::now();
            drop(Flex::linear(x.clone(), &w, &team));
            best = best.min(t.elapsed().as_secs_f64());
        }
        println!(
            "{rows} {inputs} {outputs}: {:.0} us {:.1} GFLOP/s",
            best * 1e6,
            2.0 * (rows * inputs * outputs) as f64 / best / 1e9
        );
    }
}

//! Prints what one call of each operation costs: `cargo run --release -p specquant-kernels --example rate [PATH]`.
//!
//! Each figure is the fastest tenth of many calls on this machine as it is now; matrices that fit in cache stay there, so that
//! GB/s (of weight bytes) is a cache figure for the small ones. PATH is scalar, avx2 or avx512; the default is the best.

use std::time::Instant;

use anyhow::{Result, bail};
use burn::backend::Flex;
use burn::tensor::{Tensor, TensorData};
use half::f16;
use specquant_core::{KvDtype, Quantizer, WeightFormat};
use specquant_kernels::{Backend, DenseMatrix, Dtype, Heads, Isa, KvShape, RopeTable, Team};

fn main() -> Result<()> {
    let isa = match std::env::args().nth(1) {
        None => Isa::detect(),
        Some(name) => match Isa::ALL.into_iter().find(|isa| isa.to_string() == name) {
            Some(isa) => isa,
            None => bail!("`{name}` is no path: use scalar, avx2 or avx512"),
        },
    };
    for threads in [1, 2] {
        let team = Team::new(threads, isa)?;
        println!("{isa}, {threads} thread(s)");
        println!("  dispatch of two empty parts {:8.2} us", fast(|| team.run(usize::MAX, 2, &|_| ())));
        linears(&team)?;
        formats(&team)?;
        row_wise(&team);
        attention(&team)?;
    }
    Ok(())
}

fn linears(team: &Team) -> Result<()> {
    println!("  linear, f16 weights      us per call (GB/s of weights, GFLOP/s)");
    for (inputs, outputs) in [(256, 512), (256, 256), (256, 1280), (640, 256), (256, 4096), (2048, 8192)] {
        let bytes: Vec<u8> = numbers(outputs * inputs).iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
        let matrix = DenseMatrix { name: "w", outputs, inputs, dtype: Dtype::F16, bytes: &bytes };
        let w = Flex::pack(&[matrix], WeightFormat::F16, Quantizer::Mse, team)?;
        print!("  {inputs:5} -> {outputs:5}");
        for rows in [1, 2, 5, 16, 128] {
            let x = tensor(rows, inputs);
            let time = fast(|| drop(Flex::linear(x.clone(), &w, team)));
            let flops = 2.0 * (rows * inputs * outputs) as f64;
            print!("  {rows:4}: {time:8.1} ({:5.1}, {:5.1})", w.bytes() as f64 / time / 1e3, flops / time / 1e3);
        }
        println!();
    }
    Ok(())
}

/// A product of every format.
fn formats(team: &Team) -> Result<()> {
    let (inputs, outputs) = (2048, 4096);
    println!("  linear {inputs} -> {outputs}, every format");
    let bytes: Vec<u8> = numbers(outputs * inputs).iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
    let matrix = DenseMatrix { name: "w", outputs, inputs, dtype: Dtype::F16, bytes: &bytes };
    for format in WeightFormat::ALL {
        let w = Flex::pack(&[matrix], format, Quantizer::Rtn, team)?;
        print!("  {format:14}");
        for rows in [1, 2, 5, 9, 16, 128] {
            let x = tensor(rows, inputs);
            let time = fast(|| drop(Flex::linear(x.clone(), &w, team)));
            let flops = 2.0 * (rows * inputs * outputs) as f64;
            print!("  {rows:4}: {time:8.1} ({:5.1}, {:5.1})", w.bytes() as f64 / time / 1e3, flops / time / 1e3);
        }
        println!();
    }
    Ok(())
}

fn row_wise(team: &Team) {
    let heads = Heads { query: 8, kv: 4, dim: 32 };
    let table = RopeTable::new(&RopeTable::inv_freq(1e4, heads.dim), 512);
    let weight = Tensor::<Flex, 1>::from_data(TensorData::new(numbers(256), [256]), &Default::default());
    for rows in [1usize, 5, 128] {
        let (x, gate_up, qkv) = (tensor(rows, 256), tensor(rows, 1280), tensor(rows, heads.width()));
        let positions: Vec<u32> = (0..rows as u32).collect();
        println!(
            "  {rows:4} rows: norm 256 {:6.2} us, silu_mul 640 {:6.2} us, rope 8+4 heads {:6.2} us, add {:6.2} us",
            fast(|| drop(Flex::norm(&x, &weight, 1e-5, team))),
            fast(|| drop(Flex::silu_mul(gate_up.clone(), team))),
            fast(|| drop(Flex::rope(qkv.clone(), &heads, &table, &positions, team))),
            fast(|| drop(x.clone() + x.clone())),
        );
    }
}

fn attention(team: &Team) -> Result<()> {
    for (heads, slots) in [(Heads { query: 8, kv: 4, dim: 32 }, 512usize), (Heads { query: 32, kv: 8, dim: 64 }, 4096)]
    {
        let shape = KvShape { layers: 1, slots, kv_heads: heads.kv, head_dim: heads.dim, dtype: KvDtype::F16 };
        let mut store = Flex::kv_store(shape, team)?;
        let all: Vec<u32> = (0..slots as u32).collect();
        Flex::kv_write(&tensor(slots, heads.width()), &heads, &mut store, 0, &all, team);
        for (rows, context) in [(1, 64), (1, 512), (5, 512), (128, 128), (1, slots)] {
            let lists: Vec<&[u32]> = (0..rows).map(|row| &all[..context - rows + 1 + row]).collect();
            let qkv = tensor(rows, heads.width());
            let time = fast(|| drop(Flex::attend(&qkv, &heads, &store, 0, &lists, team)));
            let keys: usize = lists.iter().map(|list| list.len()).sum();
            println!(
                "  attend {:2}/{} heads of {:2}: {rows:3} rows, context {context:4}: {time:8.1} us, {:5.1} GFLOP/s",
                heads.query,
                heads.kv,
                heads.dim,
                4.0 * (keys * heads.query * heads.dim) as f64 / time / 1e3
            );
        }
    }
    Ok(())
}

fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7919 % 2003) as f32 / 2003.0 - 0.5).collect()
}

fn tensor(rows: usize, columns: usize) -> Tensor<Flex, 2> {
    Tensor::from_data(TensorData::new(numbers(rows * columns), [rows, columns]), &Default::default())
}

/// Microseconds of one call: the end of the fastest tenth of samples over at least 0.15 s.
fn fast(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut warm = 0;
    while start.elapsed().as_secs_f64() < 0.02 || warm < 3 {
        call();
        warm += 1;
    }
    let calls = (warm / 20).max(1);
    let mut samples: Vec<f64> = Vec::new();
    let start = Instant::now();
    while samples.len() < 5 || start.elapsed().as_secs_f64() < 0.15 {
        let begin = Instant::now();
        (0..calls).for_each(|_| call());
        samples.push(begin.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
    }
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 10]
}

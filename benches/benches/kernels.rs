//! Products with packed matrices, and attention: `cargo bench --bench kernels`.
//!
//! Matrices rotate over more memory than caches hold, so that bytes per second are those of memory.

use anyhow::Result;
use criterion::{Criterion, criterion_group, criterion_main};
use half::f16;
use specquant_benches::{BEYOND_CACHE, Bench, Work};
use specquant_core::{KvDtype, Quantizer, WeightFormat};
use specquant_kernels::{DenseMatrix, Dtype, Heads, KvShape, PackedMatrix, bare};

/// The shape of a product of a model of about a billion parameters.
const INPUTS: usize = 2048;
const OUTPUTS: usize = 8192;

fn linear(criterion: &mut Criterion) {
    products(criterion).expect("memory for the matrices");
}

fn products(criterion: &mut Criterion) -> Result<()> {
    let full = cfg!(feature = "full-benches");
    let some = ["f16", "fp8:channel", "int4:g32", "int8-a8:g32", "int4-a8:g32"].map(str::parse::<WeightFormat>);
    let formats = if full { WeightFormat::ALL.to_vec() } else { some.into_iter().collect::<Result<_, _>>()? };
    let rows: &[usize] = if full { &[1, 2, 3, 5, 9, 16, 128, 512] } else { &[1, 5, 128] };
    let mut bench = Bench::new(criterion, "linear", formats.len() * rows.len())?;
    let bytes: Vec<u8> = numbers(INPUTS * OUTPUTS).iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect();
    let matrix = DenseMatrix { name: "w", outputs: OUTPUTS, inputs: INPUTS, dtype: Dtype::F16, bytes: &bytes };
    for format in formats {
        let pack = || PackedMatrix::new(&[matrix], format, Quantizer::Rtn, &bench.team);
        let size = format.bytes(OUTPUTS, INPUTS) as usize;
        let all = (0..BEYOND_CACHE.div_ceil(size)).map(|_| pack()).collect::<Result<Vec<_>>>()?;
        for rows in rows {
            let (x, team) = (numbers(rows * INPUTS), bench.team.clone());
            let work = Work { bytes: size, operations: 2 * rows * INPUTS * OUTPUTS, tokens: 0 };
            let mut turn = 0;
            bench.case(&format!("{format} x {rows}"), work, || {
                turn += 1;
                drop(bare::product(&x, &all[turn % all.len()], &team));
            });
        }
    }
    Ok(())
}

fn attention(criterion: &mut Criterion) {
    attended(criterion).expect("memory for keys and values");
}

fn attended(criterion: &mut Criterion) -> Result<()> {
    let some: &[(usize, usize)] = &[(1, 512), (1, 4096), (5, 512), (128, 512)];
    let more: &[(usize, usize)] =
        &[(1, 64), (1, 512), (1, 4096), (1, 16384), (5, 512), (5, 4096), (128, 512), (512, 512)];
    let cases = if cfg!(feature = "full-benches") { more } else { some };
    let mut bench = Bench::new(criterion, "attention", cases.len())?;
    let heads = Heads { query: 32, kv: 4, dim: 64 };
    for (rows, context) in cases.iter().copied() {
        let shape = KvShape { layers: 1, slots: context, kv_heads: heads.kv, head_dim: heads.dim, dtype: KvDtype::F16 };
        let (slots, team): (Vec<u32>, _) = ((0..context as u32).collect(), bench.team.clone());
        let store = bare::store(&numbers(context * heads.width()), &heads, shape, &slots, &team)?;
        let seen: Vec<&[u32]> = (1..=rows).map(|row| &slots[..context - rows + row]).collect();
        let keys: usize = seen.iter().map(|seen| seen.len()).sum();
        let qkv = numbers(rows * heads.width());
        let work = Work {
            bytes: 2 * context * heads.kv * heads.dim * 2,
            operations: 4 * keys * heads.query * heads.dim,
            tokens: 0,
        };
        bench.case(&format!("{rows} rows at {context}"), work, || {
            drop(bare::attention(&qkv, &heads, &store, &seen, &team));
        });
    }
    Ok(())
}

/// Numbers from -0.5 to 0.5.
fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7919 % 2003) as f32 / 2003.0 - 0.5).collect()
}

criterion_group!(benches, linear, attention);
criterion_main!(benches);

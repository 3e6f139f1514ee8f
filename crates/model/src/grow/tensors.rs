//! The tensors of an enlarged model: what each is made of, row by row.

use anyhow::Result;
use safetensors::Dtype as Stored;
use specquant_kernels::Dtype;

use super::Shape;
use super::axis::{Axes, Axis};
use crate::config::Config;
use crate::load::{Checkpoint, EMBEDDING, FINAL_NORM, HEAD, in_layer, widen};

/// What stands where nothing old stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filler {
    /// Zeros: the padded residual stays zero, and what new heads and columns compute has no effect.
    Zero,
    /// Random numbers, none of them zero, at most as large as the largest of the row.
    Random,
    /// Random numbers in new columns, zeros in new rows: of the key projection, so that what a wider head holds besides adds
    /// nothing to its scores.
    Columns,
    /// The old values over again.
    Again,
}

/// One tensor to be written.
pub(super) struct Plan<'a> {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) dtype: Dtype,
    /// The tensor whose values or magnitudes it has.
    source: String,
    rows: Axis,
    columns: &'a Axis,
    /// Whether old values are taken at all; a further layer has none.
    old: bool,
    factor: f32,
    filler: Filler,
}

/// Every tensor of the enlarged model.
pub(super) fn plans<'a>(
    old: &Config,
    new: &Shape,
    axes: &'a Axes,
    checkpoint: &Checkpoint<'_>,
) -> Result<Vec<Plan<'a>>> {
    let plan = |name: &str, source: &str, rows: &Axis, columns: &'a Axis, filler: Filler| -> Result<Plan<'a>> {
        Ok(Plan {
            name: name.to_string(),
            shape: vec![rows.len(), columns.len()],
            dtype: checkpoint.matrix(source)?.dtype,
            source: source.to_string(),
            rows: rows.clone(),
            columns,
            old: true,
            factor: 1.0,
            filler,
        })
    };
    let norm = |name: &str, source: &str| -> Result<Plan<'a>> {
        let factor = (old.hidden_size as f64 / new.hidden as f64).sqrt() as f32;
        let one = plan(name, source, &vec![Some(0)], &axes.residual, Filler::Again)?;
        Ok(Plan { shape: vec![new.hidden], dtype: Dtype::F32, factor, ..one })
    };
    let vocabulary: Axis = (0..old.vocab_size).map(Some).collect();
    let mut plans = vec![plan(EMBEDDING, EMBEDDING, &vocabulary, &axes.residual, Filler::Zero)?];
    let scale = (new.head_dim as f64 / old.head_dim as f64).sqrt();
    for layer in 0..new.layers {
        let from = layer % old.num_hidden_layers;
        let (name, source) = (|part: &str| in_layer(layer, part), |part: &str| in_layer(from, part));
        let mut add = |part: &str, rows: &Axis, columns: &'a Axis, filler: Filler| -> Result<()> {
            let plan = plan(&name(part), &source(part), rows, columns, filler)?;
            plans.push(Plan { old: layer == from, ..plan });
            Ok(())
        };
        add("self_attn.q_proj", &axes.query, &axes.residual, Filler::Random)?;
        add("self_attn.k_proj", &axes.key, &axes.residual, Filler::Columns)?;
        add("self_attn.v_proj", &axes.value, &axes.residual, Filler::Random)?;
        add("self_attn.o_proj", &axes.residual, &axes.mixed, Filler::Zero)?;
        add("mlp.gate_proj", &axes.inner, &axes.residual, Filler::Random)?;
        add("mlp.up_proj", &axes.inner, &axes.residual, Filler::Random)?;
        add("mlp.down_proj", &axes.residual, &axes.inner, Filler::Zero)?;
        let query = plans.len() - 7;
        plans[query].factor = scale as f32;
        if scale.log2().fract() != 0.0 {
            // Sixteen bits would round every weight of the query projection.
            plans[query].dtype = Dtype::F32;
        }
        plans.push(norm(&name("input_layernorm"), &source("input_layernorm"))?);
        plans.push(norm(&name("post_attention_layernorm"), &source("post_attention_layernorm"))?);
    }
    plans.push(norm(FINAL_NORM, FINAL_NORM)?);
    if !old.tie_word_embeddings {
        plans.push(plan(HEAD, HEAD, &vocabulary, &axes.residual, Filler::Random)?);
    }
    Ok(plans)
}

impl Plan<'_> {
    /// Elements in all.
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The type as a header names it.
    pub(super) fn stored(&self) -> Stored {
        match self.dtype {
            Dtype::F32 => Stored::F32,
            Dtype::F16 => Stored::F16,
            Dtype::Bf16 => Stored::BF16,
        }
    }

    /// Calls `take` with the bytes of every row.
    ///
    /// # Errors
    /// Those of `take`.
    pub(super) fn rows(
        &self,
        checkpoint: &Checkpoint<'_>,
        seed: u64,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let source = checkpoint.matrix(&self.source)?;
        let (values, wide) = (widen(&source), source.inputs);
        let largest: Vec<f32> =
            values.chunks_exact(wide).map(|row| row.iter().fold(0.0, |most: f32, x| most.max(x.abs()))).collect();
        let mut random = Random::new(seed, &self.name);
        let (mut row, mut bytes) = (vec![0.0; self.columns.len()], Vec::new());
        for (at, from) in self.rows.iter().enumerate() {
            let old = from.filter(|_| self.old);
            let most = largest[from.unwrap_or(at) % largest.len()] * self.factor;
            for (column, (value, old_column)) in row.iter_mut().zip(self.columns).enumerate() {
                *value = match (old, old_column, self.filler) {
                    (Some(row), Some(column), _) => values[row * wide + column] * self.factor,
                    (_, _, Filler::Zero) | (None, _, Filler::Columns) => 0.0,
                    (_, _, Filler::Random | Filler::Columns) => random.next(most),
                    (_, _, Filler::Again) => values[column % wide] * self.factor,
                };
            }
            bytes.clear();
            narrow(&row, self.dtype, &mut bytes);
            take(&bytes)?;
        }
        Ok(())
    }
}

/// The bytes of numbers in an element type, rounded to nearest even.
fn narrow(values: &[f32], dtype: Dtype, to: &mut Vec<u8>) {
    match dtype {
        Dtype::F32 => values.iter().for_each(|x| to.extend(x.to_le_bytes())),
        Dtype::F16 => values.iter().for_each(|x| to.extend(half::f16::from_f32(*x).to_le_bytes())),
        Dtype::Bf16 => values.iter().for_each(|x| to.extend(half::bf16::from_f32(*x).to_le_bytes())),
    }
}

/// Numbers that depend on the seed, the tensor's name and their place alone: SplitMix64 of Steele, Lea and Flood (2014).
struct Random {
    state: u64,
}

impl Random {
    fn new(seed: u64, name: &str) -> Random {
        // FNV-1a of the name.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Random { state: hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    /// From `most / 16` to `most` in size, of either sign.
    fn next(&mut self, most: f32) -> f32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let z = z ^ (z >> 31);
        let size = (1.0 + 15.0 * (z >> 40) as f32 / (1u64 << 24) as f32) / 16.0;
        if z & 1 == 0 { most * size } else { -most * size }
    }
}

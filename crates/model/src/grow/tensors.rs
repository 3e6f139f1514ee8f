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

/// What the plans follow from.
pub(super) struct Planner<'a> {
    pub(super) old: &'a Config,
    pub(super) new: &'a Shape,
    pub(super) axes: &'a Axes,
    pub(super) checkpoint: &'a Checkpoint<'a>,
}

impl<'a> Planner<'a> {
    /// Every tensor of the enlarged model.
    ///
    /// # Errors
    /// When the checkpoint lacks one.
    pub(super) fn plans(&self) -> Result<Vec<Plan<'a>>> {
        let (old, residual) = (self.old, &self.axes.residual);
        let vocabulary: Axis = (0..old.vocab_size).map(Some).collect();
        let mut plans = vec![self.plan(EMBEDDING, EMBEDDING, (&vocabulary, residual), Filler::Zero)?];
        for layer in 0..self.new.layers {
            plans.extend(self.layer(layer)?);
        }
        plans.push(self.norm(FINAL_NORM, FINAL_NORM)?);
        if !old.tie_word_embeddings {
            plans.push(self.plan(HEAD, HEAD, (&vocabulary, residual), Filler::Random)?);
        }
        Ok(plans)
    }

    fn layer(&self, layer: usize) -> Result<Vec<Plan<'a>>> {
        let Axes { residual, inner, query, key, value, mixed } = self.axes;
        let from = layer % self.old.num_hidden_layers;
        let matrices = [
            ("self_attn.q_proj", (query, residual), Filler::Random),
            ("self_attn.k_proj", (key, residual), Filler::Columns),
            ("self_attn.v_proj", (value, residual), Filler::Random),
            ("self_attn.o_proj", (residual, mixed), Filler::Zero),
            ("mlp.gate_proj", (inner, residual), Filler::Random),
            ("mlp.up_proj", (inner, residual), Filler::Random),
            ("mlp.down_proj", (residual, inner), Filler::Zero),
        ];
        let mut plans = Vec::new();
        for (part, axes, filler) in matrices {
            let plan = self.plan(&in_layer(layer, part), &in_layer(from, part), axes, filler)?;
            plans.push(Plan { old: layer == from, ..plan });
        }
        // Scores are divided by the root of the new width.
        let scale = (self.new.head_dim as f64 / self.old.head_dim as f64).sqrt();
        plans[0].factor = scale as f32;
        if scale.log2().fract() != 0.0 {
            // Sixteen bits would round every weight of the query projection.
            plans[0].dtype = Dtype::F32;
        }
        for part in ["input_layernorm", "post_attention_layernorm"] {
            plans.push(self.norm(&in_layer(layer, part), &in_layer(from, part))?);
        }
        Ok(plans)
    }

    fn norm(&self, name: &str, source: &str) -> Result<Plan<'a>> {
        let factor = (self.old.hidden_size as f64 / self.new.hidden as f64).sqrt() as f32;
        let one = self.plan(name, source, (&vec![Some(0)], &self.axes.residual), Filler::Again)?;
        Ok(Plan { shape: vec![self.new.hidden], dtype: Dtype::F32, factor, ..one })
    }

    fn plan(&self, name: &str, source: &str, axes: (&Axis, &'a Axis), filler: Filler) -> Result<Plan<'a>> {
        let (rows, columns) = axes;
        Ok(Plan {
            name: name.to_string(),
            shape: vec![rows.len(), columns.len()],
            dtype: self.checkpoint.matrix(source)?.dtype,
            source: source.to_string(),
            rows: rows.clone(),
            columns,
            old: true,
            factor: 1.0,
            filler,
        })
    }
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

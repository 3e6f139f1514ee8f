//! E4M3 codes in panels, `[panel][input][lane]`, with their f32 scales apart: one for each output, or one for each block of
//! 128 outputs and 128 inputs of a part, as DeepSeek and Qwen store them.

use anyhow::Result;

use super::source::{Source, finite};
use crate::buffer::Buffer;
use crate::codec::{E4M3_MAX, e4m3_from_f32};
use crate::simd::E4m3;
use crate::team::Output;

/// Outputs, and inputs, that share a scale.
pub(crate) const BLOCK: usize = 128;

/// A packed fp8 matrix.
pub(crate) struct Fp8 {
    codes: Buffer,
    scales: Scales,
}

/// The scales of an fp8 matrix, times [`E4m3::SCALES`].
pub(crate) enum Scales {
    /// By output, panels filled up.
    Outputs(Vec<f32>),
    /// By block.
    Blocks(Blocks),
}

/// Scales of blocks. Each part begins with a block of its own.
pub(crate) struct Blocks {
    /// For each part its first output and its first row of blocks.
    parts: Vec<[usize; 2]>,
    /// Blocks along the outputs, and along the inputs.
    rows: usize,
    columns: usize,
    /// `[row][column]`
    scales: Vec<f32>,
}

impl Blocks {
    /// The row of blocks in which an output lies; one that only fills up a panel counts to the last part.
    fn row(&self, output: usize) -> usize {
        // Few parts are stacked, and the first begins at 0.
        let [first, row] = self.parts.iter().rev().find(|[first, _]| *first <= output).copied().unwrap_or_default();
        (row + (output - first) / BLOCK).min(self.rows - 1)
    }

    /// The scales of so many outputs in a row, at an input.
    pub(crate) fn scales_of<const MOST: usize>(&self, output: usize, outputs: usize, input: usize) -> [f32; MOST] {
        let (first, last) = (self.row(output), self.row(output + outputs - 1));
        if first == last {
            return [self.scales[first * self.columns + input / BLOCK]; MOST];
        }
        std::array::from_fn(|lane| self.scale(output + lane.min(outputs - 1), input))
    }

    /// The scale of an output at an input.
    pub(crate) fn scale(&self, output: usize, input: usize) -> f32 {
        self.scales[self.row(output) * self.columns + input / BLOCK]
    }
}

impl Fp8 {
    /// A scale for each output: its largest weight becomes the largest code.
    pub(super) fn by_channel(source: &Source<'_>, inputs: usize) -> Result<Fp8> {
        let mut scales = vec![0.0; source.padded()];
        let to = Output::new(scales.as_mut_ptr());
        let codes = pack(source, inputs, &|output, row| {
            let scale = largest(row) / E4M3_MAX;
            // SAFETY: each output is taken once.
            unsafe { to.get().add(output).write(scale * E4m3::SCALES) };
            vec![scale]
        })?;
        Ok(Fp8 { codes, scales: Scales::Outputs(scales) })
    }

    /// A scale for each block.
    pub(super) fn by_block(source: &Source<'_>, inputs: usize) -> Result<Fp8> {
        let mut blocks = Blocks { parts: Vec::new(), rows: 0, columns: inputs.div_ceil(BLOCK), scales: Vec::new() };
        let (mut output, mut row) = (0, vec![0.0; inputs]);
        for part in source.parts() {
            blocks.parts.push([output, blocks.rows]);
            for start in (0..part.outputs).step_by(BLOCK) {
                let mut most = vec![0.0; blocks.columns];
                for _ in start..(start + BLOCK).min(part.outputs) {
                    source.read(output, &mut row);
                    let widest = row.chunks(BLOCK).zip(&mut most);
                    widest.for_each(|(weights, most): (_, &mut f32)| *most = most.max(largest(weights)));
                    output += 1;
                }
                blocks.rows += 1;
                blocks.scales.extend(most.iter().map(|most| most / E4M3_MAX * E4m3::SCALES));
            }
        }
        let codes = pack(source, inputs, &|output, _| {
            (0..blocks.columns).map(|column| blocks.scale(output, column * BLOCK) / E4m3::SCALES).collect()
        })?;
        Ok(Fp8 { codes, scales: Scales::Blocks(blocks) })
    }

    pub(crate) fn bytes(&self) -> usize {
        let scales = match &self.scales {
            Scales::Outputs(scales) => scales,
            Scales::Blocks(blocks) => &blocks.scales,
        };
        self.codes.bytes() + size_of_val(scales.as_slice())
    }

    pub(crate) fn codes(&self) -> *const u8 {
        self.codes.start()
    }

    pub(crate) fn scales(&self) -> &Scales {
        &self.scales
    }
}

fn largest(weights: &[f32]) -> f32 {
    weights.iter().fold(0.0, |most, weight| most.max(weight.abs()))
}

/// Codes of all weights. `scales` gives those of an output: one, or one for each block of inputs.
fn pack(source: &Source<'_>, inputs: usize, scales: &(dyn Fn(usize, &[f32]) -> Vec<f32> + Sync)) -> Result<Buffer> {
    let panel = source.panel();
    let mut codes = Buffer::zeroed(source.padded() * inputs)?;
    let to = Output::new(codes.start_mut());
    source.each(&|output, row| {
        finite(row)?;
        let scales = scales(output, row);
        for (k, weight) in row.iter().enumerate() {
            let scale = scales[if scales.len() == 1 { 0 } else { k / BLOCK }];
            let code = if scale == 0.0 { 0 } else { e4m3_from_f32(weight / scale) };
            // SAFETY: the buffer holds whole panels, and an output's lane belongs to the part that has its panel.
            unsafe { to.get().add(output / panel * panel * inputs + k * panel + output % panel).write(code) };
        }
        Ok(())
    })?;
    Ok(codes)
}

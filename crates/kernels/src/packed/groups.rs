//! Codes of 4 or 8 bits with a scale for each group of inputs of an output, interleaved so that a product reads one stream:
//! `[panel][group]` of codes and then the scales of the panel's lanes.
//!
//! Codes come in quads, four consecutive inputs of a lane in 32 bits, which is what integer dot products take. Of 4-bit
//! codes the first half of the panel's lanes has the low nibbles of its bytes, the second half the high ones.

use anyhow::Result;
use specquant_core::{Quantizer, WeightFormat};

use super::source::{Source, finite};
use crate::buffer::Buffer;
use crate::quantize::{Codes, integers, microscaled};
use crate::team::Output;

/// The least scale of a matrix's largest weight: 64 steps of f16 there, so that rounding the scale costs less than rounding
/// the codes. Groups much smaller than the largest may lose more, for they matter less.
const LEAST_SCALE: f32 = 1.0 / 262_144.0;

/// A packed int8, int4 or mxfp4 matrix. int4 codes are stored with 8 added, so that they are never negative.
pub(crate) struct Groups {
    data: Buffer,
    layout: Layout,
}

/// How the groups of a panel lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Lanes of a panel.
    pub(crate) panel: usize,
    /// Inputs that share a scale, a multiple of 32.
    pub(crate) group: usize,
    /// Bits of a code.
    pub(crate) bits: usize,
    /// Bytes of a scale: an f16, or an E8M0 exponent.
    pub(crate) scale: usize,
}

impl Layout {
    pub(crate) fn of(format: WeightFormat, panel: usize) -> Layout {
        let (bits, scale) = match format {
            WeightFormat::Int8 | WeightFormat::Int8A8 => (8, 2),
            WeightFormat::Mxfp4 => (4, 1),
            _ => (4, 2),
        };
        Layout { panel, group: format.group().unwrap_or(32), bits, scale }
    }

    /// Bytes of the codes of a group in a panel.
    pub(crate) fn codes(self) -> usize {
        self.panel * self.group * self.bits / 8
    }

    /// Bytes of a group in a panel.
    pub(crate) fn unit(self) -> usize {
        self.codes() + self.panel * self.scale
    }

    /// The byte in a group that holds the code of an input, and how far it is shifted in it.
    pub(crate) fn code(self, input: usize, lane: usize) -> (usize, u32) {
        let (quad, at) = (input / 4, input % 4);
        if self.bits == 8 {
            return ((quad * self.panel + lane) * 4 + at, 0);
        }
        let half = self.panel / 2;
        ((quad * half + lane % half) * 4 + at, if lane < half { 0 } else { 4 })
    }
}

impl Groups {
    pub(super) fn new(source: &Source<'_>, inputs: usize, quantizer: Quantizer) -> Result<Groups> {
        let (format, layout) = (source.format(), Layout::of(source.format(), source.panel()));
        let Layout { panel, group, .. } = layout;
        let groups = inputs / group;
        let mut data = Buffer::zeroed(source.padded() / panel * groups * layout.unit())?;
        let to = Output::new(data.start_mut());
        let mut largest = vec![0f32; source.outputs()];
        let to_largest = Output::new(largest.as_mut_ptr());
        source.each(&|output, row| {
            finite(row)?;
            let most = row.iter().fold(0f32, |most, weight| most.max(weight.abs()));
            // SAFETY: each output is taken once.
            unsafe { to_largest.get().add(output).write(most) };
            let (mut codes, lane) = (vec![0; group], output % panel);
            for (g, weights) in row.chunks_exact(group).enumerate() {
                let scale = quantized(format, weights, quantizer, &mut codes)?;
                // SAFETY: the buffer holds all groups of all panels, and a panel's bytes belong to the part that has it.
                let unit = unsafe { to.get().add((output / panel * groups + g) * layout.unit()) };
                for (k, code) in codes.iter().enumerate() {
                    let (byte, shift) = layout.code(k, lane);
                    // SAFETY: `byte` lies in the group.
                    unsafe { *unit.add(byte) |= code << shift };
                }
                for (byte, value) in scale[..layout.scale].iter().enumerate() {
                    // SAFETY: as above; scales follow the codes.
                    unsafe { unit.add(layout.codes() + lane * layout.scale + byte).write(*value) };
                }
            }
            Ok(())
        })?;
        if format != WeightFormat::Mxfp4 {
            let codes = if layout.bits == 8 { 127.0 } else { 8.0 };
            source.refuse_smaller(&largest, LEAST_SCALE * codes)?;
        }
        Ok(Groups { data, layout })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.data.bytes()
    }

    pub(crate) fn start(&self) -> *const u8 {
        self.data.start()
    }

    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }
}

/// Writes the codes of a group as they are stored and returns the bytes of its scale; the weight of largest magnitude is the
/// error where the scale would become infinite.
fn quantized(format: WeightFormat, weights: &[f32], quantizer: Quantizer, codes: &mut [u8]) -> Result<[u8; 2], f32> {
    if format == WeightFormat::Mxfp4 {
        return Ok([microscaled(weights, quantizer, codes), 0]);
    }
    let wide = matches!(format, WeightFormat::Int8 | WeightFormat::Int8A8);
    let mut signed = vec![0; weights.len()];
    let scale = integers(weights, if wide { Codes::INT8 } else { Codes::INT4 }, quantizer, &mut signed);
    if !scale.is_finite() {
        return Err(weights.iter().fold(0.0, |most: f32, w| if w.abs() > most.abs() { *w } else { most }));
    }
    for (code, signed) in codes.iter_mut().zip(signed) {
        *code = if wide { signed as u8 } else { (signed + 8) as u8 };
    }
    Ok(scale.to_le_bytes())
}

//! Weight matrices in the layout that the product reads: panels of outputs, `[panel][input][lane]`.
//!
//! A panel is two vectors wide on the team's path, and K is sequential within it, so that the product streams memory
//! in order. The last panel is filled up with zero outputs, which `bytes` counts.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail, ensure};
use half::{bf16, f16};
use specquant_core::WeightFormat;

use crate::backend::{DenseMatrix, Dtype};
use crate::buffer::Buffer;
use crate::simd::Element;
use crate::team::{Output, Team};

/// A weight matrix, packed for one instruction-set path.
pub struct PackedMatrix {
    outputs: usize,
    inputs: usize,
    format: WeightFormat,
    panel: usize,
    data: Buffer,
}

impl PackedMatrix {
    /// Packs `parts`, stacked along the outputs.
    ///
    /// # Errors
    /// As for [`crate::Backend::pack`].
    pub fn new(parts: &[DenseMatrix<'_>], format: WeightFormat, team: &Team) -> Result<PackedMatrix> {
        let Some(first) = parts.first() else { bail!("a packed matrix needs at least one part") };
        for part in parts {
            let DenseMatrix { name, outputs, inputs, dtype, bytes } = *part;
            ensure!(outputs > 0 && inputs > 0, "`{name}` is empty: [{outputs}, {inputs}]");
            ensure!(
                inputs == first.inputs,
                "`{name}` has {inputs} inputs and cannot be stacked on `{}` with {}",
                first.name,
                first.inputs
            );
            let expected = outputs * inputs * dtype.bytes();
            ensure!(
                bytes.len() == expected,
                "`{name}` [{outputs}, {inputs}] needs {expected} bytes as {dtype:?} and has {}",
                bytes.len()
            );
        }
        let (outputs, inputs) = (parts.iter().map(|part| part.outputs).sum::<usize>(), first.inputs);
        let panel = team.isa().panel();
        let elements = outputs.div_ceil(panel) * panel * inputs;
        let bytes = elements * if format == WeightFormat::F32 { 4 } else { 2 };
        let mut packed = PackedMatrix { outputs, inputs, format, panel, data: Buffer::zeroed(bytes)? };
        match format {
            WeightFormat::F32 => packed.fill::<f32>(parts, team),
            WeightFormat::F16 => packed.fill::<f16>(parts, team),
            WeightFormat::Bf16 => packed.fill::<bf16>(parts, team),
        }?;
        Ok(packed)
    }

    /// Width of the product's result.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Width of what is multiplied.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// How the weights are stored.
    pub fn format(&self) -> WeightFormat {
        self.format
    }

    /// Resident bytes, padding included.
    pub fn bytes(&self) -> usize {
        self.data.bytes()
    }

    /// Of those, the bytes of the outputs that only fill up the last panel.
    pub fn padding(&self) -> usize {
        let padded = self.outputs.div_ceil(self.panel) * self.panel;
        self.bytes() / padded * (padded - self.outputs)
    }

    /// Outputs of one panel.
    pub(crate) fn panel(&self) -> usize {
        self.panel
    }

    /// The first element; `E` is the format's element type.
    pub(crate) fn elements<E: Element>(&self) -> *const E {
        self.data.start().cast()
    }

    /// Writes every part, one output at a time, or reports the first weight that the format cannot hold.
    fn fill<E: Element>(&mut self, parts: &[DenseMatrix<'_>], team: &Team) -> Result<()> {
        let (inputs, panel, outputs, format) = (self.inputs, self.panel, self.outputs, self.format);
        let rows: Vec<(&DenseMatrix<'_>, usize)> =
            parts.iter().flat_map(|part| (0..part.outputs).map(move |row| (part, row))).collect();
        let out = Output::new(self.data.start_mut().cast::<E>());
        let lost: Mutex<Option<(usize, f32)>> = Mutex::new(None);
        team.split(outputs.div_ceil(panel), panel * inputs, &|panels| {
            for output in panels.start * panel..(panels.end * panel).min(outputs) {
                let (part, row) = rows[output];
                // SAFETY: the buffer holds whole panels of `E`, and the elements of an output's lane belong to the
                // part that has its panel.
                let lane = unsafe { out.get().add(output / panel * panel * inputs + output % panel) };
                let place = |k: usize, x: E| {
                    // SAFETY: `k < inputs` stays within the panel.
                    unsafe { lane.add(k * panel).write(x) }
                };
                let bytes = &part.bytes[row * inputs * part.dtype.bytes()..][..inputs * part.dtype.bytes()];
                let overflow = match part.dtype {
                    Dtype::F32 => convert::<f32, E>(bytes, place),
                    Dtype::F16 => convert::<f16, E>(bytes, place),
                    Dtype::Bf16 => convert::<bf16, E>(bytes, place),
                };
                if let Some(value) = overflow {
                    let mut lost = lost.lock().unwrap_or_else(PoisonError::into_inner);
                    if lost.is_none_or(|(earliest, _)| output < earliest) {
                        *lost = Some((output, value));
                    }
                }
            }
        });
        if let Some((output, value)) = lost.into_inner().unwrap_or_else(PoisonError::into_inner) {
            bail!(
                "`{}` holds {value:e}, which {format} cannot (it would become infinite): choose {} weights",
                rows[output].0.name,
                if format == WeightFormat::F16 { "bf16 or f32" } else { "f32" }
            );
        }
        Ok(())
    }
}

/// Converts one output's weights in order; returns a finite one that became infinite, if any.
fn convert<A: Element, B: Element>(bytes: &[u8], place: impl Fn(usize, B)) -> Option<f32> {
    let mut overflow = None;
    for (k, element) in bytes.chunks_exact(size_of::<A>()).enumerate() {
        let value = A::read(element).widen();
        let narrow = B::narrow(value);
        if value.is_finite() && !narrow.widen().is_finite() {
            overflow = Some(value);
        }
        place(k, narrow);
    }
    overflow
}

impl fmt::Debug for PackedMatrix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PackedMatrix([{}, {}], {})", self.outputs, self.inputs, self.format)
    }
}

//! The stored weights of a matrix, one output's row at a time, read by the whole team.

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, bail};
use half::{bf16, f16};
use specquant_core::WeightFormat;

use crate::backend::{DenseMatrix, Dtype};
use crate::simd::Element;
use crate::team::Team;

/// What is done with an output and its weights. The error is a weight that the format cannot hold.
type Take<'a> = dyn Fn(usize, &[f32]) -> Result<(), f32> + Sync + 'a;

/// Parts that are stacked along the outputs, and what they are to become.
pub(crate) struct Source<'a> {
    parts: &'a [DenseMatrix<'a>],
    /// The part and the row in it, by output.
    rows: Vec<(usize, usize)>,
    format: WeightFormat,
    panel: usize,
    team: &'a Team,
}

impl<'a> Source<'a> {
    pub(crate) fn new(parts: &'a [DenseMatrix<'a>], format: WeightFormat, panel: usize, team: &'a Team) -> Source<'a> {
        let rows =
            (0..).zip(parts).flat_map(|(part, matrix)| (0..matrix.outputs).map(move |row| (part, row))).collect();
        Source { parts, rows, format, panel, team }
    }

    pub(crate) fn parts(&self) -> &'a [DenseMatrix<'a>] {
        self.parts
    }

    pub(crate) fn outputs(&self) -> usize {
        self.rows.len()
    }

    /// Outputs in whole panels.
    pub(crate) fn padded(&self) -> usize {
        self.rows.len().next_multiple_of(self.panel)
    }

    pub(crate) fn panel(&self) -> usize {
        self.panel
    }

    pub(crate) fn format(&self) -> WeightFormat {
        self.format
    }

    /// Calls `take` with every output and its weights, panels on different threads. `take` returns a weight that the
    /// format cannot hold, if there is one.
    ///
    /// # Errors
    /// For the first output with such a weight; the message names its tensor.
    pub(crate) fn each(&self, take: &Take<'_>) -> Result<()> {
        let (outputs, inputs) = (self.outputs(), self.parts[0].inputs);
        let lost: Mutex<Option<(usize, f32)>> = Mutex::new(None);
        self.team.split(outputs.div_ceil(self.panel), self.panel * inputs, &|panels| {
            let mut row = vec![0.0; inputs];
            for output in panels.start * self.panel..(panels.end * self.panel).min(outputs) {
                self.read(output, &mut row);
                if let Err(value) = take(output, &row) {
                    let mut lost = lost.lock().unwrap_or_else(PoisonError::into_inner);
                    if lost.is_none_or(|(earliest, _)| output < earliest) {
                        *lost = Some((output, value));
                    }
                }
            }
        });
        match lost.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some((output, value)) => self.refuse(&self.parts[self.rows[output].0], value),
        }
    }

    /// The weights of an output, widened.
    pub(crate) fn read(&self, output: usize, to: &mut [f32]) {
        fn widen<E: Element>(bytes: &[u8], to: &mut [f32]) {
            for (to, element) in to.iter_mut().zip(bytes.chunks_exact(size_of::<E>())) {
                *to = E::read(element).widen();
            }
        }
        let (part, row) = self.rows[output];
        let DenseMatrix { inputs, dtype, bytes, .. } = self.parts[part];
        let bytes = &bytes[row * inputs * dtype.bytes()..][..inputs * dtype.bytes()];
        match dtype {
            Dtype::F32 => widen::<f32>(bytes, to),
            Dtype::F16 => widen::<f16>(bytes, to),
            Dtype::Bf16 => widen::<bf16>(bytes, to),
        }
    }

    /// Refuses a part whose weights are not all zero and all smaller than `least`, given the largest of each output.
    pub(crate) fn refuse_smaller(&self, largest: &[f32], least: f32) -> Result<()> {
        for (at, part) in self.parts.iter().enumerate() {
            let mine = self.rows.iter().zip(largest).filter(|((of, _), _)| *of == at);
            let most = mine.fold(0f32, |most, (_, largest)| most.max(*largest));
            if most > 0.0 && most < least {
                let (name, format) = (part.name, self.format);
                bail!(
                    "`{name}` holds nothing larger than {most:e}, too small for the f16 scales of {format}: choose \
                     fp8:channel, bf16 or f32 weights"
                );
            }
        }
        Ok(())
    }

    fn refuse(&self, part: &DenseMatrix<'_>, value: f32) -> Result<()> {
        let (name, format) = (part.name, self.format);
        if !value.is_finite() {
            bail!("`{name}` holds {value}, which is no weight: the checkpoint is damaged; copy or download it again");
        }
        let remedy = match format {
            WeightFormat::F32 | WeightFormat::Bf16 => "f32",
            WeightFormat::F16 => "bf16 or f32",
            _ => "fp8:channel, bf16 or f32",
        };
        bail!("`{name}` holds {value:e}, which {format} cannot (it would become infinite): choose {remedy} weights")
    }
}

/// The first weight that is not a number or infinite, as an error.
pub(crate) fn finite(row: &[f32]) -> Result<(), f32> {
    row.iter().find(|weight| !weight.is_finite()).map_or(Ok(()), |weight| Err(*weight))
}

//! Weight matrices in the layouts that the products read: panels of outputs, two vectors wide on the team's path, so that
//! the product streams memory in order. The last panel is filled up with zero outputs, which `bytes` counts.
//!
//! Every format is packed from the checkpoint's floats; what stays in memory is codes and scales, nothing wider.

mod fp8;
mod groups;
mod source;

use std::fmt;

use anyhow::{Result, bail, ensure};
use half::{bf16, f16};
use specquant_core::{Quantizer, WeightFormat};

use crate::backend::DenseMatrix;
use crate::buffer::Buffer;
use crate::simd::Element;
use crate::team::{Output, Team};

pub(crate) use fp8::{BLOCK, Blocks, Fp8, Scales as Fp8Scales};
pub(crate) use groups::{Groups, Layout};
use source::Source;

/// A weight matrix, packed for one instruction-set path.
pub struct PackedMatrix {
    outputs: usize,
    inputs: usize,
    format: WeightFormat,
    panel: usize,
    /// Bytes of codes and scales without padding.
    exact: u64,
    weights: Weights,
}

/// The packed weights, by how they are laid out.
pub(crate) enum Weights {
    /// f32, f16 or bf16: `[panel][input][lane]`.
    Float(Buffer),
    /// E4M3.
    Fp8(Fp8),
    /// int8, int4 and mxfp4.
    Groups(Groups),
}

impl PackedMatrix {
    /// Packs `parts`, stacked along the outputs.
    ///
    /// # Errors
    /// As for [`crate::Backend::pack`].
    pub fn new(
        parts: &[DenseMatrix<'_>],
        format: WeightFormat,
        quantizer: Quantizer,
        team: &Team,
    ) -> Result<PackedMatrix> {
        let inputs = checked(parts, format)?;
        let panel = team.isa().panel();
        let source = Source::new(parts, format, panel, team);
        let weights = match format {
            WeightFormat::F32 => Weights::Float(floats::<f32>(&source, inputs)?),
            WeightFormat::F16 => Weights::Float(floats::<f16>(&source, inputs)?),
            WeightFormat::Bf16 => Weights::Float(floats::<bf16>(&source, inputs)?),
            WeightFormat::Fp8Channel => Weights::Fp8(Fp8::by_channel(&source, inputs)?),
            WeightFormat::Fp8Block => Weights::Fp8(Fp8::by_block(&source, inputs)?),
            WeightFormat::Int8
            | WeightFormat::Int4 { .. }
            | WeightFormat::Mxfp4
            | WeightFormat::Int8A8
            | WeightFormat::Int4A8 => Weights::Groups(Groups::new(&source, inputs, quantizer)?),
        };
        let exact = parts.iter().map(|part| format.bytes(part.outputs, inputs)).sum();
        Ok(PackedMatrix { outputs: source.outputs(), inputs, format, panel, exact, weights })
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
        match &self.weights {
            Weights::Float(buffer) => buffer.bytes(),
            Weights::Fp8(fp8) => fp8.bytes(),
            Weights::Groups(groups) => groups.bytes(),
        }
    }

    /// Of those, the bytes that the format does not ask for: outputs that only fill up the last panel.
    pub fn padding(&self) -> usize {
        self.bytes() - self.exact as usize
    }

    /// Outputs of one panel.
    pub(crate) fn panel(&self) -> usize {
        self.panel
    }

    /// The weights as they are laid out.
    pub(crate) fn weights(&self) -> &Weights {
        &self.weights
    }
}

/// The inputs of all parts, if the parts fit together and can have the format.
fn checked(parts: &[DenseMatrix<'_>], format: WeightFormat) -> Result<usize> {
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
        if let Some(group) = format.group() {
            let smaller = if group > 32 && inputs.is_multiple_of(32) { "int4:g32" } else { "fp8:channel or f16" };
            ensure!(
                inputs.is_multiple_of(group),
                "`{name}` has {inputs} inputs, which the groups of {group} of {format} do not divide: choose {smaller}"
            );
        }
    }
    Ok(first.inputs)
}

/// Every weight as an `E`, in panels.
fn floats<E: Element>(source: &Source<'_>, inputs: usize) -> Result<Buffer> {
    let panel = source.panel();
    let mut data = Buffer::zeroed(source.padded() * inputs * size_of::<E>())?;
    let out = Output::new(data.start_mut().cast::<E>());
    source.each(&|output, row| {
        // SAFETY: the buffer holds whole panels of `E`, and an output's lane belongs to the part that has its panel.
        let lane = unsafe { out.get().add(output / panel * panel * inputs + output % panel) };
        let mut lost = None;
        for (k, value) in row.iter().enumerate() {
            let narrow = E::narrow(*value);
            if !narrow.widen().is_finite() {
                lost = lost.or(Some(*value));
            }
            // SAFETY: `k < inputs` stays within the panel.
            unsafe { lane.add(k * panel).write(narrow) }
        }
        lost.map_or(Ok(()), Err)
    })?;
    Ok(data)
}

impl fmt::Debug for PackedMatrix {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PackedMatrix([{}, {}], {})", self.outputs, self.inputs, self.format)
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};
    use specquant_core::{Quantizer, WeightFormat};

    use super::PackedMatrix;
    use crate::testing::{bits, numbers, quantized, teams, unpacked};
    use crate::{DenseMatrix, Dtype, Isa, Team};

    fn stored(values: &[f32], dtype: Dtype) -> Vec<u8> {
        let store = |x: &f32| match dtype {
            Dtype::F32 => x.to_le_bytes().to_vec(),
            Dtype::F16 => f16::from_f32(*x).to_le_bytes().to_vec(),
            Dtype::Bf16 => bf16::from_f32(*x).to_le_bytes().to_vec(),
        };
        values.iter().flat_map(store).collect()
    }

    /// What packing `value`, among others, says.
    fn refusal(value: f32, dtype: Dtype, format: WeightFormat) -> Result<(), String> {
        let mut values = numbers(1, 40 * 3);
        values[50] = value;
        let bytes = stored(&values, dtype);
        let whole = DenseMatrix { name: "fits", outputs: 20, inputs: 3, dtype: Dtype::F32, bytes: &[0; 240] };
        let matrix = DenseMatrix { name: "layers.3.up", outputs: 40, inputs: 3, dtype, bytes: &bytes };
        let team = Team::new(2, Isa::Scalar).unwrap();
        PackedMatrix::new(&[whole, matrix], format, Quantizer::Mse, &team)
            .map(|_| ())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_stored_format_is_lossless_at_any_alignment_and_others_round_to_nearest_even() {
        let (outputs, inputs) = (19, 11);
        let mut values = numbers(4, outputs * inputs);
        // Half way between two f16, an f16 subnormal, and signed zero.
        values[..4].copy_from_slice(&[1.0 + 1.0 / 2048.0, 3e-7, -0.0, 60000.0]);
        for team in teams(&[1, 2]) {
            for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
                let mut bytes = vec![0];
                bytes.extend(stored(&values, dtype));
                let matrix = DenseMatrix { name: "w", outputs, inputs, dtype, bytes: &bytes[1..] };
                let as_stored = |x: &f32| match dtype {
                    Dtype::F32 => *x,
                    Dtype::F16 => f16::from_f32(*x).to_f32(),
                    Dtype::Bf16 => bf16::from_f32(*x).to_f32(),
                };
                for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16] {
                    let expected: Vec<f32> = values
                        .iter()
                        .map(|x| match format {
                            WeightFormat::F32 => as_stored(x),
                            WeightFormat::F16 => f16::from_f32(as_stored(x)).to_f32(),
                            _ => bf16::from_f32(as_stored(x)).to_f32(),
                        })
                        .collect();
                    let w = PackedMatrix::new(&[matrix], format, Quantizer::Mse, &team).unwrap();
                    assert_eq!(bits(&unpacked(&w)), bits(&expected), "{team:?} {dtype:?} as {format}");
                }
            }
        }
    }

    #[test]
    fn a_weight_that_would_become_infinite_is_refused_by_name() {
        let check = |value, dtype, format, expected: Result<(), &str>| {
            assert_eq!(refusal(value, dtype, format), expected.map_err(str::to_owned), "{value} as {format}");
        };
        check(65504.0, Dtype::F32, WeightFormat::F16, Ok(()));
        check(65519.9, Dtype::F32, WeightFormat::F16, Ok(()));
        check(
            65520.0,
            Dtype::F32,
            WeightFormat::F16,
            Err("`layers.3.up` holds 6.552e4, which f16 cannot (it would become infinite): choose bf16 or f32 weights"),
        );
        check(
            -1e30,
            Dtype::Bf16,
            WeightFormat::F16,
            Err(
                "`layers.3.up` holds -1.00025555e30, which f16 cannot (it would become infinite): choose bf16 or f32 weights",
            ),
        );
        check(-1e30, Dtype::Bf16, WeightFormat::F32, Ok(()));
        check(
            f32::MAX,
            Dtype::F32,
            WeightFormat::Bf16,
            Err("`layers.3.up` holds 3.4028235e38, which bf16 cannot (it would become infinite): choose f32 weights"),
        );
        for (value, said) in [(f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf"), (f32::NAN, "NaN")] {
            let expected = format!(
                "`layers.3.up` holds {said}, which is no weight: the checkpoint is damaged; copy or download it again"
            );
            for format in WeightFormat::ALL.into_iter().filter(|format| !format.is_quantized()) {
                check(value, Dtype::F32, format, Err(&expected));
            }
        }
    }

    #[test]
    fn parts_that_do_not_fit_are_refused_by_name() {
        let team = Team::new(1, Isa::Scalar).unwrap();
        let part = |name, outputs, inputs, bytes| DenseMatrix { name, outputs, inputs, dtype: Dtype::F32, bytes };
        let check = |parts: &[DenseMatrix<'_>], expected: &str| {
            let error = PackedMatrix::new(parts, WeightFormat::F32, Quantizer::Mse, &team).unwrap_err().to_string();
            assert_eq!(error, expected);
        };
        check(&[], "a packed matrix needs at least one part");
        check(&[part("q", 2, 0, &[])], "`q` is empty: [2, 0]");
        check(&[part("q", 2, 3, &[0; 20])], "`q` [2, 3] needs 24 bytes as F32 and has 20");
        check(
            &[part("q", 1, 3, &[0; 12]), part("k", 1, 2, &[0; 8])],
            "`k` has 2 inputs and cannot be stacked on `q` with 3",
        );
    }

    #[test]
    fn every_format_holds_what_its_definition_makes_of_the_weights() {
        for team in teams(&[1, 3]) {
            for format in WeightFormat::ALL {
                for quantizer in [Quantizer::Mse, Quantizer::Rtn] {
                    // Parts that end inside a panel and a block, and inputs that end inside a block.
                    let (inputs, outputs) = (if format.group() == Some(128) { 256 } else { 192 }, [150, 21]);
                    let parts = [numbers(1, outputs[0] * inputs), numbers(2, outputs[1] * inputs)];
                    let bytes = parts.each_ref().map(|part| stored(part, Dtype::F32));
                    let matrix = |at: usize| DenseMatrix {
                        name: "w",
                        outputs: outputs[at],
                        inputs,
                        dtype: Dtype::F32,
                        bytes: &bytes[at],
                    };
                    let w = PackedMatrix::new(&[matrix(0), matrix(1)], format, quantizer, &team).unwrap();
                    let definition = |at: usize| quantized(&parts[at], inputs, format, quantizer).weights(inputs);
                    let expected = [definition(0), definition(1)].concat();
                    assert_eq!(bits(&unpacked(&w)), bits(&expected), "{team:?} {format} {quantizer}");
                }
            }
        }
    }

    #[test]
    fn what_a_format_cannot_hold_is_refused_with_a_remedy() {
        let check = |inputs: usize, value: f32, format: &str, expected: &str| {
            let mut values = numbers(1, 3 * inputs);
            values[inputs + 5] = value;
            let bytes = stored(&values, Dtype::F32);
            let matrix = DenseMatrix { name: "down", outputs: 3, inputs, dtype: Dtype::F32, bytes: &bytes };
            let team = Team::new(2, Isa::Scalar).unwrap();
            let got = PackedMatrix::new(&[matrix], format.parse().unwrap(), Quantizer::Mse, &team);
            assert_eq!(got.unwrap_err().to_string(), expected);
        };
        let divide = |inputs, group, format, remedy| {
            format!(
                "`down` has {inputs} inputs, which the groups of {group} of {format} do not divide: choose {remedy}"
            )
        };
        check(96, 1.0, "int4:g128", &divide(96, 128, "int4:g128", "int4:g32"));
        check(48, 1.0, "int4:g64", &divide(48, 64, "int4:g64", "fp8:channel or f16"));
        check(48, 1.0, "mxfp4", &divide(48, 32, "mxfp4", "fp8:channel or f16"));
        check(48, 1.0, "int8-a8:g32", &divide(48, 32, "int8-a8:g32", "fp8:channel or f16"));
        let damaged = |value| {
            format!("`down` holds {value}, which is no weight: the checkpoint is damaged; copy or download it again")
        };
        for format in ["fp8:channel", "fp8:128x128", "int8:g32", "int4:g128", "mxfp4", "int4-a8:g32"] {
            check(256, f32::NAN, format, &damaged("NaN"));
            check(256, f32::NEG_INFINITY, format, &damaged("-inf"));
        }
        let wide = "`down` holds 1e7, which int4:g32 cannot (it would become infinite): choose fp8:channel, bf16 or f32 weights";
        check(256, 1e7, "int4:g32", wide);
    }

    #[test]
    fn weights_too_small_for_f16_scales_are_refused_and_zeros_are_not() {
        let team = Team::new(2, Isa::Scalar).unwrap();
        let pack = |factor: f32, format: &str| {
            let values: Vec<f32> = numbers(1, 20 * 64).iter().map(|x| x * factor).collect();
            let (bytes, most) = (stored(&values, Dtype::F32), values.iter().fold(0f32, |most, x| most.max(x.abs())));
            let matrix = DenseMatrix { name: "up", outputs: 20, inputs: 64, dtype: Dtype::F32, bytes: &bytes };
            let got = PackedMatrix::new(&[matrix], format.parse().unwrap(), Quantizer::Mse, &team);
            (got.map(|_| ()).map_err(|error| error.to_string()), most)
        };
        for format in ["int4:g32", "int8:g32", "int4-a8:g32", "int8-a8:g32", "mxfp4", "fp8:channel"] {
            for factor in [0.0, 2e-3, 1.0] {
                assert_eq!(pack(factor, format).0, Ok(()), "{format} x {factor}");
            }
            let (got, most) = pack(1e-7, format);
            let expected = format!(
                "`up` holds nothing larger than {most:e}, too small for the f16 scales of {format}: choose fp8:channel, \
                 bf16 or f32 weights"
            );
            let has_f16_scales = format.starts_with("int");
            assert_eq!(got, if has_f16_scales { Err(expected) } else { Ok(()) }, "{format}");
        }
    }

    #[test]
    fn bytes_are_the_formats_bits_and_less_than_a_panel_of_padding() {
        for team in teams(&[1]) {
            for format in WeightFormat::ALL {
                let part = |outputs, bytes| DenseMatrix { name: "w", outputs, inputs: 128, dtype: Dtype::F16, bytes };
                let (a, b) = (vec![0; 2 * 128 * 70], vec![0; 2 * 128 * 3]);
                let w = PackedMatrix::new(&[part(70, &a), part(3, &b)], format, Quantizer::Mse, &team).unwrap();
                let exact = format.bytes(70, 128) + format.bytes(3, 128);
                assert_eq!((w.bytes() - w.padding()) as u64, exact, "{team:?} {format}");
                assert!((w.padding() as u64) < format.bytes(team.isa().panel(), 128), "{format}");
            }
        }
    }
}

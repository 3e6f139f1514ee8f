//! The axes of a run that have a short text form, such as `int4:g32`, `draft:4` or `paged:16`.
//!
//! Every form parses and prints without loss: `parse(x.to_string()) == x`.

mod serving;

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use serving::{Batching, Kv, Reserve};

/// How the matrices are stored while the model runs. Norms and embeddings stay as they are in the checkpoint.
///
/// Activations are f32, but for the two `-a8` formats, which round them to int8 in groups of 32 and so have other results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightFormat {
    /// `f32`: 32-bit IEEE float.
    F32,
    /// `f16`: 16-bit IEEE float.
    F16,
    /// `bf16`: the upper half of an f32.
    Bf16,
    /// `fp8:channel`: E4M3 with an f32 scale for each output.
    Fp8Channel,
    /// `fp8:128x128`: E4M3 with an f32 scale for each block of 128 outputs and 128 inputs.
    Fp8Block,
    /// `int8:g32`: -127..=127 with an f16 scale for each 32 inputs of an output.
    Int8,
    /// `int4:g32`, `int4:g64`, `int4:g128`: -8..=7 with an f16 scale for each group of inputs of an output.
    Int4 {
        /// Inputs in a group.
        group: usize,
    },
    /// `mxfp4`: E2M1 with a power of two for each 32 inputs of an output, as in the OCP Microscaling specification.
    Mxfp4,
    /// `int8-a8:g32`: weights as `int8:g32`, activations rounded to int8.
    Int8A8,
    /// `int4-a8:g32`: weights as `int4:g32`, activations rounded to int8.
    Int4A8,
}

/// How float weights become integers or small floats: `mse` or `rtn`. Both are deterministic and need no data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Quantizer {
    /// `mse`: the scale of each group is searched for the least squared error.
    #[default]
    Mse,
    /// `rtn`: round to nearest, the weight of largest magnitude at the end of the codes' range.
    Rtn,
}

/// How keys and values are stored in the KV cache: `f32` or `f16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KvDtype {
    /// 32-bit IEEE float, 4 bytes.
    F32,
    /// 16-bit IEEE float, 2 bytes.
    F16,
}

/// Where draft tokens come from: `off`, or `draft:K` for K tokens a step from the draft model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Speculation {
    /// No draft: every step yields one token.
    Off,
    /// The draft model proposes `k` tokens a step.
    Draft {
        /// Tokens proposed in one step, 1..=64.
        k: usize,
    },
}

impl KvDtype {
    /// Bytes of one stored element.
    pub fn bytes(self) -> usize {
        match self {
            KvDtype::F32 => 4,
            KvDtype::F16 => 2,
        }
    }
}

impl WeightFormat {
    /// Every format.
    pub const ALL: [WeightFormat; 12] = [
        WeightFormat::F32,
        WeightFormat::F16,
        WeightFormat::Bf16,
        WeightFormat::Fp8Channel,
        WeightFormat::Fp8Block,
        WeightFormat::Int8,
        WeightFormat::Int4 { group: 32 },
        WeightFormat::Int4 { group: 64 },
        WeightFormat::Int4 { group: 128 },
        WeightFormat::Mxfp4,
        WeightFormat::Int8A8,
        WeightFormat::Int4A8,
    ];

    /// Bytes of a matrix, codes and scales, without padding.
    pub fn bytes(self, outputs: usize, inputs: usize) -> u64 {
        let (elements, outputs_wide) = ((outputs * inputs) as u64, outputs as u64);
        let groups = self.group().map_or(0, |group| elements / group as u64);
        match self {
            WeightFormat::F32 => 4 * elements,
            WeightFormat::F16 | WeightFormat::Bf16 => 2 * elements,
            WeightFormat::Fp8Channel => elements + 4 * outputs_wide,
            WeightFormat::Fp8Block => elements + 4 * (outputs.div_ceil(128) * inputs.div_ceil(128)) as u64,
            WeightFormat::Int8 | WeightFormat::Int8A8 => elements + 2 * groups,
            WeightFormat::Int4 { .. } | WeightFormat::Int4A8 => elements / 2 + 2 * groups,
            WeightFormat::Mxfp4 => elements / 2 + groups,
        }
    }

    /// Consecutive inputs of an output that share a scale, where there are such groups; they must divide the inputs.
    pub fn group(self) -> Option<usize> {
        match self {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 => None,
            WeightFormat::Fp8Channel | WeightFormat::Fp8Block => None,
            WeightFormat::Int8 | WeightFormat::Mxfp4 | WeightFormat::Int8A8 | WeightFormat::Int4A8 => Some(32),
            WeightFormat::Int4 { group } => Some(group),
        }
    }

    /// Whether weights are rounded to fewer than 16 bits.
    pub fn is_quantized(self) -> bool {
        !matches!(self, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16)
    }

    /// The KV dtype that goes with these weights unless the spec names another.
    pub fn default_kv_dtype(self) -> KvDtype {
        if self == WeightFormat::F32 { KvDtype::F32 } else { KvDtype::F16 }
    }
}

impl Speculation {
    /// Draft tokens asked for in one step.
    pub fn depth(self) -> usize {
        match self {
            Speculation::Off => 0,
            Speculation::Draft { k } => k,
        }
    }
}

impl FromStr for WeightFormat {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "f32" => WeightFormat::F32,
            "f16" => WeightFormat::F16,
            "bf16" => WeightFormat::Bf16,
            "fp8" | "fp8:channel" => WeightFormat::Fp8Channel,
            "fp8:128x128" => WeightFormat::Fp8Block,
            "int8" | "int8:g32" => WeightFormat::Int8,
            "int4" | "int4:g32" => WeightFormat::Int4 { group: 32 },
            "int4:g64" => WeightFormat::Int4 { group: 64 },
            "int4:g128" => WeightFormat::Int4 { group: 128 },
            "mxfp4" => WeightFormat::Mxfp4,
            "int8-a8" | "int8-a8:g32" => WeightFormat::Int8A8,
            "int4-a8" | "int4-a8:g32" => WeightFormat::Int4A8,
            _ => {
                let known = WeightFormat::ALL.map(|format| format.to_string());
                bail!("unknown weight format `{text}`: use one of {}", known.join(", "))
            }
        })
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            WeightFormat::F32 => "f32",
            WeightFormat::F16 => "f16",
            WeightFormat::Bf16 => "bf16",
            WeightFormat::Fp8Channel => "fp8:channel",
            WeightFormat::Fp8Block => "fp8:128x128",
            WeightFormat::Int8 => "int8:g32",
            WeightFormat::Int4 { group } => return out.pad(&format!("int4:g{group}")),
            WeightFormat::Mxfp4 => "mxfp4",
            WeightFormat::Int8A8 => "int8-a8:g32",
            WeightFormat::Int4A8 => "int4-a8:g32",
        })
    }
}

impl FromStr for Quantizer {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "mse" => Quantizer::Mse,
            "rtn" => Quantizer::Rtn,
            _ => bail!("unknown quantizer `{text}`: use mse or rtn"),
        })
    }
}

impl fmt::Display for Quantizer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            Quantizer::Mse => "mse",
            Quantizer::Rtn => "rtn",
        })
    }
}

impl FromStr for KvDtype {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "f32" => KvDtype::F32,
            "f16" => KvDtype::F16,
            _ => bail!("unknown KV dtype `{text}`: use f32 or f16"),
        })
    }
}

impl fmt::Display for KvDtype {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            KvDtype::F32 => "f32",
            KvDtype::F16 => "f16",
        })
    }
}

impl FromStr for Speculation {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "off" => Ok(Speculation::Off),
            Some(("draft", k)) => Ok(Speculation::Draft { k: count(text, k, 64)? }),
            _ => bail!("unknown speculation `{text}`: use off or draft:4"),
        }
    }
}

impl fmt::Display for Speculation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Speculation::Off => out.pad("off"),
            Speculation::Draft { k } => out.pad(&format!("draft:{k}")),
        }
    }
}

/// The number after the colon of `whole`, which must lie in `1..=most`.
fn count(whole: &str, digits: &str, most: usize) -> Result<usize> {
    let n: usize = digits.parse().with_context(|| format!("`{whole}`: `{digits}` is not a whole number"))?;
    ensure!((1..=most).contains(&n), "`{whole}`: the number must lie in 1..={most}");
    Ok(n)
}

/// Serializes the text form of each axis, so that spec files and records read as the command line does.
macro_rules! as_text {
    ($($axis:ty),*) => {$(
        impl Serialize for $axis {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $axis {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                text.parse().map_err(|error| serde::de::Error::custom(format!("{error:#}")))
            }
        }
    )*};
}

as_text!(WeightFormat, Quantizer, KvDtype, Kv, Batching, Speculation);

#[cfg(test)]
mod tests {
    use super::*;

    /// A text and what it is printed as, or what is said of it.
    pub(super) fn check<A: FromStr<Err = anyhow::Error> + fmt::Display>(text: &str, expected: Result<&str, &str>) {
        let got = text.parse::<A>().map(|axis| axis.to_string()).map_err(|error| format!("{error:#}"));
        assert_eq!(got.as_deref().map_err(String::as_str), expected, "{text}");
    }

    #[test]
    fn bytes_are_codes_and_scales() {
        let bits = |text: &str| text.parse::<WeightFormat>().unwrap().bytes(256, 1280) as f64 * 8.0 / (256.0 * 1280.0);
        for (text, expected) in [
            ("f32", 32.0),
            ("bf16", 16.0),
            ("fp8:channel", 8.0 + 32.0 / 1280.0),
            ("fp8:128x128", 8.0 + 32.0 / 16384.0),
            ("int8:g32", 8.5),
            ("int4:g32", 4.5),
            ("int4:g64", 4.25),
            ("int4:g128", 4.125),
            ("mxfp4", 4.25),
            ("int8-a8:g32", 8.5),
            ("int4-a8:g32", 4.5),
        ] {
            assert_eq!(bits(text), expected, "{text}");
        }
        // Blocks at the edge are whole scales.
        assert_eq!(WeightFormat::Fp8Block.bytes(129, 10), 1290 + 4 * 2);
    }

    #[test]
    fn every_text_form_round_trips_or_says_what_to_write() {
        for format in WeightFormat::ALL {
            assert_eq!(format.to_string().parse::<WeightFormat>().unwrap(), format);
        }
        for (short, whole) in [("fp8", "fp8:channel"), ("int8", "int8:g32"), ("int4", "int4:g32")] {
            check::<WeightFormat>(short, Ok(whole));
        }
        check::<WeightFormat>(
            "q4_0",
            Err(
                "unknown weight format `q4_0`: use one of f32, f16, bf16, fp8:channel, fp8:128x128, int8:g32, int4:g32, int4:g64, int4:g128, mxfp4, int8-a8:g32, int4-a8:g32",
            ),
        );
        check::<Quantizer>("rtn", Ok("rtn"));
        check::<Quantizer>("awq", Err("unknown quantizer `awq`: use mse or rtn"));
        check::<KvDtype>("f16", Ok("f16"));
        check::<KvDtype>("int8", Err("unknown KV dtype `int8`: use f32 or f16"));
        check::<Speculation>("off", Ok("off"));
        check::<Speculation>("draft:4", Ok("draft:4"));
        check::<Speculation>("draft:0", Err("`draft:0`: the number must lie in 1..=64"));
        check::<Speculation>("medusa", Err("unknown speculation `medusa`: use off or draft:4"));
    }
}

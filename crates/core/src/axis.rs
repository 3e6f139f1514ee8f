//! The axes of a run that have a short text form, such as `int4:g32`, `draft:4` or `paged:16`.
//!
//! Every form parses and prints without loss: `parse(x.to_string()) == x`.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How weights are stored while the model runs: `f32`, `f16` or `bf16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WeightFormat {
    /// 32-bit IEEE float.
    F32,
    /// 16-bit IEEE float.
    F16,
    /// bfloat16: the upper half of an f32.
    Bf16,
}

/// How keys and values are stored in the KV cache: `f32` or `f16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KvDtype {
    /// 32-bit IEEE float, 4 bytes.
    F32,
    /// 16-bit IEEE float, 2 bytes.
    F16,
}

/// How the slots of the KV cache are handed to sequences: `contiguous` or `paged:BLOCK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kv {
    /// Each sequence reserves its maximum length in one piece when it is admitted.
    Contiguous,
    /// Each sequence takes blocks of this many slots as it grows.
    Paged {
        /// Slots in one block, 1..=256.
        block: u32,
    },
}

/// Which requests run together: `continuous:N` admits a request whenever fewer than N are running.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Batching {
    /// Iteration-level batching: a finished request's place is taken at the next step.
    Continuous {
        /// The most requests that run together, at least 1.
        limit: usize,
    },
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
    /// Bytes of so many stored elements, without padding.
    pub fn bytes(self, elements: u64) -> u64 {
        match self {
            WeightFormat::F32 => 4 * elements,
            WeightFormat::F16 | WeightFormat::Bf16 => 2 * elements,
        }
    }

    /// The KV dtype that goes with these weights unless the spec names another.
    pub fn default_kv_dtype(self) -> KvDtype {
        match self {
            WeightFormat::F32 => KvDtype::F32,
            WeightFormat::F16 | WeightFormat::Bf16 => KvDtype::F16,
        }
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

impl Batching {
    /// The most requests that run together.
    pub fn limit(self) -> usize {
        match self {
            Batching::Continuous { limit } => limit,
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
            _ => bail!("unknown weight format `{text}`: use f32, f16 or bf16"),
        })
    }
}

impl fmt::Display for WeightFormat {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(match self {
            WeightFormat::F32 => "f32",
            WeightFormat::F16 => "f16",
            WeightFormat::Bf16 => "bf16",
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

impl FromStr for Kv {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "contiguous" => Ok(Kv::Contiguous),
            None if text == "paged" => Ok(Kv::Paged { block: 16 }),
            Some(("paged", block)) => Ok(Kv::Paged { block: count(text, block, 256)? as u32 }),
            _ => bail!("unknown KV allocator `{text}`: use contiguous or paged:16"),
        }
    }
}

impl fmt::Display for Kv {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kv::Contiguous => out.pad("contiguous"),
            Kv::Paged { block } => out.pad(&format!("paged:{block}")),
        }
    }
}

impl FromStr for Batching {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("continuous", limit)) => Ok(Batching::Continuous { limit: count(text, limit, 4096)? }),
            _ => bail!("unknown batching `{text}`: use continuous:8"),
        }
    }
}

impl fmt::Display for Batching {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Batching::Continuous { limit } => out.pad(&format!("continuous:{limit}")),
        }
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

as_text!(WeightFormat, KvDtype, Kv, Batching, Speculation);

#[cfg(test)]
mod tests {
    use super::*;

    fn check<A: FromStr<Err = anyhow::Error> + fmt::Display>(text: &str, expected: Result<&str, &str>) {
        let got = text.parse::<A>().map(|axis| axis.to_string()).map_err(|error| format!("{error:#}"));
        assert_eq!(got.as_deref().map_err(String::as_str), expected, "{text}");
    }

    #[test]
    fn every_text_form_round_trips_or_says_what_to_write() {
        for format in ["f32", "f16", "bf16"] {
            check::<WeightFormat>(format, Ok(format));
        }
        check::<WeightFormat>("q4_0", Err("unknown weight format `q4_0`: use f32, f16 or bf16"));
        check::<KvDtype>("f16", Ok("f16"));
        check::<KvDtype>("int8", Err("unknown KV dtype `int8`: use f32 or f16"));
        check::<Kv>("contiguous", Ok("contiguous"));
        check::<Kv>("paged:1", Ok("paged:1"));
        check::<Kv>("paged", Ok("paged:16"));
        check::<Kv>("paged:0", Err("`paged:0`: the number must lie in 1..=256"));
        check::<Kv>("paged:257", Err("`paged:257`: the number must lie in 1..=256"));
        check::<Kv>("paged:x", Err("`paged:x`: `x` is not a whole number: invalid digit found in string"));
        check::<Kv>("contiguous:3", Err("unknown KV allocator `contiguous:3`: use contiguous or paged:16"));
        check::<Batching>("continuous:8", Ok("continuous:8"));
        check::<Batching>("continuous:0", Err("`continuous:0`: the number must lie in 1..=4096"));
        check::<Batching>("dynamic", Err("unknown batching `dynamic`: use continuous:8"));
        check::<Speculation>("off", Ok("off"));
        check::<Speculation>("draft:4", Ok("draft:4"));
        check::<Speculation>("draft:0", Err("`draft:0`: the number must lie in 1..=64"));
        check::<Speculation>("medusa", Err("unknown speculation `medusa`: use off or draft:4"));
    }
}

//! Latency limits of a service, in the text form that vLLM's `--goodput` has: `ttft:200,tpot:50`, in milliseconds.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What a request must keep to count as well served. At least one limit is set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Slo {
    /// Most milliseconds to the first token.
    pub ttft_ms: Option<f64>,
    /// Most milliseconds per output token after the first.
    pub tpot_ms: Option<f64>,
    /// Most milliseconds from arrival to the end.
    pub e2e_ms: Option<f64>,
}

impl FromStr for Slo {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Slo> {
        let mut slo = Slo::default();
        for part in text.split(',').map(str::trim) {
            let mistake =
                || format!("latency limit `{part}`: write ttft:MS, tpot:MS or e2e:MS, such as ttft:200,tpot:50");
            let (name, limit) = part.split_once(':').with_context(mistake)?;
            let limit: f64 = limit.trim().parse().with_context(mistake)?;
            ensure!(limit.is_finite() && limit > 0.0, "latency limit `{part}`: must be above 0 milliseconds");
            let place = match name.trim() {
                "ttft" => &mut slo.ttft_ms,
                "tpot" => &mut slo.tpot_ms,
                "e2e" | "e2el" => &mut slo.e2e_ms,
                _ => bail!(mistake()),
            };
            ensure!(place.replace(limit).is_none(), "latency limit `{part}`: there is another for {name}");
        }
        Ok(slo)
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = [("ttft", self.ttft_ms), ("tpot", self.tpot_ms), ("e2e", self.e2e_ms)];
        let parts = limits.iter().filter_map(|(name, limit)| limit.map(|limit| format!("{name}:{limit}")));
        out.pad(&parts.collect::<Vec<_>>().join(","))
    }
}

impl Serialize for Slo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Slo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Slo, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error| serde::de::Error::custom(format!("{error:#}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Result<[Option<f64>; 3], &str>) {
        match (text.parse::<Slo>(), expected) {
            (Ok(slo), Ok(expected)) => {
                assert_eq!([slo.ttft_ms, slo.tpot_ms, slo.e2e_ms], expected, "{text}");
                assert_eq!(slo.to_string().parse::<Slo>().unwrap(), slo);
            }
            (Err(error), Err(expected)) => assert!(format!("{error:#}").contains(expected), "{text}: {error:#}"),
            (got, expected) => panic!("{text}: {got:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn limits_are_read_as_vllm_writes_them() {
        check("ttft:200,tpot:50", Ok([Some(200.0), Some(50.0), None]));
        check("e2el:3000", Ok([None, None, Some(3000.0)]));
        check("tpot:0.5, e2e:10", Ok([None, Some(0.5), Some(10.0)]));
        check("", Err("write ttft:MS"));
        check("ttft=200", Err("write ttft:MS"));
        check("itl:3", Err("latency limit `itl:3`"));
        check("ttft:fast", Err("latency limit `ttft:fast`"));
        check("ttft:-1", Err("must be above 0"));
        check("ttft:nan", Err("must be above 0"));
        check("ttft:1,ttft:2", Err("there is another for ttft"));
    }
}

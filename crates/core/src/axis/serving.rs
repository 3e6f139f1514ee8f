//! The axes that decide which requests run together and where their keys and values lie: `continuous:8`, `paged:16`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::count;

/// How the slots of the KV cache are handed to sequences: `contiguous`, `buddy:max`, `buddy:pow2`, `buddy:oracle`,
/// `paged:BLOCK` or `prefix:BLOCK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kv {
    /// Each sequence reserves its maximum length in one piece when it is admitted.
    Contiguous,
    /// Each sequence reserves a block of a power of two when it is admitted.
    Buddy {
        /// How much is reserved.
        reserve: Reserve,
    },
    /// Each sequence takes blocks of this many slots as it grows.
    Paged {
        /// Slots in one block, 1..=256.
        block: u32,
    },
    /// As paged, and full blocks of tokens stay in the cache and are shared by sequences that begin with the same tokens.
    Prefix {
        /// Slots in one block, 1..=256.
        block: u32,
    },
}

/// What a reservation knows of a sequence's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reserve {
    /// Nothing: it takes the most that the sequence may come to.
    Max,
    /// The output up to the next power of two.
    Pow2,
    /// All.
    Oracle,
}

/// Which requests run together: `continuous:N` admits a request whenever fewer than N are running; `static:N` and
/// `static:N,wait=50ms` run batches of up to N, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Batching {
    /// Iteration-level batching: a finished request's place is taken at the next step.
    Continuous {
        /// The most requests that run together, at least 1.
        limit: usize,
    },
    /// Request-level batching: a batch starts when the last one has ended, and until then ended requests keep their slots.
    Static {
        /// The most requests in a batch, at least 1.
        limit: usize,
        /// How long a batch that is not full waits for more, counted from its first request's arrival.
        wait: Duration,
    },
}

impl Batching {
    /// The most requests that run together.
    pub fn limit(self) -> usize {
        match self {
            Batching::Continuous { limit } | Batching::Static { limit, .. } => limit,
        }
    }
}

impl FromStr for Kv {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            None if text == "contiguous" => Ok(Kv::Contiguous),
            None if text == "buddy" => Ok(Kv::Buddy { reserve: Reserve::Max }),
            None if text == "paged" => Ok(Kv::Paged { block: 16 }),
            None if text == "prefix" => Ok(Kv::Prefix { block: 16 }),
            Some(("buddy", "max")) => Ok(Kv::Buddy { reserve: Reserve::Max }),
            Some(("buddy", "pow2")) => Ok(Kv::Buddy { reserve: Reserve::Pow2 }),
            Some(("buddy", "oracle")) => Ok(Kv::Buddy { reserve: Reserve::Oracle }),
            Some(("paged", block)) => Ok(Kv::Paged { block: count(text, block, 256)? as u32 }),
            Some(("prefix", block)) => Ok(Kv::Prefix { block: count(text, block, 256)? as u32 }),
            _ => bail!(
                "unknown KV allocator `{text}`: use contiguous, buddy:max, buddy:pow2, buddy:oracle, paged:16 or prefix:16"
            ),
        }
    }
}

impl fmt::Display for Kv {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kv::Contiguous => out.pad("contiguous"),
            Kv::Buddy { reserve: Reserve::Max } => out.pad("buddy:max"),
            Kv::Buddy { reserve: Reserve::Pow2 } => out.pad("buddy:pow2"),
            Kv::Buddy { reserve: Reserve::Oracle } => out.pad("buddy:oracle"),
            Kv::Paged { block } => out.pad(&format!("paged:{block}")),
            Kv::Prefix { block } => out.pad(&format!("prefix:{block}")),
        }
    }
}

impl FromStr for Batching {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once(':') {
            Some(("continuous", limit)) => Ok(Batching::Continuous { limit: count(text, limit, 4096)? }),
            Some(("static", rest)) => {
                let (limit, wait) = rest.split_once(',').map_or((rest, None), |(limit, wait)| (limit, Some(wait)));
                let span = |wait: &str| humantime::parse_duration(wait.strip_prefix("wait=")?).ok();
                let wait = match wait {
                    None => Duration::ZERO,
                    Some(wait) => {
                        span(wait).with_context(|| format!("`{text}`: write the wait as in static:32,wait=50ms"))?
                    }
                };
                Ok(Batching::Static { limit: count(text, limit, 4096)?, wait })
            }
            _ => bail!("unknown batching `{text}`: use continuous:8, static:8 or static:8,wait=50ms"),
        }
    }
}

impl fmt::Display for Batching {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Batching::Continuous { limit } => out.pad(&format!("continuous:{limit}")),
            Batching::Static { limit, wait } if wait.is_zero() => out.pad(&format!("static:{limit}")),
            Batching::Static { limit, wait } => {
                let wait = humantime::format_duration(*wait).to_string().replace(' ', "");
                out.pad(&format!("static:{limit},wait={wait}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::tests::check;

    #[test]
    fn allocators_round_trip_or_say_what_to_write() {
        check::<Kv>("contiguous", Ok("contiguous"));
        check::<Kv>("paged:1", Ok("paged:1"));
        check::<Kv>("paged", Ok("paged:16"));
        check::<Kv>("paged:0", Err("`paged:0`: the number must lie in 1..=256"));
        check::<Kv>("paged:257", Err("`paged:257`: the number must lie in 1..=256"));
        check::<Kv>("paged:x", Err("`paged:x`: `x` is not a whole number: invalid digit found in string"));
        for text in ["buddy:max", "buddy:pow2", "buddy:oracle", "prefix:16"] {
            check::<Kv>(text, Ok(text));
        }
        check::<Kv>("buddy", Ok("buddy:max"));
        check::<Kv>("prefix:0", Err("`prefix:0`: the number must lie in 1..=256"));
        for text in ["contiguous:3", "buddy:half"] {
            let expected = format!(
                "unknown KV allocator `{text}`: use contiguous, buddy:max, buddy:pow2, buddy:oracle, paged:16 or prefix:16"
            );
            check::<Kv>(text, Err(&expected));
        }
    }

    #[test]
    fn batching_round_trips_or_says_what_to_write() {
        check::<Batching>("continuous:8", Ok("continuous:8"));
        check::<Batching>("continuous:0", Err("`continuous:0`: the number must lie in 1..=4096"));
        check::<Batching>("static:8", Ok("static:8"));
        check::<Batching>("static:32,wait=50ms", Ok("static:32,wait=50ms"));
        check::<Batching>("static:32,wait=1500ms", Ok("static:32,wait=1s500ms"));
        check::<Batching>("static:32,wait=0s", Ok("static:32"));
        check::<Batching>("static:2,50ms", Err("`static:2,50ms`: write the wait as in static:32,wait=50ms"));
        check::<Batching>("static:2,wait=5", Err("`static:2,wait=5`: write the wait as in static:32,wait=50ms"));
        check::<Batching>("static:0", Err("`static:0`: the number must lie in 1..=4096"));
        check::<Batching>(
            "dynamic",
            Err("unknown batching `dynamic`: use continuous:8, static:8 or static:8,wait=50ms"),
        );
    }
}

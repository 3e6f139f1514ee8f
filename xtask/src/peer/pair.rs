//! What is compared: a weight format with llama.cpp's counterpart, and the work that both do.
//!
//! Counterparts hold the same numbers of bits and scales. In the `-a8` formats both round activations to int8 per 32; beside F16
//! llama.cpp rounds them to f16, and ours stay f32.

use anyhow::{Result, bail};
use serde::Serialize;

/// Repetitions in a turn of either side, of which the median counts: a model is loaded once for all.
pub(crate) const REPETITIONS: &str = "3";

/// A weight format and its counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Pair {
    /// Ours, as `--weights` takes it.
    pub(crate) ours: &'static str,
    /// llama.cpp's, as `llama-quantize` takes it and GGUF names it.
    pub(crate) theirs: &'static str,
}

/// Every pair.
pub(crate) const PAIRS: [Pair; 3] = [
    Pair { ours: "f16", theirs: "F16" },
    Pair { ours: "int8-a8:g32", theirs: "Q8_0" },
    Pair { ours: "int4-a8:g32", theirs: "Q4_0" },
];

impl Pair {
    /// Pairs by the names of our formats, separated by commas.
    pub(crate) fn parse(list: &str) -> Result<Vec<Pair>> {
        let mut pairs = Vec::new();
        for name in list.split(',').map(str::trim) {
            match PAIRS.into_iter().find(|pair| pair.ours == name) {
                Some(pair) if !pairs.contains(&pair) => pairs.push(pair),
                Some(_) => bail!("--pairs {list}: {name} stands twice"),
                None => {
                    bail!("--pairs {list}: `{name}` has no counterpart; use {}", PAIRS.map(|pair| pair.ours).join(", "))
                }
            }
        }
        Ok(pairs)
    }
}

/// What is timed after a context of so many tokens: a prompt with its last token scored, or forwards of one token each.
/// One of the two numbers is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Work {
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Forwards of one token.
    pub(crate) generate: usize,
    /// Tokens of the context before.
    pub(crate) depth: usize,
}

impl Work {
    /// The arguments that both programs take.
    pub(crate) fn arguments(self, threads: usize) -> [String; 8] {
        let numbers = [("-p", self.prompt), ("-n", self.generate), ("-d", self.depth), ("-t", threads)];
        let [p, n, d, t] = numbers.map(|(letter, number)| [letter.to_string(), number.to_string()]);
        let mut words = [p, n, d, t].into_iter().flatten();
        std::array::from_fn(|_| words.next().unwrap_or_default())
    }

    /// Such as `prefill 512` or `decode 128 after 1024`.
    pub(crate) fn label(self) -> String {
        let (what, n) = if self.prompt > 0 { ("prefill", self.prompt) } else { ("decode", self.generate) };
        let depth = if self.depth > 0 { format!(" after {}", self.depth) } else { String::new() };
        format!("{what} {n}{depth}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_chosen_by_our_format() {
        assert_eq!(Pair::parse("int4-a8:g32, f16").unwrap(), [PAIRS[2], PAIRS[0]]);
        for list in ["", "f16,", "Q4_0", "f16,f16", "int4:g32"] {
            assert!(Pair::parse(list).is_err(), "{list}");
        }
    }

    #[test]
    fn both_programs_take_the_same_words() {
        let work = Work { prompt: 512, generate: 0, depth: 64 };
        assert_eq!(work.arguments(2).join(" "), "-p 512 -n 0 -d 64 -t 2");
        assert_eq!(work.label(), "prefill 512 after 64");
        assert_eq!(Work { prompt: 0, generate: 128, depth: 0 }.label(), "decode 128");
    }
}

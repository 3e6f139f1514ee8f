//! Inter-token latency, as five tools define it.
//!
//! Where an emission brings several tokens, as under speculation, the definitions part, and only a log of (time, tokens)
//! lets all of them be computed. None is right or wrong; a number without its definition is.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spread::Spread;
use crate::timeline::Gap;

/// The spread of inter-token latencies under each definition, in milliseconds, over the gaps of finished requests. `None`
/// where there is no gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct ItlConventions {
    /// One value for each gap between emissions, however many tokens end it (vLLM).
    pub per_emission_ms: Option<Spread>,
    /// Gap / tokens, once for each of the tokens (SGLang's own backend).
    pub per_token_ms: Option<Spread>,
    /// The whole gap for the first token of an emission and 0 for its others (inference-perf).
    pub at_arrival_ms: Option<Spread>,
    /// Gap / tokens, once for each emission (genai-perf).
    pub per_emission_mean_ms: Option<Spread>,
    /// Every gap / the mean tokens of an emission of the run (sglang#12064).
    pub by_run_mean_ms: Option<Spread>,
}

impl ItlConventions {
    /// All five over the same gaps.
    pub fn of(gaps: &[Gap]) -> ItlConventions {
        let ms = |gap: &Gap| gap.ns as f64 / 1e6;
        let share = |gap: &Gap| ms(gap) / gap.n as f64;
        let mean = gaps.iter().map(|gap| gap.n).sum::<usize>() as f64 / gaps.len() as f64;
        let first = |gap: &Gap, token: usize| if token == 0 { ms(gap) } else { 0.0 };
        let tokens = || gaps.iter().flat_map(|gap| (0..gap.n).map(move |token| (gap, token)));
        ItlConventions {
            per_emission_ms: Spread::of(gaps.iter().map(ms)),
            per_token_ms: Spread::of(tokens().map(|(gap, _)| share(gap))),
            at_arrival_ms: Spread::of(tokens().map(|(gap, token)| first(gap, token))),
            per_emission_mean_ms: Spread::of(gaps.iter().map(share)),
            by_run_mean_ms: Spread::of(gaps.iter().map(|gap| ms(gap) / mean)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gaps are (milliseconds, tokens); `expected` are the five samples, in the order of the fields.
    fn check(gaps: &[(u64, usize)], expected: [&[f64]; 5]) {
        let gaps: Vec<Gap> = gaps.iter().map(|&(ms, n)| Gap { ns: ms * 1_000_000, n }).collect();
        let got = ItlConventions::of(&gaps);
        let got =
            [got.per_emission_ms, got.per_token_ms, got.at_arrival_ms, got.per_emission_mean_ms, got.by_run_mean_ms];
        assert_eq!(got, expected.map(|sample| Spread::of(sample.iter().copied())), "{gaps:?}");
    }

    #[test]
    fn five_definitions_of_one_log() {
        check(&[], [&[]; 5]);
        // Without speculation they agree.
        check(&[(5, 1), (7, 1)], [&[5.0, 7.0]; 5]);
        check(
            &[(12, 3), (8, 1)],
            [&[12.0, 8.0], &[4.0, 4.0, 4.0, 8.0], &[12.0, 0.0, 0.0, 8.0], &[4.0, 8.0], &[6.0, 4.0]],
        );
    }

    #[test]
    fn a_verified_step_is_not_an_inter_token_latency() {
        // Four tokens every 8 ms are 500 tokens a second, which is 2 ms a token; sgl-project/sglang#12064 tells of 8.7 ms
        // reported where 3.4 ms were real.
        let gaps = [Gap { ns: 8_000_000, n: 4 }; 10];
        let itl = ItlConventions::of(&gaps);
        assert_eq!(itl.per_emission_ms.unwrap().mean, 8.0);
        for per_token in [itl.per_token_ms, itl.at_arrival_ms, itl.per_emission_mean_ms, itl.by_run_mean_ms] {
            assert_eq!(per_token.unwrap().mean, 2.0);
        }
    }
}

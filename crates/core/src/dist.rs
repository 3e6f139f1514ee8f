//! From logits to the distribution that a token is drawn from.
//!
//! The distribution that a draft token was drawn from is the one that it is scored with: both are the same `Dist`.
//! Weights stay f32 and unnormalized; a probability is weight / total in f64, so probabilities sum to 1 to rounding.

use std::cmp::Ordering;

use anyhow::{Result, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scores::greedy;

/// How a request picks its tokens. Filters apply in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sampling {
    /// Logits are divided by this; 0 always takes the best token.
    pub temperature: f32,
    /// Keep the this many likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the likeliest tokens until their probabilities reach this sum; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens below this share of the likeliest token's probability; 0 keeps all.
    pub min_p: f32,
}

/// A distribution over token ids.
#[derive(Clone, Debug, PartialEq)]
pub enum Dist {
    /// One certain token: greedy decoding, or a draft that was not drawn at random.
    Point(u32),
    /// Some tokens, by ascending id.
    Sparse {
        /// Ids with a weight above zero, ascending.
        ids: Vec<u32>,
        /// The weight of each id.
        weights: Vec<f32>,
        /// Sum of the weights.
        total: f64,
    },
    /// Every token of the vocabulary.
    Dense {
        /// The weight of each id.
        weights: Vec<f32>,
        /// Sum of the weights.
        total: f64,
    },
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling::GREEDY
    }
}

impl Sampling {
    /// Always the best token.
    pub const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

    /// Whether every distribution is a single point.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Says which field is out of its range.
    pub fn validate(&self) -> Result<()> {
        let &Sampling { temperature, top_p, min_p, .. } = self;
        ensure!(
            temperature == 0.0 || (1e-3..=100.0).contains(&temperature),
            "temperature {temperature}: use 0 for greedy decoding, or 0.001..=100"
        );
        ensure!(top_p > 0.0 && top_p <= 1.0, "top_p {top_p}: must lie in (0, 1]; 1 keeps all tokens");
        ensure!((0.0..1.0).contains(&min_p), "min_p {min_p}: must lie in [0, 1); 0 keeps all tokens");
        Ok(())
    }
}

/// The distribution that `sampling` draws from, given one row of logits.
pub fn dist(logits: &[f32], sampling: &Sampling) -> Dist {
    if sampling.is_greedy() {
        return Dist::Point(greedy(logits).id);
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f32> = logits.iter().map(|logit| ((logit - max) / sampling.temperature).exp()).collect();
    if sampling.top_k == 0 && sampling.top_p == 1.0 && sampling.min_p == 0.0 {
        return Dist::dense(weights);
    }
    let mut kept: Vec<(u32, f32)> = (0..).zip(weights).filter(|&(_, weight)| weight > 0.0).collect();
    keep_top_k(&mut kept, sampling.top_k);
    keep_top_p(&mut kept, sampling.top_p);
    let floor = sampling.min_p * kept.iter().map(|&(_, weight)| weight).fold(0.0, f32::max);
    kept.retain(|&(_, weight)| weight >= floor);
    kept.sort_unstable_by_key(|&(id, _)| id);
    Dist::sparse(kept)
}

/// Likeliest first; the lowest id first where weights are equal, which decides ties at every cut-off.
fn likeliest_first(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

fn keep_top_k(kept: &mut Vec<(u32, f32)>, k: usize) {
    if k > 0 && k < kept.len() {
        kept.select_nth_unstable_by(k, likeliest_first);
        kept.truncate(k);
    }
}

fn keep_top_p(kept: &mut Vec<(u32, f32)>, p: f32) {
    if p == 1.0 {
        return;
    }
    kept.sort_unstable_by(likeliest_first);
    let total: f64 = kept.iter().map(|&(_, weight)| f64::from(weight)).sum();
    let mut sum = 0.0;
    let enough = kept.iter().position(|&(_, weight)| {
        sum += f64::from(weight);
        sum >= f64::from(p) * total
    });
    if let Some(last) = enough {
        kept.truncate(last + 1);
    }
}

impl Dist {
    /// A distribution over the whole vocabulary, `weights[id]` in proportion.
    pub fn dense(weights: Vec<f32>) -> Dist {
        let total = weights.iter().map(|&weight| f64::from(weight)).sum();
        Dist::Dense { weights, total }
    }

    /// A distribution over some ids, given with their weights in ascending order of id.
    pub fn sparse(kept: Vec<(u32, f32)>) -> Dist {
        let total = kept.iter().map(|&(_, weight)| f64::from(weight)).sum();
        let (ids, weights) = kept.into_iter().unzip();
        Dist::Sparse { ids, weights, total }
    }

    /// Whether it came from sound logits: no NaN, no infinity.
    pub fn is_finite(&self) -> bool {
        match self {
            Dist::Point(_) => true,
            Dist::Sparse { total, .. } | Dist::Dense { total, .. } => total.is_finite() && *total > 0.0,
        }
    }

    /// Probability of one token; 0 for an id outside the distribution.
    pub fn prob(&self, id: u32) -> f64 {
        match self {
            Dist::Point(point) => f64::from(u8::from(*point == id)),
            Dist::Sparse { ids, weights, total } => {
                ids.binary_search(&id).map_or(0.0, |i| f64::from(weights[i]) / total)
            }
            Dist::Dense { weights, total } => weights.get(id as usize).map_or(0.0, |&weight| f64::from(weight) / total),
        }
    }

    /// The ids that may come out, ascending, with their probabilities.
    pub fn support(&self) -> Box<dyn Iterator<Item = (u32, f64)> + '_> {
        match self {
            Dist::Point(id) => Box::new(std::iter::once((*id, 1.0))),
            Dist::Sparse { ids, weights, total } => {
                Box::new(ids.iter().zip(weights).map(move |(&id, &weight)| (id, f64::from(weight) / total)))
            }
            Dist::Dense { weights, total } => {
                Box::new((0..).zip(weights).map(move |(id, &weight)| (id, f64::from(weight) / total)))
            }
        }
    }

    /// The token at `u` in `[0, 1)` of the cumulative distribution, ids ascending.
    pub fn sample(&self, u: f64) -> u32 {
        pick(self.support(), u)
    }
}

/// Walks `(id, mass)` until the running sum passes `u` in `[0, 1)`; a last id with mass catches what rounding leaves.
pub fn pick(masses: impl Iterator<Item = (u32, f64)>, u: f64) -> u32 {
    let (mut sum, mut last) = (0.0, 0);
    for (id, mass) in masses.filter(|&(_, mass)| mass > 0.0) {
        sum += mass;
        last = id;
        if u < sum {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Sampling = Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

    /// Logits whose softmax at temperature 1 is `probs`.
    fn logits(probs: &[f32]) -> Vec<f32> {
        probs.iter().map(|p| p.ln()).collect()
    }

    fn check(probs: &[f32], sampling: Sampling, expected: &[(u32, f64)]) {
        let got: Vec<_> = dist(&logits(probs), &sampling).support().filter(|&(_, p)| p > 0.0).collect();
        assert_eq!(got.len(), expected.len(), "{sampling:?}: {got:?}");
        for (got, expected) in got.iter().zip(expected) {
            assert_eq!(got.0, expected.0, "{sampling:?}");
            assert!((got.1 - expected.1).abs() < 1e-6, "{sampling:?}: {got:?} {expected:?}");
        }
    }

    #[test]
    fn filters_keep_what_they_say_and_ties_go_to_the_lowest_id() {
        let probs = [0.1, 0.4, 0.2, 0.3];
        check(&probs, Sampling::GREEDY, &[(1, 1.0)]);
        check(&probs, PLAIN, &[(0, 0.1), (1, 0.4), (2, 0.2), (3, 0.3)]);
        check(&probs, Sampling { top_k: 2, ..PLAIN }, &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        check(&probs, Sampling { top_k: 9, ..PLAIN }, &[(0, 0.1), (1, 0.4), (2, 0.2), (3, 0.3)]);
        check(&probs, Sampling { top_p: 0.69, ..PLAIN }, &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        check(&probs, Sampling { top_p: 0.71, ..PLAIN }, &[(1, 4.0 / 9.0), (2, 2.0 / 9.0), (3, 3.0 / 9.0)]);
        check(&probs, Sampling { top_p: 1e-6, ..PLAIN }, &[(1, 1.0)]);
        check(&probs, Sampling { min_p: 0.6, ..PLAIN }, &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]);
        check(&[0.25; 4], Sampling { top_k: 2, ..PLAIN }, &[(0, 0.5), (1, 0.5)]);
        check(&[0.25; 4], Sampling { top_p: 0.5, ..PLAIN }, &[(0, 0.5), (1, 0.5)]);
    }

    #[test]
    fn temperature_sharpens_by_its_power() {
        let cold = Sampling { temperature: 0.5, ..PLAIN };
        check(&[0.25, 0.75], cold, &[(0, 0.1), (1, 0.9)]);
    }

    #[test]
    fn sampling_inverts_the_cumulative_distribution() {
        let dist = Dist::dense(vec![1.0, 0.0, 2.0, 1.0]);
        for (u, expected) in [(0.0, 0), (0.2499, 0), (0.25, 2), (0.7499, 2), (0.75, 3), (0.999_999, 3)] {
            assert_eq!(dist.sample(u), expected, "{u}");
        }
        assert_eq!(Dist::Point(9).sample(0.999), 9);
        assert_eq!(Dist::sparse(vec![(4, 1.0), (7, 3.0)]).sample(0.25), 7);
        assert_eq!(dist.prob(77), 0.0);
    }

    #[test]
    fn a_value_out_of_range_is_named() {
        for (sampling, field) in [
            (Sampling { temperature: -1.0, ..PLAIN }, "temperature"),
            (Sampling { temperature: f32::NAN, ..PLAIN }, "temperature"),
            (Sampling { top_p: 0.0, ..PLAIN }, "top_p"),
            (Sampling { min_p: 1.0, ..PLAIN }, "min_p"),
        ] {
            let error = sampling.validate().unwrap_err().to_string();
            assert!(error.starts_with(field), "{error}");
        }
    }
}

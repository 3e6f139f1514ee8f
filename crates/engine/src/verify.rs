//! Which draft tokens stand, so that the output has exactly the target's distribution.
//!
//! Leviathan, Kalman and Matias, "Fast inference from transformers via speculative decoding" (ICML 2023), algorithm 1:
//! a draft token x stands with probability min(1, tgt(x) / dft(x)); the first that falls is replaced by a draw from
//! norm(max(0, tgt - dft)). Greedy decoding and certain drafts are the case of one-point distributions.

use specquant_core::{Dist, Rng, Use, pick};

use crate::{Draft, Verdict};

/// Judges `draft`, whose first token would stand at `position`. `target` holds the target's distribution at the place
/// of each draft token and at the place after the last.
pub fn verify(draft: &Draft, target: &[Dist], rng: Rng, position: usize) -> Verdict {
    assert_eq!(target.len(), draft.tokens.len() + 1, "one distribution for each draft token and one after the last");
    for (i, (&token, drawn_from)) in draft.tokens.iter().zip(&draft.dists).enumerate() {
        let stands = rng.uniform(position + i, Use::Accept) < accept_probability(&target[i], drawn_from, token);
        if !stands {
            let next = pick(residual(&target[i], drawn_from), rng.uniform(position + i, Use::Residual));
            return Verdict { accepted: i, next, evaluated: i + 1 };
        }
    }
    let k = draft.tokens.len();
    Verdict { accepted: k, next: target[k].sample(rng.uniform(position + k, Use::Bonus)), evaluated: k }
}

/// min(1, tgt(x) / dft(x)); 0 for a token that the draft could not have drawn, so that no ratio is undefined.
pub fn accept_probability(target: &Dist, draft: &Dist, token: u32) -> f64 {
    let drafted = draft.prob(token);
    if drafted > 0.0 { (target.prob(token) / drafted).min(1.0) } else { 0.0 }
}

/// norm(max(0, tgt - dft)) by ascending id; the target itself where rounding leaves nothing of the difference.
pub fn residual(target: &Dist, draft: &Dist) -> impl Iterator<Item = (u32, f64)> {
    let mut masses: Vec<_> =
        target.support().map(|(id, p)| (id, (p - draft.prob(id)).max(0.0))).filter(|&(_, mass)| mass > 0.0).collect();
    let mut total: f64 = masses.iter().map(|&(_, mass)| mass).sum();
    if total <= 0.0 {
        masses = target.support().collect();
        total = 1.0;
    }
    masses.into_iter().map(move |(id, mass)| (id, mass / total))
}

//! Verification against arithmetic: identities, exact laws by enumeration, and the edges of the acceptance rule.
//!
//! Nothing here is sampled: each law is summed over all drafts and all ways in which they can be judged.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use specquant_core::{Dist, Rng, Sampling, Use, dist};

use super::rig::heat;
use crate::fake::{Fake, Rule};
use crate::{Draft, Verdict, accept_probability, residual, verify};

/// A distribution for each prefix of the output.
type Context<'a> = &'a dyn Fn(&[u32]) -> Dist;

/// Probability of each output.
type Law = BTreeMap<Vec<u32>, f64>;

/// How a draft token is scored.
#[derive(Clone, Copy, PartialEq)]
enum Scored {
    /// With the distribution that it was drawn from.
    Token,
    /// As if it had been certain, which accepts what a draw from the target would have matched.
    Match,
}

fn dense(weights: &[f32]) -> Dist {
    Dist::dense(weights.to_vec())
}

/// What has to hold of any two distributions, for each token and in sum.
fn identity(target: &Dist, draft: &Dist, vocab: u32) -> Result<(), TestCaseError> {
    let rest: BTreeMap<u32, f64> = residual(target, draft).collect();
    prop_assert!((rest.values().sum::<f64>() - 1.0).abs() < 1e-12, "the residual is a distribution");
    let accepted = |id| draft.prob(id) * accept_probability(target, draft, id);
    let beta: f64 = (0..vocab).map(accepted).sum();
    for id in 0..vocab {
        let got = accepted(id) + (1.0 - beta) * rest.get(&id).copied().unwrap_or(0.0);
        prop_assert!((got - target.prob(id)).abs() < 1e-12, "token {}: {} and {}", id, got, target.prob(id));
    }
    let variation = (0..vocab).map(|id| (target.prob(id) - draft.prob(id)).abs()).sum::<f64>() / 2.0;
    prop_assert!((beta - (1.0 - variation)).abs() < 1e-12);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn accepted_and_replaced_mass_make_up_the_target(
        logits in proptest::collection::vec((-6f32..6.0, -6f32..6.0), 2..=64),
        (top_k, top_p, min_p) in (0usize..8, 0.2f32..=1.0, 0f32..0.5),
    ) {
        let (target, draft): (Vec<f32>, Vec<f32>) = logits.into_iter().unzip();
        let filtered = Sampling { temperature: 0.8, top_k, top_p, min_p };
        for sampling in [heat(1.0), filtered, Sampling::GREEDY] {
            let (target, drawn) = (dist(&target, &sampling), dist(&draft, &sampling));
            identity(&target, &drawn, draft.len() as u32)?;
            // A certain draft of any token is one more distribution with the same identity.
            for id in 0..draft.len() as u32 {
                identity(&target, &Dist::Point(id), draft.len() as u32)?;
            }
        }
    }

    #[test]
    fn verify_reads_the_random_numbers_of_each_position_and_use(
        weights in proptest::collection::vec((1f32..9.0, 1f32..9.0, 1f32..9.0), 5),
        tokens in proptest::collection::vec(0u32..3, 0..=4),
        (seed, request, position) in (0u64..1000, 0u64..1000, 0usize..1000),
    ) {
        let rng = Rng { seed, request };
        let at = |i: usize| dense(&[weights[i].0, weights[i].1, weights[i].2]);
        let target: Vec<Dist> = (0..=tokens.len()).map(at).collect();
        let dists: Vec<Dist> = (0..tokens.len()).map(|i| at(4 - i)).collect();
        let stands = |i: usize| {
            let (wanted, drawn) = (target[i].prob(tokens[i]), dists[i].prob(tokens[i]));
            rng.uniform(position + i, Use::Accept) * drawn < wanted
        };
        let accepted = (0..tokens.len()).take_while(|&i| stands(i)).count();
        let next = if accepted == tokens.len() {
            target[accepted].sample(rng.uniform(position + accepted, Use::Bonus))
        } else {
            let excess = (0..3).map(|id| (target[accepted].prob(id) - dists[accepted].prob(id)).max(0.0) as f32);
            dense(&excess.collect::<Vec<_>>()).sample(rng.uniform(position + accepted, Use::Residual))
        };
        let evaluated = (accepted + 1).min(tokens.len());
        let got = verify(&Draft { tokens, dists }, &target, rng, position);
        prop_assert_eq!(got, Verdict { accepted, next, evaluated });
    }
}

/// The law of the target alone for `len` more tokens, times `mass`.
fn continue_alone(target: Context<'_>, prefix: &[u32], len: usize, mass: f64, law: &mut Law) {
    if len == 0 {
        *law.entry(prefix.to_vec()).or_default() += mass;
        return;
    }
    for (id, p) in target(prefix).support() {
        continue_alone(target, &[prefix, &[id]].concat(), len - 1, mass * p, law);
    }
}

/// The law of one step of at most `left` draft tokens, filled up to `left + 1` tokens by the target. Returns the
/// expected number of accepted tokens.
fn speculate(models: (Context<'_>, Context<'_>), scored: Scored, prefix: &[u32], left: usize, law: &mut Law) -> f64 {
    let mut steps = vec![(prefix.to_vec(), left, 1.0)];
    let mut accepted = 0.0;
    while let Some((prefix, left, mass)) = steps.pop() {
        let (target, draft) = (models.0(&prefix), models.1(&prefix));
        if left == 0 {
            continue_alone(models.0, &prefix, 1, mass, law);
            continue;
        }
        for (id, drawn) in draft.support() {
            let scored_with = if scored == Scored::Match { Dist::Point(id) } else { draft.clone() };
            let stands = accept_probability(&target, &scored_with, id);
            accepted += mass * drawn * stands;
            steps.push(([prefix.as_slice(), &[id]].concat(), left - 1, mass * drawn * stands));
            for (next, p) in residual(&target, &scored_with) {
                let fallen = mass * drawn * (1.0 - stands) * p;
                continue_alone(models.0, &[prefix.as_slice(), &[next]].concat(), left, fallen, law);
            }
        }
    }
    accepted
}

/// The output law must be the target's; `accepted` is the expected number of accepted tokens where it is known.
fn check(models: (Context<'_>, Context<'_>), scored: Scored, gamma: usize, accepted: Option<f64>) {
    let (mut got, mut expected) = (Law::new(), Law::new());
    let mean = speculate(models, scored, &[], gamma, &mut got);
    continue_alone(models.0, &[], gamma + 1, 1.0, &mut expected);
    for (output, p) in &expected {
        let q = got.get(output).copied().unwrap_or(0.0);
        assert!((p - q).abs() < 1e-12, "{output:?}: {q}, not {p}");
    }
    assert!((got.values().sum::<f64>() - 1.0).abs() < 1e-12);
    if let Some(accepted) = accepted {
        assert!((mean - accepted).abs() < 1e-12, "{mean} tokens accepted, not {accepted}");
    }
}

#[test]
fn the_law_of_the_output_is_the_targets_for_fixed_distributions() {
    /// Target, draft, how it is scored, its length, and the expected number of accepted tokens.
    type Row<'a> = (&'a [f32], &'a [f32], Scored, usize, f64);
    let rows: [Row<'_>; 6] = [
        (&[1.0, 2.0], &[2.0, 1.0], Scored::Token, 2, 10.0 / 9.0),
        (&[1.0, 2.0], &[2.0, 1.0], Scored::Token, 1, 2.0 / 3.0),
        (&[4.0, 3.0, 2.0, 1.0], &[1.0, 2.0, 3.0, 4.0], Scored::Token, 1, 3.0 / 5.0),
        (&[4.0, 3.0, 2.0, 1.0], &[1.0, 2.0, 3.0, 4.0], Scored::Match, 1, 1.0 / 5.0),
        (&[6.0, 3.0, 1.0], &[2.0, 3.0, 5.0], Scored::Token, 1, 3.0 / 5.0),
        (&[6.0, 3.0, 1.0], &[2.0, 3.0, 5.0], Scored::Token, 3, 3.0 / 5.0 + 9.0 / 25.0 + 27.0 / 125.0),
    ];
    for (target, draft, scored, gamma, accepted) in rows {
        check((&|_| dense(target), &|_| dense(draft)), scored, gamma, Some(accepted));
    }
}

#[test]
fn the_law_of_the_output_is_the_targets_where_distributions_depend_on_the_prefix() {
    for seed in 0..6 {
        let model = |seed| Fake::new(Rule::Random { seed, spread: 4.0 }, 3, 8, 0);
        let (target, draft) = (model(seed), model(seed + 100));
        for sampling in [heat(1.0), Sampling { top_k: 2, ..heat(0.7) }, Sampling { top_p: 0.8, ..heat(1.0) }] {
            for gamma in 1..=3 {
                for scored in [Scored::Token, Scored::Match] {
                    let models: (Context<'_>, Context<'_>) =
                        (&|prefix| dist(&target.logits(prefix), &sampling), &|prefix| {
                            dist(&draft.logits(prefix), &sampling)
                        });
                    check(models, scored, gamma, None);
                }
            }
        }
    }
}

#[test]
fn residuals_and_acceptance_are_the_ones_worked_out_by_hand() {
    /// Target, draft, the acceptance of each token, and the residual.
    type Row<'a> = (&'a [f32], &'a [f32], &'a [f64], &'a [(u32, f64)]);
    let rows: [Row<'_>; 3] = [
        (&[4.0, 3.0, 2.0, 1.0], &[1.0, 2.0, 3.0, 4.0], &[1.0, 1.0, 2.0 / 3.0, 0.25], &[(0, 0.75), (1, 0.25)]),
        (&[6.0, 3.0, 1.0], &[2.0, 3.0, 5.0], &[1.0, 1.0, 0.2], &[(0, 1.0)]),
        // Nothing is left over where both are the same, and the target itself takes the place.
        (&[1.0, 3.0], &[1.0, 3.0], &[1.0, 1.0], &[(0, 0.25), (1, 0.75)]),
    ];
    for (target, draft, accept, rest) in rows {
        let (target, draft) = (dense(target), dense(draft));
        for (id, expected) in (0..).zip(accept) {
            assert!((accept_probability(&target, &draft, id) - expected).abs() < 1e-12);
        }
        let got: Vec<_> = residual(&target, &draft).collect();
        assert_eq!(got.len(), rest.len(), "{got:?}");
        for (got, expected) in got.iter().zip(rest) {
            assert!(got.0 == expected.0 && (got.1 - expected.1).abs() < 1e-12, "{got:?} {expected:?}");
        }
    }
}

#[test]
fn equal_distributions_accept_everything_and_disjoint_ones_nothing() {
    let (low, high) = (dense(&[1.0, 3.0, 0.0, 0.0]), dense(&[0.0, 0.0, 2.0, 5.0]));
    let sparse = Dist::sparse(vec![(0, 1.0), (1, 3.0)]);
    for request in 0..2000 {
        let (rng, k) = (Rng { seed: 3, request }, 1 + request as usize % 4);
        for (target, drawn, accepted) in [(&low, &low, k), (&low, &sparse, k), (&high, &low, 0), (&high, &sparse, 0)] {
            let tokens: Vec<u32> = (0..k).map(|i| drawn.sample(rng.uniform(9 + i, Use::Draft))).collect();
            let draft = Draft { tokens, dists: vec![drawn.clone(); k] };
            let got = verify(&draft, &vec![target.clone(); k + 1], rng, 9);
            assert_eq!(got.accepted, accepted);
            assert!(target.prob(got.next) > 0.0, "the last token is drawn from the target");
            assert_eq!(got.rejected(), accepted == 0);
        }
    }
    // With nothing in common the residual is the target, so that the one token has the target's law.
    assert!(residual(&high, &low).eq(high.support().filter(|&(_, p)| p > 0.0)));
}

/// A request and a position whose number for acceptance has these 64 bits before the cut to 53.
///
/// Philox is a bijection for each key: its ten rounds are walked back from the wanted output.
fn position_with(bits: u64, seed: u64) -> (Rng, usize) {
    const MULTIPLIER: u64 = 0xD2B7_4407_B1CE_6E93;
    const KEY_STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    // Newton's iteration doubles the correct bits of the inverse modulo 2^64 each time.
    let inverse = (0..6).fold(MULTIPLIER, |x, _| x.wrapping_mul(2u64.wrapping_sub(MULTIPLIER.wrapping_mul(x))));
    for second in 0.. {
        let mut counter = [bits, second];
        for round in (0..10).rev() {
            let key = seed.wrapping_add(KEY_STEP.wrapping_mul(round));
            let first = counter[1].wrapping_mul(inverse);
            let high = ((u128::from(first) * u128::from(MULTIPLIER)) >> 64) as u64;
            counter = [first, counter[0] ^ high ^ key];
        }
        if counter[0] & 3 == Use::Accept as u64 {
            return (Rng { seed, request: counter[1] }, (counter[0] >> 2) as usize);
        }
    }
    unreachable!("one counter in four has the wanted use")
}

#[test]
fn the_smallest_and_the_largest_random_number_decide_as_the_strict_rule_says() {
    let even = dense(&[1.0, 1.0, 0.0]);
    let (other, more) = (dense(&[0.0, 1.0, 1.0]), dense(&[3.0, 1.0, 0.0]));
    // Draft token 0 each time: target, draft, whether it stands at 0 and just below 1.
    let rows = [
        (&even, &even, true, true),
        (&more, &even, true, true),
        (&even, &more, true, false),
        // Impossible for the target: not even 0 accepts it.
        (&other, &even, false, false),
        // Impossible for the draft: a ratio of x / 0 or 0 / 0 accepts nothing.
        (&even, &other, false, false),
        (&other, &other, false, false),
    ];
    for (bits, largest) in [(0, false), (u64::MAX, true)] {
        let (rng, position) = position_with(bits, 99);
        let u = rng.uniform(position, Use::Accept);
        assert!(if largest { u > 1.0 - 1e-15 && u < 1.0 } else { u == 0.0 }, "{u}");
        for (target, drawn, at_smallest, at_largest) in rows {
            let draft = Draft { tokens: vec![0], dists: vec![drawn.clone()] };
            let got = verify(&draft, &[target.clone(), target.clone()], rng, position);
            assert_eq!(got.accepted == 1, if largest { at_largest } else { at_smallest }, "{target:?} {drawn:?} {u}");
            assert!(target.prob(got.next) > 0.0);
        }
    }
}

#[test]
fn no_draft_gives_one_token_and_a_certain_one_is_matched() {
    let rng = Rng { seed: 1, request: 2 };
    let point = |id| Dist::Point(id);
    /// Draft, target, and the verdict.
    type Row<'a> = (&'a [u32], &'a [u32], (usize, u32, usize));
    let rows: [Row<'_>; 5] = [
        (&[], &[4], (0, 4, 0)),
        (&[4], &[4, 5], (1, 5, 1)),
        (&[4, 5], &[4, 6, 7], (1, 6, 2)),
        (&[1, 2, 3], &[9, 2, 3, 4], (0, 9, 1)),
        (&[1, 2, 3], &[1, 2, 3, 4], (3, 4, 3)),
    ];
    for (draft, target, (accepted, next, evaluated)) in rows {
        let draft = Draft { tokens: draft.to_vec(), dists: draft.iter().copied().map(point).collect() };
        let target: Vec<Dist> = target.iter().copied().map(point).collect();
        assert_eq!(verify(&draft, &target, rng, 3), Verdict { accepted, next, evaluated });
    }
}

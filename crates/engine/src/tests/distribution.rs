//! The sampled output of the whole engine against the target's exact law, and mistakes that this check must catch.
//!
//! Bounds hold at a false alarm of 1e-9: chi-square with cells pooled to five expected counts, and
//! P(TV >= sqrt((V - 1) / N) / 2 + t) <= exp(-2 N t^2).

use std::collections::HashMap;

use anyhow::Result;
use specquant_core::{Dist, EventKind, Kv, Model, Request, Rng, Sampling, SeqId, Use, dist, pick};
use specquant_kv::Full;
use statrs::distribution::{ChiSquared, ContinuousCDF};

use super::rig::{Rig, ask, heat};
use crate::fake::{Fake, Rule};
use crate::{Ask, Draft, Proposer, Sequence, Verdict, accept_probability, residual, verify};

const VOCAB: usize = 8;
const LEN: usize = 5;
const N: u64 = 20_000;
const DEPTH: usize = 3;
const PROMPT: [u32; 2] = [5, 1];
const FALSE_ALARM: f64 = 1e-9;
const TARGET: Rule = Rule::Random { seed: 21, spread: 3.0 };
const DRAFT: Rule = Rule::Mixed { target: (21, 3.0), noise: 1.0 };

fn requests(sampling: Sampling) -> Vec<Request> {
    (0..N).map(|id| Request { sampling, ..ask(id, &PROMPT, LEN) }).collect()
}

fn fake(rule: Rule) -> Fake {
    Fake::new(rule, VOCAB, 64, 0)
}

/// Probabilities of the tokens at the place `at`, or of the pairs that end there, by their `cell`.
struct Law {
    at: usize,
    width: usize,
    cells: Vec<f64>,
}

/// The number of a token or a pair.
fn cell(tokens: &[u32]) -> usize {
    tokens.iter().fold(0, |cell, &id| cell * VOCAB + id as usize)
}

/// The target's law at each place behind the first token, in f64 from its logits.
fn law(temperature: f64) -> Vec<Law> {
    let target = fake(TARGET);
    let wide = |at, width: usize| Law { at, width, cells: vec![0.0; VOCAB.pow(width as u32)] };
    let mut laws: Vec<Law> = (1..LEN).flat_map(|at| [wide(at, 1), wide(at, 2)]).collect();
    let mut open = vec![(PROMPT.to_vec(), 1.0)];
    while let Some((tokens, mass)) = open.pop() {
        let at = tokens.len() - PROMPT.len();
        let logits = target.logits(&tokens);
        let weights: Vec<f64> = logits.iter().map(|&logit| (f64::from(logit) / temperature).exp()).collect();
        let total: f64 = weights.iter().sum();
        for (id, weight) in weights.iter().enumerate() {
            let mass: f64 = mass * weight / total;
            for law in laws.iter_mut().filter(|law| law.at == at) {
                law.cells[cell(&tokens[tokens.len() + 1 - law.width..]) * VOCAB + id] += mass;
            }
            if at + 1 < LEN {
                open.push(([tokens.as_slice(), &[id as u32]].concat(), mass));
            }
        }
    }
    laws
}

/// Complains if the outputs are not draws from the law.
fn check(outputs: &[Vec<u32>], laws: &[Law]) -> Result<(), String> {
    let n = outputs.len() as f64;
    for Law { at, width, cells } in laws {
        let mut counts = vec![0.0; cells.len()];
        outputs.iter().for_each(|output| counts[cell(&output[at + 1 - width..=*at])] += 1.0);
        let pairs: Vec<(f64, f64)> = counts.into_iter().zip(cells.iter().map(|p| p * n)).collect();
        let variation = pairs.iter().map(|(got, expected)| (got - expected).abs()).sum::<f64>() / (2.0 * n);
        let bound = variation_bound(pairs.len() as f64, n);
        if variation > bound {
            return Err(format!("place {at}, {width} wide: total variation {variation}, bound {bound}"));
        }
        let (statistic, freedom) = chi_square(&pairs);
        let bound = ChiSquared::new(freedom).unwrap().inverse_cdf(1.0 - FALSE_ALARM);
        if statistic > bound {
            return Err(format!("place {at}, {width} wide: chi-square {statistic}, bound {bound}"));
        }
    }
    Ok(())
}

/// What the total variation of `n` draws from their own law over `cells` cells stays below.
fn variation_bound(cells: f64, n: f64) -> f64 {
    ((cells - 1.0) / n).sqrt() / 2.0 + (-FALSE_ALARM.ln() / (2.0 * n)).sqrt()
}

/// The statistic and its degrees of freedom, over cells that expect five counts or more; the smaller ones are one cell.
fn chi_square(pairs: &[(f64, f64)]) -> (f64, f64) {
    let (small, mut cells): (Vec<_>, Vec<_>) = pairs.iter().copied().partition(|&(_, expected)| expected < 5.0);
    let rest = small.iter().fold((0.0, 0.0), |sum, cell| (sum.0 + cell.0, sum.1 + cell.1));
    match cells.last_mut() {
        Some(last) if rest.1 < 5.0 => *last = (last.0 + rest.0, last.1 + rest.1),
        _ => cells.push(rest),
    }
    let statistic = cells.iter().map(|(got, expected)| (got - expected).powi(2) / expected).sum();
    (statistic, (cells.len() - 1) as f64)
}

fn rig(depth: usize) -> Rig {
    let mut rig = Rig {
        target: TARGET,
        draft: Some(DRAFT),
        vocab: VOCAB,
        draft_vocab: VOCAB,
        context: 64,
        draft_context: 64,
        ..Rig::new(depth)
    };
    rig.policy.limit = 16;
    rig
}

/// The outputs of the engine.
fn generate(rig: &Rig, sampling: Sampling) -> Vec<Vec<u32>> {
    rig.run(&requests(sampling)).unwrap().outputs.into_iter().map(|output| output.tokens).collect()
}

#[test]
fn the_bounds_are_the_published_ones() {
    for (vocab, n, expected) in [(8.0, 20e3, 0.0321), (10.0, 100e3, 0.0149), (32.0, 4e3, 0.0949), (64.0, 100e3, 0.0227)]
    {
        let bound = variation_bound(vocab, n);
        assert!((bound - expected).abs() < 1e-4, "{bound} {expected}");
    }
    let (statistic, freedom) = chi_square(&[(8.0, 10.0), (12.0, 10.0), (3.0, 2.0), (1.0, 4.0)]);
    assert!((statistic - (0.4 + 0.4 + 4.0 / 6.0)).abs() < 1e-12 && freedom == 2.0, "{statistic} {freedom}");
}

#[test]
fn sampled_output_has_the_targets_law_at_temperature_0_7() {
    check(&generate(&rig(DEPTH), heat(0.7)), &law(f64::from(0.7f32))).unwrap();
}

#[test]
fn sampled_output_has_the_targets_law_at_temperature_1() {
    let rig = rig(DEPTH);
    let ran = rig.run(&requests(heat(1.0))).unwrap();
    // The check says little unless drafts are both accepted and rejected.
    let (drafted, accepted) = ran.drafts();
    assert!((0.2..0.8).contains(&(accepted as f64 / drafted as f64)), "{accepted} of {drafted}");
    let outputs: Vec<_> = ran.outputs.into_iter().map(|output| output.tokens).collect();
    check(&outputs, &law(1.0)).unwrap();
}

#[test]
fn sampled_output_keeps_its_law_where_a_full_pool_costs_drafts_and_places() {
    let tight = Rig { kv: Kv::Paged { block: 1 }, slots: 60, draft_slots: 50, ..rig(DEPTH) };
    let ran = tight.run(&requests(heat(1.0))).unwrap();
    assert!(ran.count(|kind| matches!(kind, EventKind::DraftSkipped { .. })) > 1000);
    assert!(ran.count(|kind| matches!(kind, EventKind::Preempted { .. })) > 1000);
    let outputs: Vec<_> = ran.outputs.into_iter().map(|output| output.tokens).collect();
    check(&outputs, &law(1.0)).unwrap();
}

#[test]
fn sampled_output_keeps_its_law_where_the_draft_knows_fewer_or_more_ids() {
    for draft_vocab in [VOCAB - 1, VOCAB + 3] {
        let ran = Rig { draft_vocab, ..rig(DEPTH) }.run(&requests(heat(1.0))).unwrap();
        assert!(ran.drafts().1 > 1000);
        let outputs: Vec<_> = ran.outputs.into_iter().map(|output| output.tokens).collect();
        check(&outputs, &law(1.0)).unwrap_or_else(|why| panic!("{draft_vocab}: {why}"));
    }
}

/// A judge of drafts: the real one, or one with a mistake.
type Verify = fn(&Draft, &[Dist], Rng, usize) -> Verdict;

/// A model's distribution after every history of this test.
type Table = HashMap<Vec<u32>, Dist>;

fn table(rule: Rule, sampling: &Sampling) -> Table {
    let (model, mut table, mut open) = (fake(rule), Table::new(), vec![PROMPT.to_vec()]);
    while let Some(tokens) = open.pop() {
        if tokens.len() + 1 < PROMPT.len() + LEN {
            open.extend((0..VOCAB as u32).map(|id| [tokens.as_slice(), &[id]].concat()));
        }
        let dist = dist(&model.logits(&tokens), sampling);
        table.insert(tokens, dist);
    }
    table
}

/// One request by the plainest loop around `verify`, without caches and batches.
fn generate_by(verify: Verify, models: &(Table, Table), request: &Request) -> Vec<u32> {
    let (mut tokens, rng) = (request.prompt.clone(), Rng { seed: request.seed, request: request.id });
    let end = tokens.len() + request.max_new_tokens;
    while tokens.len() < end {
        let start = tokens.len();
        let depth = if start == request.prompt.len() { 0 } else { DEPTH.min(end - start - 1) };
        let mut draft = Draft::default();
        let mut target = vec![models.0[&tokens].clone()];
        for i in 0..depth {
            let drawn_from = models.1[&tokens].clone();
            let token = drawn_from.sample(rng.uniform(start + i, Use::Draft));
            tokens.push(token);
            draft.tokens.push(token);
            draft.dists.push(drawn_from);
            target.push(models.0[&tokens].clone());
        }
        let verdict = verify(&draft, &target, rng, start);
        tokens.truncate(start + verdict.accepted);
        tokens.push(verdict.next);
    }
    tokens.split_off(request.prompt.len())
}

fn always_accepts(draft: &Draft, target: &[Dist], rng: Rng, position: usize) -> Verdict {
    let k = draft.tokens.len();
    Verdict { accepted: k, next: target[k].sample(rng.uniform(position + k, Use::Bonus)), evaluated: k }
}

fn replaces_from_the_plain_target(draft: &Draft, target: &[Dist], rng: Rng, position: usize) -> Verdict {
    let verdict = verify(draft, target, rng, position);
    let at = verdict.accepted;
    let next = target[at].sample(rng.uniform(position + at, Use::Residual));
    if verdict.rejected() { Verdict { next, ..verdict } } else { verdict }
}

fn looks_one_row_too_far(draft: &Draft, target: &[Dist], rng: Rng, position: usize) -> Verdict {
    let mut shifted = target.to_vec();
    shifted.rotate_left(1);
    verify(draft, &shifted, rng, position)
}

/// Accepts with the number that drew the token, which is no longer independent of it.
fn shares_one_random_number(draft: &Draft, target: &[Dist], rng: Rng, position: usize) -> Verdict {
    for (i, (&token, drawn_from)) in draft.tokens.iter().zip(&draft.dists).enumerate() {
        let u = rng.uniform(position + i, Use::Draft);
        if u >= accept_probability(&target[i], drawn_from, token) {
            let next = pick(residual(&target[i], drawn_from), rng.uniform(position + i, Use::Residual));
            return Verdict { accepted: i, next, evaluated: i + 1 };
        }
    }
    always_accepts(draft, target, rng, position)
}

#[test]
fn the_check_catches_each_wrong_way_to_verify() {
    let models = (table(TARGET, &heat(1.0)), table(DRAFT, &heat(1.0)));
    let (laws, requests) = (law(1.0), requests(heat(1.0)));
    let outputs = |verify: Verify, n: usize| -> Vec<Vec<u32>> {
        requests[..n].iter().map(|request| generate_by(verify, &models, request)).collect()
    };
    // The loop around the mutants is the engine's: with the real `verify` it gives the same tokens.
    let engine: Vec<_> = rig(DEPTH).run(&requests[..500]).unwrap().outputs;
    assert!(engine.iter().map(|output| &output.tokens).eq(&outputs(verify, 500)));
    let mutants: [(&str, Verify); 4] = [
        ("always accepts", always_accepts),
        ("no residual", replaces_from_the_plain_target),
        ("target index off by one", looks_one_row_too_far),
        ("draft and acceptance share a random number", shares_one_random_number),
    ];
    for (name, verify) in mutants {
        assert!(check(&outputs(verify, N as usize), &laws).is_err(), "{name} went unnoticed");
    }
}

/// Drafts the likeliest token of the draft model.
struct Likeliest {
    draft: Fake,
    /// Whether it claims, falsely, that the token was drawn from the softmax.
    pretends: bool,
}

impl Proposer for Likeliest {
    fn open(&mut self, _: &Sequence) -> Result<(), Full> {
        Ok(())
    }

    fn propose(&mut self, _: &mut dyn Model, asks: &[Ask<'_>]) -> Result<Vec<Draft>> {
        let propose = |ask: &Ask<'_>| {
            let (mut draft, mut tokens) = (Draft::default(), ask.tokens.to_vec());
            for _ in 0..ask.max {
                let logits = self.draft.logits(&tokens);
                let certain = dist(&logits, &Sampling::GREEDY);
                let token = certain.sample(0.0);
                tokens.push(token);
                draft.tokens.push(token);
                draft.dists.push(if self.pretends { dist(&logits, &ask.sampling) } else { certain });
            }
            draft
        };
        Ok(asks.iter().map(propose).collect())
    }

    fn keep(&mut self, _: &Sequence) {}

    fn close(&mut self, _: SeqId) {}
}

#[test]
fn a_certain_draft_keeps_the_law_and_one_scored_with_its_softmax_breaks_it() {
    let laws = law(1.0);
    let honest = Rig { wrap_draft: |_| Box::new(Likeliest { draft: fake(DRAFT), pretends: false }), ..rig(DEPTH) };
    check(&generate(&honest, heat(1.0)), &laws).unwrap();
    let pretending = Rig { wrap_draft: |_| Box::new(Likeliest { draft: fake(DRAFT), pretends: true }), ..rig(DEPTH) };
    assert!(check(&generate(&pretending, heat(1.0)), &laws).is_err(), "the wrong score went unnoticed");
}

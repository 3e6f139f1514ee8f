//! Sampled requests and batches: a request's output depends on its own prompt, sampling and seed alone.
//!
//! Neighbours come, go, and differ in sampling, length and draft depth without a trace in the output.

use anyhow::Result;
use specquant_core::{Kv, Model, Request, Sampling, SeqId, dist};
use specquant_kv::Full;

use super::rig::{DRAFT, Rig, TARGET, ask, asks, finish, heat};
use crate::fake::Fake;
use crate::{Ask, Draft, DraftModel, Output, Proposer, Sequence};

/// The request that is watched.
fn watched(sampling: Sampling) -> Request {
    Request { sampling, seed: 4242, ..ask(77_777, &[4, 8, 15, 16, 23], 24) }
}

/// Neighbours that differ from one repeat to the next, in prompt, length, sampling and seed.
fn neighbours(n: u64, repeat: u64) -> Vec<Request> {
    let change = |request: Request| {
        let id = request.id + 100 * repeat;
        let temperature = [0.0, 0.6, 1.3][(id % 3) as usize];
        let max_new_tokens = 1 + (7 * id % 40) as usize;
        let prompt = request.prompt.iter().map(|token| (token + repeat as u32) % 27).collect();
        Request { id, prompt, max_new_tokens, sampling: heat(temperature), seed: id, ..request }
    };
    asks(n, 1).into_iter().map(change).collect()
}

/// Runs the watched request among neighbours, one of which is withdrawn on the way.
fn among(rig: &Rig, request: &Request, n: u64, repeat: u64) -> Output {
    let mut requests = neighbours(n, repeat);
    requests.insert((repeat % (n + 1)) as usize, request.clone());
    rig.start(|engine, _| {
        requests.iter().for_each(|request| engine.submit(request.clone()));
        let mut outputs = Vec::new();
        (0..3).for_each(|_| outputs.extend(engine.step().unwrap()));
        engine.abort(100 * repeat + repeat % 3);
        outputs.extend(finish(engine).unwrap().outputs);
        outputs.into_iter().find(|output| output.request == request.id).unwrap()
    })
}

fn check(rig: &Rig, sampling: Sampling) {
    let request = watched(sampling);
    let alone = rig.alone(&request);
    assert_eq!(alone, rig.alone(&request), "a second run");
    for repeat in 0..20 {
        for batch in [1, 4, 8] {
            let rig = Rig { policy: crate::Policy { limit: batch, ..rig.policy }, ..rig.clone() };
            assert_eq!(among(&rig, &request, batch as u64 - 1, repeat), alone, "batch {batch}, repeat {repeat}");
        }
    }
}

#[test]
fn a_sampled_request_gives_the_same_output_in_any_company() {
    let wide = Rig { draft: Some(DRAFT), ..Rig::new(3) };
    check(&wide.plain(), heat(0.9));
    check(&wide, heat(0.9));
    check(&Rig { kv: Kv::Contiguous, ..wide.clone() }, Sampling { top_p: 0.9, ..heat(1.2) });
    check(&wide, Sampling::GREEDY);
}

#[test]
fn the_seed_the_request_and_the_temperature_change_a_sampled_output() {
    let rig = Rig::new(3);
    let request = watched(heat(1.0));
    let alone = rig.alone(&request).tokens;
    for other in [
        Request { seed: 4243, ..request.clone() },
        Request { id: 77_778, ..request.clone() },
        Request { sampling: heat(3.0), ..request.clone() },
    ] {
        assert_ne!(rig.alone(&other).tokens, alone);
    }
}

#[test]
fn sampled_output_does_not_depend_on_how_the_prompt_is_cut() {
    let prompt: Vec<u32> = (0..90).map(|i| i * i % 26 + 1).collect();
    let request = Request { sampling: heat(0.8), ..ask(3, &prompt, 20) };
    let outputs = [1, 7, 64, usize::MAX].map(|chunk| {
        let mut rig = Rig::new(3);
        rig.policy.chunk = chunk;
        rig.alone(&request)
    });
    assert!(outputs.windows(2).all(|pair| pair[0] == pair[1]));
}

/// Gives each request its own draft depth, none among them.
struct Ragged<'a>(DraftModel<'a>);

impl Proposer for Ragged<'_> {
    fn open(&mut self, seq: &Sequence) -> Result<(), Full> {
        self.0.open(seq)
    }

    fn propose(&mut self, target: &mut dyn Model, asks: &[Ask<'_>]) -> Result<Vec<Draft>> {
        let asks: Vec<Ask<'_>> =
            asks.iter().map(|ask| Ask { max: ask.max.min(ask.rng.request as usize % 4), ..*ask }).collect();
        self.0.propose(target, &asks)
    }

    fn keep(&mut self, seq: &Sequence) {
        self.0.keep(seq);
    }

    fn close(&mut self, seq: SeqId) {
        self.0.close(seq);
    }
}

#[test]
fn requests_of_different_depth_sampling_and_length_do_not_touch_each_other() {
    let rig = Rig { wrap_draft: |draft| Box::new(Ragged(draft)), ..Rig::new(3) };
    let mut requests = neighbours(8, 1);
    requests.iter_mut().for_each(|request| request.max_new_tokens += 10);
    let ran = rig.run(&requests).unwrap();
    for (request, got) in requests.iter().zip(&ran.outputs) {
        assert_eq!(*got, rig.alone(request), "request {}", request.id);
        let depth = request.id as usize % 4;
        assert_eq!(ran.emissions(request.id).iter().map(|emission| emission.1).max(), Some(depth));
        if request.sampling.is_greedy() {
            assert_eq!(*got, rig.plain().alone(request));
        }
        if depth == 0 {
            // Without a draft every token is a draw from the target, as in plain decoding.
            assert_eq!(*got, rig.plain().alone(request));
        }
    }
}

/// A proposer that checks each draft against the draft model's own distributions.
struct Audited<'a>(DraftModel<'a>);

impl Proposer for Audited<'_> {
    fn open(&mut self, seq: &Sequence) -> Result<(), Full> {
        self.0.open(seq)
    }

    fn propose(&mut self, target: &mut dyn Model, asks: &[Ask<'_>]) -> Result<Vec<Draft>> {
        let (drafts, model) = (self.0.propose(target, asks)?, Fake::new(DRAFT, 27, 256, 0));
        for (ask, draft) in asks.iter().zip(&drafts) {
            for (i, (token, drawn_from)) in draft.tokens.iter().zip(&draft.dists).enumerate() {
                let history = [ask.tokens, &draft.tokens[..i]].concat();
                assert_eq!(*drawn_from, dist(&model.logits(&history), &ask.sampling), "draft token {i}");
                assert!(drawn_from.prob(*token) > 0.0, "a draft token comes from its distribution");
            }
        }
        Ok(drafts)
    }

    fn keep(&mut self, seq: &Sequence) {
        self.0.keep(seq);
    }

    fn close(&mut self, seq: SeqId) {
        self.0.close(seq);
    }
}

/// The tokens that the filters of `sampling` leave, by their definitions: ranks and sums of probabilities.
fn allowed(logits: &[f32], sampling: &Sampling) -> Vec<u32> {
    let mut ranked: Vec<(u32, f64)> = (0..)
        .zip(logits)
        .map(|(id, &logit)| (id, (f64::from(logit) / f64::from(sampling.temperature)).exp()))
        .collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked.truncate(if sampling.top_k == 0 { ranked.len() } else { sampling.top_k });
    let total: f64 = ranked.iter().map(|token| token.1).sum();
    let (best, mut sum) = (ranked[0].1, 0.0);
    let enough = |token: &&(u32, f64)| {
        let wanted = sum < f64::from(sampling.top_p) * total;
        sum += token.1;
        wanted && token.1 >= f64::from(sampling.min_p) * best
    };
    ranked.iter().take_while(enough).map(|token| token.0).collect()
}

#[test]
fn every_token_lies_in_the_targets_filtered_set() {
    let target = Fake::new(TARGET, 27, 256, 0);
    let rig = Rig { wrap_draft: |draft| Box::new(Audited(draft)), ..Rig::new(4) };
    let hot = heat(2.5);
    let rows = [
        Sampling { top_k: 1, ..hot },
        Sampling { top_k: 5, ..hot },
        Sampling { top_k: 99, ..hot },
        Sampling { top_p: 0.5, ..hot },
        Sampling { top_p: 0.9, ..hot },
        Sampling { top_p: 0.99, ..hot },
        Sampling { min_p: 0.4, ..hot },
        Sampling { top_k: 6, top_p: 0.8, min_p: 0.1, ..hot },
    ];
    for sampling in rows {
        let requests: Vec<Request> = asks(8, 40).into_iter().map(|request| Request { sampling, ..request }).collect();
        let ran = rig.run(&requests).unwrap();
        let (drafted, accepted) = ran.drafts();
        assert!(0 < accepted && accepted < drafted, "bonus, accepted and replaced tokens all occur");
        for (request, output) in requests.iter().zip(&ran.outputs) {
            let mut tokens = request.prompt.clone();
            for &token in &output.tokens {
                let set = allowed(&target.logits(&tokens), &sampling);
                assert!(set.contains(&token), "{sampling:?}: {token} is not among {set:?}");
                tokens.push(token);
            }
        }
    }
}

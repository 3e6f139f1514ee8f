//! The bundled pair against its published facts: perplexity, agreement of draft and target, acceptance.
//!
//! The facts were made with an independent implementation in f32 and stand in `models/data/golden.json`.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use serde_json::Value;
use specquant_core::{Batch, KvDtype, Model, Quantizer, Request, Run, Sampling, Score, Scores, Text, WeightFormat};
use specquant_engine::{
    Arrivals, Chunks, DraftModel, Engine, NoDraft, Output, Parts, Policy, Proposer, Wall, drive, perplexity,
};
use specquant_kernels::{Isa, Team};
use specquant_kv::{Paged, allocator};
use specquant_metrics::Pass;
use specquant_model::{LoadOptions, bundled, load};

/// The pair's context, and so the longest that a sequence can be.
const SLOTS: usize = 512;

fn model(role: &str) -> Box<dyn Model> {
    let team = Team::new(2, Isa::detect()).unwrap();
    let options = LoadOptions {
        weights: WeightFormat::F32,
        quantizer: Quantizer::Mse,
        kv_dtype: KvDtype::F32,
        kv_slots: SLOTS,
        team,
    };
    load(&bundled(role).unwrap(), &options).unwrap()
}

fn golden() -> Value {
    serde_json::from_str(include_str!("../../../models/data/golden.json")).unwrap()
}

/// All bundled prompts, continued by 64 tokens whatever comes.
fn requests() -> Vec<Request> {
    let text = bundled("target").unwrap().tokenizer().unwrap();
    let prompts = specquant_workload::bundled().unwrap();
    let request = |(id, prompt): (u64, &specquant_workload::Prompt)| Request {
        id,
        arrival: 0,
        prompt: text.encode(&prompt.text).unwrap(),
        max_new_tokens: 64,
        ignore_eos: true,
        stop: Vec::new(),
        sampling: Sampling::GREEDY,
        seed: 0,
    };
    (0..).zip(&prompts).map(request).collect()
}

fn generate(depth: usize) -> (Vec<Output>, Pass) {
    let (mut target, mut draft) = (model("target"), model("draft"));
    let text = bundled("target").unwrap().tokenizer().unwrap();
    let proposer: Box<dyn Proposer + '_> = match depth {
        0 => Box::new(NoDraft),
        _ => Box::new(DraftModel::new(&mut *draft, allocator(specquant_core::Kv::Contiguous, SLOTS))),
    };
    let (kv, clock) = (Box::new(Paged::new(SLOTS, 16)), Wall::start());
    let parts = Parts { target: &mut *target, kv, proposer, text: &text, clock: &clock };
    let mut engine = Engine::new(parts, Policy { limit: 1, wait: None, chunk: SLOTS, depth });
    let outputs = drive(&mut engine, requests(), Arrivals::Closed { users: 1 }, &|| false).unwrap().unwrap();
    (outputs, Pass::of(&engine.take_events()))
}

/// How many of the target's own greedy tokens the draft would have chosen in their place.
fn agreement(outputs: &[Output]) -> usize {
    let mut draft = model("draft");
    let slots: Vec<u32> = (0..SLOTS as u32).collect();
    let mut agreed = 0;
    for (request, output) in requests().iter().zip(outputs) {
        let tokens = [&request.prompt[..], &output.tokens[..63]].concat();
        let score = Score::Greedy { rows: 64 };
        let run = Run { seq: 0, tokens: &tokens, start: 0, slots: &slots[..tokens.len()], score };
        let scores = draft.forward(&Batch { runs: vec![run] }).unwrap();
        let Scores::Greedy(rows) = &scores[0] else { panic!("{scores:?}") };
        agreed += rows.iter().zip(&output.tokens).filter(|(row, token)| row.id == **token).count();
    }
    agreed
}

#[test]
fn perplexity_is_the_golden_one_to_five_digits() {
    let golden = golden();
    let text = bundled("target").unwrap().tokenizer().unwrap();
    let ids = text.encode(specquant_workload::eval_text()).unwrap();
    for role in ["target", "draft"] {
        let expected = &golden[format!("{role}_perplexity")];
        let got = perplexity(&mut *model(role), Chunks { ids: &ids, before: &[], size: 512 }).unwrap();
        assert_eq!(got.scored_tokens as u64, expected["scored_tokens"].as_u64().unwrap());
        let value = expected["value"].as_f64().unwrap();
        assert!((got.value / value - 1.0).abs() < 0.5e-5, "{role}: {} instead of {value}", got.value);
    }
}

#[test]
fn a_token_that_begins_every_chunk_gives_the_perplexity_of_the_definition() {
    let golden: Value = serde_json::from_str(include_str!("../../../models/data/begin.json")).unwrap();
    let golden = &golden["perplexity"];
    let [size, chunks] = ["chunk", "chunks"].map(|key| golden[key].as_u64().unwrap() as usize);
    let text = bundled("target").unwrap().tokenizer().unwrap();
    let mut ids = text.encode(specquant_workload::eval_text()).unwrap();
    let mut check = |before: &[u32], expected: &str| {
        ids.truncate(size * chunks - before.len());
        let got = perplexity(&mut *model("target"), Chunks { ids: &ids, before, size }).unwrap();
        let expected = golden[expected].as_f64().unwrap();
        assert!((got.value / expected - 1.0).abs() < 1e-5, "{} instead of {expected}", got.value);
    };
    check(&[], "without");
    check(&[0], "with");
}

#[test]
fn acceptance_agrees_with_the_facts_of_the_pair() {
    let (plain, _) = generate(0);
    let (speculative, pass) = generate(4);
    assert_eq!(plain, speculative);
    let facts = &golden()["pair"]["all"];
    let (tokens, share) = (facts["tokens"].as_u64().unwrap(), facts["greedy_argmax_agreement"].as_f64().unwrap());
    assert_eq!(tokens as usize, plain.iter().map(|output| output.tokens.len()).sum::<usize>());
    // Near ties may fall otherwise than in the golden run: a handful of 6,144.
    let expected = (tokens as f64 * share).round() as i64;
    let agreed = agreement(&plain) as i64;
    assert!((agreed - expected).abs() <= 6, "{agreed} tokens agree instead of {expected}");
    // Evaluated-only acceptance samples the same agreement, at the places that drafts get to.
    let rates = pass.acceptance.rates();
    let alpha = rates.evaluated_acceptance.unwrap();
    assert!((alpha - share).abs() < 0.02, "alpha {alpha}, agreement {share}");
    assert!((rates.tau - 2.6).abs() < 0.1, "tau {}", rates.tau);
    println!("agreement {agreed}/{tokens}, alpha {alpha:.4}, tau {:.3}, {rates:?}", rates.tau);
}

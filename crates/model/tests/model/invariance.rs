//! A sequence's logits have the same bits however its tokens are split into steps, whatever else is in the batch,
//! wherever its keys are, and on any number of threads.

use safetensors::Dtype;
use specquant_core::{Batch, KvDtype, Model, Quantizer, Run, Score, Scores, SlotCopy, WeightFormat};
use specquant_kernels::{Isa, Team};
use specquant_model::{LoadOptions, ModelFiles, bundled, load};

use crate::runs::{SLOTS, in_chunks, step};
use crate::tiny::{TINY, Tiny, VOCAB, model, tokens};

const FORMATS: [WeightFormat; 3] = [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16];

/// Slots that are neither in order nor side by side.
fn scattered(n: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 389 + 7) % SLOTS) as u32).collect()
}

/// The logits of `tokens` while five other sequences are prefilled and decoded in the same steps.
fn in_company(model: &mut dyn Model, tokens: &[u32], chunk: usize) -> Vec<Vec<f32>> {
    let slots = scattered(SLOTS);
    let (own, others) = slots.split_at(tokens.len());
    let mut rows = Vec::new();
    for (i, new) in tokens.chunks(chunk).enumerate() {
        let start = i * chunk;
        let mut runs: Vec<Run<'_>> = (0..5)
            .map(|other| {
                // The others take steps of other lengths, from 1 to 5.
                let (each, slots) = (1 + (other + i) % 5, &others[other * 100..]);
                let score = if other % 2 == 0 { Score::Nothing } else { Score::Greedy { rows: 1 } };
                Run { seq: other as u64, tokens: &tokens[..each], start: 0, slots: &slots[..each], score }
            })
            .collect();
        let score = Score::Logits { rows: new.len() };
        runs.insert(i % 5, Run { seq: 9, tokens: new, start, slots: &own[..start + new.len()], score });
        match model.forward(&Batch { runs }).unwrap().swap_remove(i % 5) {
            Scores::Logits(new) => rows.extend(new),
            Scores::Greedy(_) => panic!("logits were asked for"),
        }
    }
    rows
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|x| x.to_bits()).collect()
}

fn check(files: &ModelFiles, tokens: &[u32], isa: Isa, weights: WeightFormat, kv_dtype: KvDtype) {
    let mut expected: Option<Vec<u32>> = None;
    let in_order: Vec<u32> = (0..tokens.len() as u32).collect();
    for threads in [1, 2] {
        let team = Team::new(threads, isa).unwrap();
        let mut model =
            load(files, &LoadOptions { weights, quantizer: Quantizer::Mse, kv_dtype, kv_slots: SLOTS, team }).unwrap();
        let model = &mut *model;
        for (name, rows) in [
            ("whole", in_chunks(model, tokens, tokens.len(), &in_order)),
            ("one by one", in_chunks(model, tokens, 1, &in_order)),
            ("chunks of 7", in_chunks(model, tokens, 7, &in_order)),
            ("scattered, whole", in_chunks(model, tokens, tokens.len(), &scattered(tokens.len()))),
            ("scattered, chunks of 5", in_chunks(model, tokens, 5, &scattered(tokens.len()))),
            ("in company, one by one", in_company(model, tokens, 1)),
            ("in company, chunks of 20", in_company(model, tokens, 20)),
        ] {
            assert_eq!(rows.len(), tokens.len());
            let expected = expected.get_or_insert_with(|| bits(&rows));
            assert!(*expected == bits(&rows), "{isa} {weights} kv {kv_dtype}, {threads} threads, {name}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_how_steps_are_made_up() {
    let tiny = model(Tiny { dtype: Dtype::BF16, head_dim: 6, tied: false, ..TINY }.files());
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for weights in FORMATS {
            for kv_dtype in [KvDtype::F32, KvDtype::F16] {
                check(&tiny, &tokens(100, VOCAB), isa, weights, kv_dtype);
            }
        }
    }
    let target = bundled("target").unwrap();
    for (weights, kv_dtype) in
        [(WeightFormat::F32, KvDtype::F32), (WeightFormat::F16, KvDtype::F16), (WeightFormat::F32, KvDtype::F16)]
    {
        check(&target, &tokens(90, 4096), Isa::detect(), weights, kv_dtype);
    }
}

/// Logits of the last of `tokens` when the others were run in slots `0..` and then `slots` is read.
fn last(model: &mut dyn Model, tokens: &[u32], copies: &[SlotCopy], slots: &[u32]) -> Vec<u32> {
    let (last, first) = tokens.split_last().unwrap();
    let in_order: Vec<u32> = (0..tokens.len() as u32).collect();
    in_chunks(model, first, first.len(), &in_order);
    model.copy_kv(copies).unwrap();
    bits(&step(model, &[*last], first.len(), slots))
}

#[test]
fn copied_slots_hold_the_same_keys_and_values() {
    let files = model(TINY.files());
    let tokens = tokens(30, VOCAB);
    let in_order: Vec<u32> = (0..30).collect();
    let moved: Vec<u32> = (100..130).rev().collect();
    for kv_dtype in [KvDtype::F32, KvDtype::F16] {
        let team = Team::new(2, Isa::detect()).unwrap();
        let options =
            LoadOptions { weights: WeightFormat::F16, quantizer: Quantizer::Mse, kv_dtype, kv_slots: 256, team };
        let mut model = load(&files, &options).unwrap();
        let expected = last(&mut *model, &tokens, &[], &in_order);
        let copies: Vec<_> = in_order.iter().zip(&moved).map(|(&from, &to)| SlotCopy { from, to }).collect();
        // Control: without its copies, the sequence reads what is not there.
        assert_ne!(last(&mut *model, &tokens, &[], &moved), expected);
        assert_ne!(last(&mut *model, &tokens, &copies[1..], &moved), expected);
        assert_eq!(last(&mut *model, &tokens, &copies, &moved), expected);
    }
}

#[test]
fn the_best_token_is_that_of_the_logits() {
    let mut model = load(
        &bundled("draft").unwrap(),
        &LoadOptions {
            weights: WeightFormat::F16,
            quantizer: Quantizer::Mse,
            kv_dtype: KvDtype::F16,
            kv_slots: 64,
            team: Team::new(2, Isa::detect()).unwrap(),
        },
    )
    .unwrap();
    let (tokens, slots) = (tokens(40, 4096), (0..40).collect::<Vec<u32>>());
    let logits = in_chunks(&mut *model, &tokens, 40, &slots);
    for rows in [1, 3, 40] {
        let run = Run { seq: 0, tokens: &tokens, start: 0, slots: &slots, score: Score::Greedy { rows } };
        let scores = model.forward(&Batch { runs: vec![run] }).unwrap();
        let expected = logits[40 - rows..].iter().map(|row| specquant_core::greedy(row)).collect();
        assert_eq!(scores, [Scores::Greedy(expected)]);
    }
    assert_eq!(model.forward(&Batch::default()).unwrap(), []);
}

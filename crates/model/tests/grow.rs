//! An enlarged model answers as the one it comes from: to the bit where heads keep their width and the residual's grows by a
//! power of four, else nearly.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use specquant_core::{Batch, KvDtype, Quantizer, Run, Score, Scores, WeightFormat, greedy};
use specquant_kernels::{Isa, Team};
use specquant_model::{LoadOptions, ModelFiles, Shape, bundled, grow, load};

/// The logits of all rows of some tokens.
fn logits(files: &ModelFiles, weights: WeightFormat) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = (0..48).map(|at| 17 + at * 37 % 3000).collect();
    let slots: Vec<u32> = (0..48).collect();
    let team = Team::new(2, Isa::detect()).unwrap();
    let options = LoadOptions { weights, quantizer: Quantizer::Mse, kv_dtype: KvDtype::F32, kv_slots: 48, team };
    let run = Run { seq: 0, tokens: &tokens, start: 0, slots: &slots, score: Score::Logits { rows: 48 } };
    let scores = load(files, &options).unwrap().forward(&Batch { runs: vec![run] }).unwrap();
    let Some(Scores::Logits(rows)) = scores.into_iter().next() else { panic!("no logits") };
    rows
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|logit| logit.to_bits()).collect()
}

/// The bundled draft, grown by a change of its shape into a folder.
fn grown(folder: &Path, seed: u64, change: impl Fn(Shape) -> Shape) -> anyhow::Result<ModelFiles> {
    let files = bundled("draft").unwrap();
    let shape = change(Shape::of(&files.config().unwrap()));
    grow(&files, &shape, seed, folder, &mut |_, _| ())?;
    ModelFiles::folder(folder)
}

#[test]
fn powers_of_four_keep_every_bit() {
    let folder = tempfile::tempdir().unwrap();
    let large = grown(folder.path(), 3, |old| Shape {
        hidden: 4 * old.hidden,
        layers: old.layers + 1,
        heads: 3 * old.heads,
        kv_heads: 3 * old.kv_heads,
        intermediate: old.intermediate + 96,
        ..old
    })
    .unwrap();
    let small = bundled("draft").unwrap();
    for format in ["f32", "f16", "int8:g32", "int4-a8:g32"] {
        let format = format.parse().unwrap();
        assert_eq!(bits(&logits(&small, format)), bits(&logits(&large, format)), "{format}");
    }
    // Another epsilon is another function.
    let config = folder.path().join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let at = text.find("\"rms_norm_eps\": ").unwrap() + 16;
    let end = at + text[at..].find(',').unwrap();
    fs::write(&config, format!("{}1e-4{}", &text[..at], &text[end..])).unwrap();
    assert_ne!(bits(&logits(&small, WeightFormat::F32)), bits(&logits(&large, WeightFormat::F32)));
}

#[test]
fn other_ratios_keep_the_likeliest_tokens() {
    let check = |change: &dyn Fn(Shape) -> Shape| {
        let folder = tempfile::tempdir().unwrap();
        let large = grown(folder.path(), 0, change).unwrap();
        let (small, large) = (logits(&bundled("draft").unwrap(), WeightFormat::F32), logits(&large, WeightFormat::F32));
        for (a, b) in small.iter().zip(&large) {
            assert_eq!(greedy(a).id, greedy(b).id);
            let most = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(most < 2e-4, "off by {most}");
        }
    };
    check(&|old| Shape { hidden: 3 * old.hidden, ..old });
    check(&|old| Shape { head_dim: 2 * old.head_dim, ..old });
    check(&|old| Shape { head_dim: 4 * old.head_dim, ..old });
    // A key head for every query head.
    check(&|old| Shape { kv_heads: old.heads, ..old });
    check(&|old| old.like("110m").unwrap());
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let bytes = |seed| {
        let folder = tempfile::tempdir().unwrap();
        grown(folder.path(), seed, |old| Shape { layers: old.layers + 1, heads: 2 * old.heads, ..old }).unwrap();
        fs::read(folder.path().join("model.safetensors")).unwrap()
    };
    let first = bytes(1);
    assert!(first == bytes(1));
    assert!(first != bytes(2));
}

#[test]
fn what_cannot_grow_is_refused_and_leaves_nothing() {
    let check = |change: &dyn Fn(Shape) -> Shape, expected: &str| {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("new");
        assert_eq!(grown(&place, 0, change).unwrap_err().to_string(), expected);
        assert!(!place.exists());
    };
    let old = Shape::of(&bundled("draft").unwrap().config().unwrap());
    let small = old.hidden - 1;
    let shrink = format!("--hidden {small}: a model with {} cannot shrink; give at least {}", old.hidden, old.hidden);
    check(&|old| Shape { hidden: old.hidden - 1, ..old }, &shrink);
    let dim = old.head_dim + 2;
    check(
        &|old| Shape { head_dim: old.head_dim + 2, ..old },
        &format!("--head-dim {dim}: give a multiple of {}", old.head_dim),
    );
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine"), "kept").unwrap();
    let error = grown(folder.path(), 0, |old| old).unwrap_err().to_string();
    assert!(error.ends_with("is not empty; give a new folder"), "{error}");
    assert_eq!(fs::read_to_string(folder.path().join("mine")).unwrap(), "kept");
    let error = old.like("7b").unwrap_err().to_string();
    assert_eq!(error, "--like 7b: is none of 110m, 350m, 1b, 3b, 13b");
}

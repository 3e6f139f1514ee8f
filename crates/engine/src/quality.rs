//! Models over a text: the logits from which quality is computed, of several models at the same places.

use anyhow::{Result, ensure};
use specquant_core::{Batch, KvDtype, Model, ModelInfo, Run, Score, Scores, WeightFormat};
use specquant_metrics::{Likelihood, Perplexity, Predictions};

/// What one chunk of a text gave.
pub struct Chunk<'a> {
    /// By model, what it predicts in the chunk's second half.
    pub predicted: Vec<Predictions>,
    /// The token that followed each prediction.
    pub next: &'a [u32],
}

/// A text in tokens, to be cut into chunks.
#[derive(Clone, Copy, Debug)]
pub struct Chunks<'a> {
    /// The tokens of the text alone.
    pub ids: &'a [u32],
    /// What stands before every text, such as the token that begins one: it takes the place of each chunk's first tokens.
    pub before: &'a [u32],
    /// Tokens of a chunk.
    pub size: usize,
}

impl Chunks<'_> {
    /// The chunks. The text as it is fed to the model, with what stands before it, is cut, and what stands before it begins
    /// every piece, as in llama-perplexity.
    fn all(&self) -> Vec<Vec<u32>> {
        let spelled = self.ids.starts_with(self.before);
        let text = if spelled { self.ids.to_vec() } else { [self.before, self.ids].concat() };
        let begun = |piece: &[u32]| [self.before, &piece[self.before.len()..]].concat();
        text.chunks_exact(self.size).map(begun).collect()
    }
}

/// Runs models over a text, chunk by chunk, and hands over what each predicts in the second half of every chunk, as
/// [`Perplexity`] describes.
///
/// # Errors
/// A chunk that is longer than a model's context or KV cache, a text shorter than a chunk, a model that fails, logits that
/// are not finite.
pub fn study(
    models: &mut [&mut dyn Model],
    text: Chunks<'_>,
    take: &mut dyn FnMut(Chunk<'_>) -> Result<()>,
) -> Result<()> {
    let chunk = text.size;
    for model in &*models {
        let info = model.info();
        let most = info.context.min(info.kv_slots);
        ensure!((4..=most).contains(&chunk), "--chunk {chunk}: must lie in 4..={most}, the context of {}", info.name);
    }
    let (tokens, before) = (text.before.len() + text.ids.len(), text.before.len());
    ensure!(tokens >= chunk, "the text has {tokens} tokens and one chunk needs {chunk}: give a longer text");
    ensure!(
        before <= chunk / 2,
        "--chunk {chunk}: half of it must hold the {before} tokens that stand before every text"
    );
    for ids in text.all() {
        let predicted = models.iter_mut().map(|model| second_half(&mut **model, &ids)).collect::<Result<_>>()?;
        take(Chunk { predicted, next: &ids[chunk - scored(chunk)..] })?;
    }
    Ok(())
}

/// Perplexity of a text in chunks of at most the model's context and its KV slots.
///
/// # Errors
/// As for [`study`].
pub fn perplexity(model: &mut dyn Model, text: Chunks<'_>) -> Result<Perplexity> {
    let mut likelihood = Likelihood::default();
    study(&mut [model], text, &mut |chunk| {
        likelihood.add(&chunk.predicted[0], chunk.next);
        Ok(())
    })?;
    Ok(likelihood.perplexity(text.size))
}

/// Runs a few tokens and looks at every logit: weights that are damaged or overflow show at once.
///
/// # Errors
/// When a logit is infinite or not a number, or the model fails.
pub fn finite(model: &mut dyn Model) -> Result<()> {
    let tokens: Vec<u32> = (0..model.info().kv_slots.min(4) as u32).map(|id| id % model.info().vocab as u32).collect();
    let slots: Vec<u32> = (0..tokens.len() as u32).collect();
    let score = Score::Logits { rows: tokens.len() };
    let run = Run { seq: 0, tokens: &tokens, start: 0, slots: &slots, score };
    let scores = model.forward(&Batch { runs: vec![run] })?;
    let info = model.info();
    for scores in scores {
        let Scores::Logits(rows) = scores else { continue };
        let wrong = rows.iter().flatten().find(|logit| !logit.is_finite());
        ensure!(
            wrong.is_none(),
            "{} in {}: its first logits hold {}: {}",
            info.name,
            info.weights,
            wrong.unwrap_or(&f32::NAN),
            overflow(info)
        );
    }
    Ok(())
}

/// Why logits may not be finite, and what to try.
pub(crate) fn overflow(info: &ModelInfo) -> &'static str {
    match (info.kv_dtype, info.weights) {
        (KvDtype::F16, _) => {
            "keys or values may be too large for a KV cache in f16: try --kv-dtype f32; or its weights are damaged"
        }
        (KvDtype::F32, WeightFormat::F32) => "its weights are damaged",
        (KvDtype::F32, _) => "its weights are damaged, or too large for this format: try --weights f32",
    }
}

/// Rows that a chunk scores: its last token is predicted but never run, and the first row is the middle one.
fn scored(chunk: usize) -> usize {
    chunk - 1 - chunk / 2
}

fn second_half(model: &mut dyn Model, ids: &[u32]) -> Result<Predictions> {
    let (tokens, score) = (&ids[..ids.len() - 1], Score::Logits { rows: scored(ids.len()) });
    let slots: Vec<u32> = (0..tokens.len() as u32).collect();
    let run = Run { seq: 0, tokens, start: 0, slots: &slots, score };
    let scores = model.forward(&Batch { runs: vec![run] })?;
    let rows = scores.into_iter().find_map(|scores| if let Scores::Logits(rows) = scores { Some(rows) } else { None });
    let (rows, info) = (rows.unwrap_or_default(), model.info());
    // The likeliest token of a row would hide the others.
    ensure!(
        rows.iter().flatten().all(|logit| logit.is_finite()),
        "{} in {}: its logits over the text are not finite: {}",
        info.name,
        info.weights,
        overflow(info)
    );
    Ok(rows.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, Rule};

    fn chunks(ids: &[u32], size: usize) -> Chunks<'_> {
        Chunks { ids, before: &[], size }
    }

    #[test]
    fn what_stands_before_a_text_begins_every_chunk() {
        let ids: Vec<u32> = (0..10).collect();
        let chunks = |before, size| Chunks { ids: &ids, before, size };
        assert_eq!(chunks(&[], 4).all(), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        assert_eq!(chunks(&[99], 4).all(), [[99, 0, 1, 2], [99, 4, 5, 6]]);
        assert_eq!(chunks(&[98, 99], 6).all(), [[98, 99, 0, 1, 2, 3], [98, 99, 6, 7, 8, 9]]);
        let error = perplexity(&mut Fake::uniform(99), chunks(&[1, 2, 3], 4)).unwrap_err().to_string();
        assert!(error.contains("--chunk 4: half of it must hold the 3 tokens"), "{error}");
    }

    #[test]
    fn a_uniform_model_has_the_perplexity_of_its_vocabulary() {
        let ids: Vec<u32> = (0..50).map(|i| i % 7).collect();
        let got = perplexity(&mut Fake::uniform(7), chunks(&ids, 16)).unwrap();
        assert!((got.value - 7.0).abs() < 1e-12, "{got:?}");
        assert_eq!((got.scored_tokens, got.chunks), (3 * 7, 3));
    }

    #[test]
    fn a_text_or_chunk_of_the_wrong_size_is_refused() {
        for (tokens, chunk, expected) in [(10, 16, "needs 16"), (100, 3, "chunk 3"), (100, 5000, "chunk 5000")] {
            let error = perplexity(&mut Fake::uniform(7), chunks(&vec![0; tokens], chunk)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn models_are_seen_at_the_same_places() {
        let ids: Vec<u32> = (0..40).map(|i| i % 5).collect();
        let (mut a, mut b, mut seen) = (Fake::uniform(7), Fake::uniform(7), Vec::new());
        study(&mut [&mut a, &mut b], chunks(&ids, 8), &mut |chunk| {
            seen.push((chunk.predicted.iter().map(Predictions::rows).collect::<Vec<_>>(), chunk.next.to_vec()));
            Ok(())
        })
        .unwrap();
        // Of eight tokens the predictions of positions 5, 6 and 7 are scored.
        assert_eq!(seen.len(), 5);
        assert_eq!(seen[1], (vec![3, 3], vec![13 % 5, 14 % 5, 15 % 5]));
    }

    #[test]
    fn what_overflows_first_is_the_remedy() {
        let check = |weights, kv_dtype, part: &str| {
            let info = ModelInfo { weights, kv_dtype, ..Fake::uniform(7).info().clone() };
            assert!(overflow(&info).contains(part), "{weights} {kv_dtype}: {}", overflow(&info));
        };
        check(WeightFormat::F32, KvDtype::F16, "try --kv-dtype f32");
        check(WeightFormat::F16, KvDtype::F16, "try --kv-dtype f32");
        check(WeightFormat::F16, KvDtype::F32, "try --weights f32");
        check(WeightFormat::F32, KvDtype::F32, "its weights are damaged");
    }

    #[test]
    fn logits_that_are_not_finite_are_refused() {
        finite(&mut Fake::uniform(7)).unwrap();
        let mut broken = Fake::new(Rule::Mixed { target: (1, 1.0), noise: f32::NAN }, 7, 64, 64);
        let error = finite(&mut broken).unwrap_err().to_string();
        assert!(error.contains("its first logits hold NaN"), "{error}");
        // One logit, of a token that is neither likeliest nor next, in one of two models.
        let mut sparse = Fake::new(Rule::Holed { seed: 3, after: 5 }, 7, 64, 64);
        let ids: Vec<u32> = (0..16).map(|i| i % 7).collect();
        let mut models: [&mut dyn Model; 2] = [&mut Fake::uniform(7), &mut sparse];
        let error = study(&mut models, chunks(&ids, 8), &mut |_| Ok(())).unwrap_err().to_string();
        let expected = "fake in f32: its logits over the text are not finite: its weights are damaged";
        assert_eq!(error, expected);
    }
}

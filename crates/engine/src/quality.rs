//! Models over a text: the logits from which quality is computed, of several models at the same places.

use anyhow::{Result, ensure};
use specquant_core::{Batch, Model, Run, Score, Scores};
use specquant_metrics::{Likelihood, Perplexity, Predictions};

/// What one chunk of a text gave.
pub struct Chunk<'a> {
    /// By model, what it predicts in the chunk's second half.
    pub predicted: Vec<Predictions>,
    /// The token that followed each prediction.
    pub next: &'a [u32],
}

/// Runs models over a text, chunk by chunk, and hands over what each predicts in the second half of every chunk, as
/// [`Perplexity`] describes.
///
/// # Errors
/// A chunk that is longer than a model's context or KV cache, a text shorter than a chunk, a model that fails, logits that
/// are not finite.
pub fn study(
    models: &mut [&mut dyn Model],
    ids: &[u32],
    chunk: usize,
    take: &mut dyn FnMut(Chunk<'_>) -> Result<()>,
) -> Result<()> {
    for model in &*models {
        let info = model.info();
        let most = info.context.min(info.kv_slots);
        ensure!((4..=most).contains(&chunk), "--chunk {chunk}: must lie in 4..={most}, the context of {}", info.name);
    }
    ensure!(ids.len() >= chunk, "the text has {} tokens and one chunk needs {chunk}: give a longer text", ids.len());
    for ids in ids.chunks_exact(chunk) {
        let predicted = models.iter_mut().map(|model| second_half(&mut **model, ids)).collect::<Result<_>>()?;
        take(Chunk { predicted, next: &ids[chunk - scored(chunk)..] })?;
    }
    Ok(())
}

/// Perplexity of `ids` in chunks of `chunk` tokens, at most the model's context and its KV slots.
///
/// # Errors
/// As for [`study`].
pub fn perplexity(model: &mut dyn Model, ids: &[u32], chunk: usize) -> Result<Perplexity> {
    let mut likelihood = Likelihood::default();
    study(&mut [model], ids, chunk, &mut |chunk| {
        likelihood.add(&chunk.predicted[0], chunk.next);
        Ok(())
    })?;
    Ok(likelihood.perplexity(chunk))
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
            "{} in {}: its first logits hold {}: the weights are damaged, or too large for this format: try f32",
            info.name,
            info.weights,
            wrong.unwrap_or(&f32::NAN)
        );
    }
    Ok(())
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
        "{} in {}: its logits over the text are not finite: its weights are damaged or overflow",
        info.name,
        info.weights
    );
    Ok(rows.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, Rule};

    #[test]
    fn a_uniform_model_has_the_perplexity_of_its_vocabulary() {
        let ids: Vec<u32> = (0..50).map(|i| i % 7).collect();
        let got = perplexity(&mut Fake::uniform(7), &ids, 16).unwrap();
        assert!((got.value - 7.0).abs() < 1e-12, "{got:?}");
        assert_eq!((got.scored_tokens, got.chunks), (3 * 7, 3));
    }

    #[test]
    fn a_text_or_chunk_of_the_wrong_size_is_refused() {
        for (tokens, chunk, expected) in [(10, 16, "needs 16"), (100, 3, "chunk 3"), (100, 5000, "chunk 5000")] {
            let error = perplexity(&mut Fake::uniform(7), &vec![0; tokens], chunk).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn models_are_seen_at_the_same_places() {
        let ids: Vec<u32> = (0..40).map(|i| i % 5).collect();
        let (mut a, mut b, mut seen) = (Fake::uniform(7), Fake::uniform(7), Vec::new());
        study(&mut [&mut a, &mut b], &ids, 8, &mut |chunk| {
            seen.push((chunk.predicted.iter().map(Predictions::rows).collect::<Vec<_>>(), chunk.next.to_vec()));
            Ok(())
        })
        .unwrap();
        // Of eight tokens the predictions of positions 5, 6 and 7 are scored.
        assert_eq!(seen.len(), 5);
        assert_eq!(seen[1], (vec![3, 3], vec![13 % 5, 14 % 5, 15 % 5]));
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
        let error = study(&mut [&mut Fake::uniform(7), &mut sparse], &ids, 8, &mut |_| Ok(())).unwrap_err().to_string();
        let expected = "fake in f32: its logits over the text are not finite: its weights are damaged or overflow";
        assert_eq!(error, expected);
    }
}

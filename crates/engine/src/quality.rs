//! How good a model's predictions are, beside how fast they come.

use anyhow::{Result, ensure};
use serde::Serialize;
use specquant_core::{Batch, Model, Run, Score, Scores};

/// Perplexity of a text: exp of the mean negative log-likelihood, in nats per token.
///
/// The text is tokenized whole and cut into chunks that do not overlap, without a beginning-of-text token; a shorter
/// rest is dropped. In each chunk the predictions of the second half are scored, as llama-perplexity does, so that
/// every scored token has at least half a chunk of context. Log-softmax is taken in f64 of f32 logits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Perplexity {
    /// The perplexity.
    pub value: f64,
    /// Mean negative log-likelihood, nats per token.
    pub nll: f64,
    /// Tokens whose prediction was scored.
    pub scored_tokens: usize,
    /// Tokens in one chunk.
    pub chunk: usize,
    /// Whole chunks in the text.
    pub chunks: usize,
}

/// Perplexity of `ids` in chunks of `chunk` tokens, at most the model's context and its KV slots.
pub fn perplexity(model: &mut dyn Model, ids: &[u32], chunk: usize) -> Result<Perplexity> {
    let info = model.info();
    let most = info.context.min(info.kv_slots);
    ensure!((4..=most).contains(&chunk), "--chunk {chunk}: must lie in 4..={most}, the context of {}", info.name);
    ensure!(ids.len() >= chunk, "the text has {} tokens and one chunk needs {chunk}: give a longer text", ids.len());
    let slots: Vec<u32> = (0..chunk as u32).collect();
    // The last token of a chunk is predicted but never run, and the first scored row is the chunk's middle one.
    let rows = chunk - 1 - chunk / 2;
    let (mut sum, mut scored_tokens) = (0.0, 0);
    for (number, ids) in (0..).zip(ids.chunks_exact(chunk)) {
        let (tokens, score) = (&ids[..chunk - 1], Score::Logits { rows });
        let run = Run { seq: number, tokens, start: 0, slots: &slots[..chunk - 1], score };
        let scores = model.forward(&Batch { runs: vec![run] })?;
        let [Scores::Logits(logits)] = scores.as_slice() else { continue };
        sum += logits.iter().zip(&ids[chunk - rows..]).map(|(row, &id)| negative_log_likelihood(row, id)).sum::<f64>();
        scored_tokens += rows;
    }
    let nll = sum / scored_tokens as f64;
    let name = &model.info().name;
    ensure!(nll.is_finite(), "{name}: the text has no finite likelihood: its weights are damaged or overflow");
    Ok(Perplexity { value: nll.exp(), nll, scored_tokens, chunk, chunks: ids.len() / chunk })
}

/// -log of the softmax of `logits` at `id`, in f64.
fn negative_log_likelihood(logits: &[f32], id: u32) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    max + sum.ln() - f64::from(logits[id as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::Fake;

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
}

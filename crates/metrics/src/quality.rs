//! What a weight format costs in quality: perplexity, divergence from the same model in another format, and how often a
//! draft's tokens would be accepted. All from logits at the same places of the same text, so the same on every run.

use anyhow::Result;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use specquant_core::WeightFormat;

use crate::paired::{Paired, paired};

/// Perplexity of a text: exp of the mean negative log-likelihood, in nats per token.
///
/// The text is tokenized whole and cut into chunks that do not overlap, without a beginning-of-text token; a shorter
/// rest is dropped. In each chunk the predictions of the second half are scored, as llama-perplexity does, so that
/// every scored token has at least half a chunk of context. Log-softmax is taken in f64 of f32 logits.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
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

/// How far a model's predictions are from those of a reference, over the scored tokens.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Divergence {
    /// Perplexity over the reference's; the interval is Student's t over chunks.
    pub perplexity: Paired,
    /// Mean Kullback-Leibler divergence of the model's distributions from the reference's, nats.
    pub mean_kld: f64,
    /// The 99th percentile of that divergence, by nearest rank.
    pub p99_kld: f64,
    /// Share of tokens where both find the same token likeliest.
    pub same_top: f64,
}

/// How a draft model's predictions match a target's, over the scored tokens. The text is given, so these are not the
/// rates of a run, where a draft follows its own tokens; two drafts compare by them all the same.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Match {
    /// Share of tokens where both find the same token likeliest: acceptance when decoding greedily.
    pub greedy: f64,
    /// Mean of the sum over tokens of the smaller probability: acceptance when sampling at temperature 1.
    pub sampled: f64,
}

/// What the weight formats of a run's cell cost, over the first chunks of a text.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Quality {
    /// The target's perplexity.
    pub perplexity: Perplexity,
    /// The format of the same target that it is compared with: the widest of the run; `None` if that is its own, or none
    /// has 16 bits.
    #[schemars(with = "Option<String>")]
    pub reference: Option<WeightFormat>,
    /// The target beside that.
    pub divergence: Option<Divergence>,
    /// The draft's perplexity in its own format, over the same chunks.
    pub draft_perplexity: Option<f64>,
    /// The draft in its format and in f16, where its format has fewer bits.
    pub draft: Option<[Match; 2]>,
}

impl Quality {
    /// Whether the draft's format has cost it most of its acceptance, which no sound format does.
    pub fn draft_collapsed(&self) -> bool {
        self.draft.is_some_and(|[draft, f16]| draft.greedy < COLLAPSED * f16.greedy)
    }
}

/// A quantized draft whose tokens match the target's this much more rarely than the f16 draft's is broken.
const COLLAPSED: f64 = 0.5;

/// What a model predicts at some places: rows of logits, with what their exponentials sum to.
#[derive(Clone, Debug, Default)]
pub struct Predictions {
    rows: Vec<Vec<f32>>,
    /// The logarithm of the sum of the exponentials of each row, in f64.
    log_sums: Vec<f64>,
}

impl From<Vec<Vec<f32>>> for Predictions {
    fn from(rows: Vec<Vec<f32>>) -> Predictions {
        Predictions { log_sums: rows.iter().map(|row| log_sum(row)).collect(), rows }
    }
}

impl Predictions {
    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Logarithms of probabilities beside those of another model at the same places, by row and token.
    fn beside<'a>(&'a self, other: &'a Predictions) -> impl Iterator<Item = impl Iterator<Item = (f64, f64)> + 'a> {
        let rows = self.rows.iter().zip(&self.log_sums).zip(other.rows.iter().zip(&other.log_sums));
        rows.map(|((a, sum_a), (b, sum_b))| {
            a.iter().zip(b).map(move |(a, b)| (f64::from(*a) - sum_a, f64::from(*b) - sum_b))
        })
    }

    /// Places where both find the same token likeliest.
    fn same_top(&self, other: &Predictions) -> usize {
        self.rows.iter().zip(&other.rows).filter(|(a, b)| top(a) == top(b)).count()
    }
}

/// Adds up the likelihood of a text.
#[derive(Clone, Debug, Default)]
pub struct Likelihood {
    /// Sum and number of negative log-likelihoods, by chunk.
    chunks: Vec<(f64, usize)>,
}

/// Adds up a divergence.
#[derive(Clone, Debug, Default)]
pub struct Divergences {
    model: Likelihood,
    reference: Likelihood,
    klds: Vec<f64>,
    same_top: usize,
}

/// Adds up a match.
#[derive(Clone, Debug, Default)]
pub struct Matches {
    greedy: usize,
    sampled: f64,
    rows: usize,
}

impl Likelihood {
    /// Adds a chunk: what was predicted, and the token that followed.
    pub fn add(&mut self, predicted: &Predictions, next: &[u32]) {
        let rows = predicted.rows.iter().zip(&predicted.log_sums).zip(next);
        let nll = rows.map(|((row, log_sum), &id)| log_sum - f64::from(row[id as usize]));
        self.chunks.push((nll.sum(), predicted.rows()));
    }

    /// The perplexity, for chunks of so many tokens; not a number where nothing was added, not finite where a likelihood
    /// was not.
    pub fn perplexity(&self, chunk: usize) -> Perplexity {
        let (sum, scored_tokens) = self.chunks.iter().fold((0.0, 0), |(sum, n), (nll, rows)| (sum + nll, n + rows));
        let nll = sum / scored_tokens as f64;
        Perplexity { value: nll.exp(), nll, scored_tokens, chunk, chunks: self.chunks.len() }
    }

    fn by_chunk(&self) -> Vec<f64> {
        self.chunks.iter().map(|(nll, rows)| (nll / *rows as f64).exp()).collect()
    }
}

impl Divergences {
    /// Adds a chunk: what the model and the reference predicted, and the token that followed.
    pub fn add(&mut self, model: &Predictions, reference: &Predictions, next: &[u32]) {
        self.model.add(model, next);
        self.reference.add(reference, next);
        self.same_top += model.same_top(reference);
        // Rounding can leave a sum that should be zero a little below it.
        let klds = reference.beside(model).map(|row| row.map(|(p, q)| p.exp() * (p - q)).sum::<f64>().max(0.0));
        self.klds.extend(klds);
    }

    /// What was added up; `None` where nothing was, or something was not finite.
    ///
    /// # Errors
    /// Never for finite likelihoods.
    pub fn divergence(&self) -> Result<Option<Divergence>> {
        let mut klds = self.klds.clone();
        klds.sort_unstable_by(f64::total_cmp);
        let (Some(last), model, reference) = (klds.last(), self.model.by_chunk(), self.reference.by_chunk()) else {
            return Ok(None);
        };
        let finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
        if !last.is_finite() || !finite(&model) || !finite(&reference) {
            return Ok(None);
        }
        let rank = (0.99 * klds.len() as f64).ceil() as usize;
        Ok(Some(Divergence {
            perplexity: paired(&model, &reference, 0.95)?,
            mean_kld: klds.iter().sum::<f64>() / klds.len() as f64,
            p99_kld: klds[rank.max(1) - 1],
            same_top: self.same_top as f64 / klds.len() as f64,
        }))
    }
}

impl Matches {
    /// Adds a chunk: what the draft and the target predicted.
    pub fn add(&mut self, draft: &Predictions, target: &Predictions) {
        self.greedy += draft.same_top(target);
        self.sampled += target.beside(draft).map(|row| row.map(|(p, q)| p.min(q).exp()).sum::<f64>()).sum::<f64>();
        self.rows += draft.rows();
    }

    /// What was added up; `None` where nothing was.
    pub fn rates(&self) -> Option<Match> {
        let rows = self.rows as f64;
        (self.rows > 0).then(|| Match { greedy: self.greedy as f64 / rows, sampled: self.sampled / rows })
    }
}

/// The logarithm of the sum of the exponentials of logits, in f64.
fn log_sum(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    max + logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum::<f64>().ln()
}

/// The place of the largest logit, the lowest of equals.
fn top(logits: &[f32]) -> usize {
    logits.iter().enumerate().fold(0, |best, (at, logit)| if *logit > logits[best] { at } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logits of these probabilities, shifted, which must not matter.
    fn row(probabilities: &[f64], shift: f64) -> Vec<f32> {
        probabilities.iter().map(|p| (p.ln() + shift) as f32).collect()
    }

    #[track_caller]
    fn near(got: f64, expected: f64) {
        assert!((got - expected).abs() < 1e-6 * expected.abs().max(1.0), "{got} instead of {expected}");
    }

    #[test]
    fn divergence_and_match_are_those_of_hand_computed_distributions() {
        let reference = [row(&[0.5, 0.25, 0.25], 3.0), row(&[0.1, 0.8, 0.1], -2.0)];
        let model = [row(&[0.25, 0.5, 0.25], 0.0), row(&[0.1, 0.8, 0.1], 7.0)];
        let [reference, model] = [reference, model].map(|rows| Predictions::from(rows.to_vec()));
        let mut divergences = Divergences::default();
        divergences.add(&model, &reference, &[0, 1]);
        divergences.add(&model, &reference, &[2, 2]);
        let got = divergences.divergence().unwrap().unwrap();
        // 0.5 ln 2 + 0.25 ln 0.5 = 0.25 ln 2 for the first row, nothing for the second.
        near(got.mean_kld, 0.125 * 2f64.ln());
        near(got.p99_kld, 0.25 * 2f64.ln());
        near(got.same_top, 0.5);
        // Of the first chunk sqrt(2), of the second 1.
        near(got.perplexity.ratio, 2f64.powf(0.25));
        near(divergences.model.perplexity(4).value, (0.25f64 * 0.8 * 0.25 * 0.1).powf(-0.25));
        let mut matches = Matches::default();
        matches.add(&model, &reference);
        let got = matches.rates().unwrap();
        near(got.greedy, 0.5);
        near(got.sampled, (0.75 + 1.0) / 2.0);
    }

    #[test]
    fn nothing_and_what_is_not_finite_give_no_divergence() {
        assert_eq!(Divergences::default().divergence().unwrap(), None);
        assert_eq!(Matches::default().rates(), None);
        let mut divergences = Divergences::default();
        divergences.add(&vec![vec![f32::NAN, 0.0]].into(), &vec![vec![0.0, 0.0]].into(), &[1]);
        assert_eq!(divergences.divergence().unwrap(), None);
    }

    #[test]
    fn a_model_equals_itself() {
        let rows = vec![row(&[0.2, 0.3, 0.5], 1.0), row(&[0.6, 0.3, 0.1], 0.0)].into();
        let mut divergences = Divergences::default();
        divergences.add(&rows, &rows, &[0, 0]);
        let got = divergences.divergence().unwrap().unwrap();
        assert_eq!((got.mean_kld, got.p99_kld, got.same_top, got.perplexity.ratio), (0.0, 0.0, 1.0, 1.0));
    }
}

//! A model in a few lines whose answers depend on everything that the engine must get right.
//!
//! It keeps the token and position that each KV slot holds and computes logits from the history that it reads back
//! through the slots, so a wrong slot, position, rollback or copy changes the output.

use anyhow::{Result, ensure};
use specquant_core::{
    Batch, KvDtype, Memory, Model, ModelInfo, Rng, Score, Scores, SlotCopy, Text, TextState, Use, WeightFormat, Work,
    greedy,
};

/// How a fake model makes logits.
#[derive(Clone)]
pub(crate) enum Rule {
    /// The same logit for every token.
    Uniform,
    /// Pseudo-random logits of the whole history.
    Random {
        /// Two models with one seed are the same model.
        seed: u64,
        /// Logits lie in `0..spread`.
        spread: f32,
    },
    /// The target's logits with some of another seed's mixed in: 0 is the target itself.
    Mixed {
        /// Seed and spread of the target.
        target: (u64, f32),
        /// Share of the other logits.
        noise: f32,
    },
    /// The target's logits, turned upside down at some positions: there the best token is the target's worst.
    Wrong {
        /// Seed and spread of the target.
        target: (u64, f32),
        /// The positions whose prediction is wrong.
        at: Vec<usize>,
    },
    /// Random logits; those after a token have a NaN among them.
    Holed {
        /// Two models with one seed are the same model.
        seed: u64,
        /// The token.
        after: u32,
    },
    /// Logits of a few whole numbers, so that nearly every row has an exact tie for its best token.
    Ties {
        /// Two models with one seed are the same model.
        seed: u64,
        /// How many different logits there are.
        levels: u8,
    },
    /// Always continues with the given tokens, by position.
    Script(Vec<u32>),
}

pub(crate) struct Fake {
    rule: Rule,
    info: ModelInfo,
    /// Token and position in each slot.
    pub(crate) cache: Vec<Option<(u32, usize)>>,
    /// Rows run so far.
    pub(crate) rows: usize,
    /// Calls of `forward` that still succeed.
    pub(crate) forwards_left: usize,
}

impl Fake {
    pub(crate) fn new(rule: Rule, vocab: usize, context: usize, kv_slots: usize) -> Fake {
        let info = ModelInfo {
            name: "fake".into(),
            parameters: 0,
            vocab,
            context,
            layers: 1,
            hidden: 1,
            eos: vec![0],
            weights: WeightFormat::F32,
            kv_dtype: KvDtype::F32,
            kv_slots,
            device: "none".into(),
            memory: Memory::default(),
            work: Work::default(),
        };
        Fake { rule, info, cache: vec![None; kv_slots], rows: 0, forwards_left: usize::MAX }
    }

    pub(crate) fn uniform(vocab: usize) -> Fake {
        Fake::new(Rule::Uniform, vocab, 64, 64)
    }

    /// The logits after `history`.
    pub(crate) fn logits(&self, history: &[u32]) -> Vec<f32> {
        let vocab = self.info.vocab;
        let random = |seed: u64, spread: f32| {
            let request = history.iter().fold(0, |hash: u64, &id| (hash ^ u64::from(id)).wrapping_mul(0x9E37_79B9));
            (0..vocab).map(move |id| Rng { seed, request }.uniform(id, Use::Bonus) as f32 * spread)
        };
        match &self.rule {
            Rule::Uniform => vec![0.0; vocab],
            Rule::Random { seed, spread } => random(*seed, *spread).collect(),
            Rule::Mixed { target: (seed, spread), noise } => {
                random(*seed, *spread).zip(random(*seed + 1, *spread)).map(|(a, b)| a + noise * b).collect()
            }
            Rule::Wrong { target: (seed, spread), at } => {
                let sign = if at.contains(&history.len()) { -1.0 } else { 1.0 };
                random(*seed, *spread).map(|logit| sign * logit).collect()
            }
            Rule::Holed { seed, after } => {
                let hole = |id: usize| id == 1 && history.last() == Some(after);
                random(*seed, 8.0).enumerate().map(|(id, logit)| if hole(id) { f32::NAN } else { logit }).collect()
            }
            Rule::Ties { seed, levels } => random(*seed, f32::from(*levels)).map(f32::floor).collect(),
            Rule::Script(tokens) => {
                let next = tokens[history.len() % tokens.len()];
                (0..vocab).map(|id| if id == next as usize { 100.0 } else { -100.0 }).collect()
            }
        }
    }

    /// What the cache holds in these slots, which must be the positions in order.
    pub(crate) fn history(&self, slots: &[u32]) -> Result<Vec<u32>> {
        let read = |(position, &slot): (usize, &u32)| {
            let held = self.cache[slot as usize];
            ensure!(held.is_some_and(|(_, at)| at == position), "slot {slot} holds {held:?} at position {position}");
            Ok(held.map_or(0, |(token, _)| token))
        };
        slots.iter().enumerate().map(read).collect()
    }
}

impl Model for Fake {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Scores>> {
        ensure!(self.forwards_left > 0, "the fake model was told to fail");
        self.forwards_left -= 1;
        let mut answers = Vec::new();
        for run in &batch.runs {
            let end = run.start + run.tokens.len();
            ensure!(end <= self.info.context && run.slots.len() == end, "{run:?}");
            for (i, &token) in run.tokens.iter().enumerate() {
                ensure!((token as usize) < self.info.vocab, "token {token}");
                self.cache[run.slots[run.start + i] as usize] = Some((token, run.start + i));
            }
            self.rows += run.tokens.len();
            let history = self.history(run.slots)?;
            let rows = (end - run.score.rows() + 1..=end).map(|len| self.logits(&history[..len]));
            answers.push(match run.score {
                Score::Logits { .. } => Scores::Logits(rows.collect()),
                Score::Greedy { .. } | Score::Nothing => Scores::Greedy(rows.map(|row| greedy(&row)).collect()),
            });
        }
        Ok(answers)
    }

    fn copy_kv(&mut self, copies: &[SlotCopy]) -> Result<()> {
        for copy in copies {
            self.cache[copy.to as usize] = self.cache[copy.from as usize];
        }
        Ok(())
    }
}

/// Every id is one letter: 1 is `a`.
pub(crate) struct Letters;

impl Text for Letters {
    fn vocab(&self) -> usize {
        27
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(text.bytes().map(|byte| u32::from(byte - b'a') + 1).collect())
    }

    fn step(&self, _: &mut TextState, id: u32) -> Result<Option<String>> {
        Ok(char::from_u32(id + 96).map(String::from))
    }
}

//! T(n): how long a forward takes by the number of rows it runs, which is what speculation stands or falls with.

use anyhow::{Result, ensure};
use specquant_core::{Batch, Clock, Model, Rng, Run, Score, Use};

/// Forwards that differ in their number of new rows alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Sequences in each forward.
    pub sequences: usize,
    /// Tokens in the cache of each sequence before the new rows.
    pub context: usize,
    /// Most new rows of a sequence.
    pub rows: usize,
}

impl Sweep {
    /// The part of this sweep for which a model has positions and KV slots: fewer rows, then less context.
    pub fn within(self, model: &dyn Model) -> Sweep {
        let info = model.info();
        let room = info.context.min(info.kv_slots / self.sequences.max(1));
        let rows = self.rows.min(room.saturating_sub(1));
        Sweep { rows, context: self.context.min(room.saturating_sub(rows)), ..self }
    }

    /// Fills the context of every sequence with tokens of no meaning. Slots from 0 on are used.
    pub fn fill(&self, model: &mut dyn Model) -> Result<()> {
        if self.context == 0 {
            return Ok(());
        }
        self.forward(model, 0, self.context, Score::Nothing)
    }

    /// Nanoseconds of a forward of so many new rows for each sequence, at most `self.rows`. The cache then holds what it
    /// held before, and tokens of no meaning after it.
    pub fn time(&self, model: &mut dyn Model, clock: &dyn Clock, rows: usize) -> Result<u64> {
        let start = clock.now();
        self.forward(model, self.context, rows, Score::Greedy { rows })?;
        Ok(clock.now() - start)
    }

    fn forward(&self, model: &mut dyn Model, start: usize, rows: usize, score: Score) -> Result<()> {
        let (vocab, length) = (model.info().vocab, self.context + self.rows);
        ensure!(self.sequences * length <= model.info().kv_slots, "the sweep does not fit in the KV cache");
        let sequences = 0..self.sequences;
        let token = |seq: usize, at| {
            let rng = Rng { seed: 0, request: seq as u64 };
            (rng.uniform(at, Use::Draft) * vocab as f64) as u32
        };
        let tokens = |seq| (start..start + rows).map(|at| token(seq, at)).collect::<Vec<u32>>();
        let slots = |seq| (seq * length..seq * length + start + rows).map(|slot| slot as u32).collect::<Vec<u32>>();
        let work: Vec<_> = sequences.map(|seq| (tokens(seq), slots(seq))).collect();
        let runs = (0..).zip(&work).map(|(seq, (tokens, slots))| Run { seq, tokens, start, slots, score });
        model.forward(&Batch { runs: runs.collect() })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Fake, Rule};

    fn fake(context: usize, kv_slots: usize) -> Fake {
        Fake::new(Rule::Uniform, 8, context, kv_slots)
    }

    #[test]
    fn a_sweep_shrinks_to_what_a_model_has_room_for() {
        let sweep = Sweep { sequences: 2, context: 30, rows: 9 };
        for (context, slots, expected) in
            [(100, 100, (9, 30)), (32, 100, (9, 23)), (100, 40, (9, 11)), (100, 12, (5, 1))]
        {
            let got = sweep.within(&fake(context, slots));
            assert_eq!((got.rows, got.context), expected, "context {context}, {slots} slots");
            let mut model = fake(context, slots);
            got.fill(&mut model).unwrap();
            got.time(&mut model, &crate::Wall::start(), got.rows).unwrap();
        }
    }

    #[test]
    fn a_forward_is_timed_with_its_rows_and_nothing_else() {
        /// A clock that has moved by as many nanoseconds as rows were run, seen through a cell.
        struct Rows<'a>(&'a std::sync::atomic::AtomicU64);
        impl Clock for Rows<'_> {
            fn now(&self) -> u64 {
                self.0.load(std::sync::atomic::Ordering::Relaxed)
            }
            fn wait_until(&self, _: u64) {}
        }
        struct Counting<'a>(Fake, &'a std::sync::atomic::AtomicU64);
        impl Model for Counting<'_> {
            fn info(&self) -> &specquant_core::ModelInfo {
                self.0.info()
            }
            fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<specquant_core::Scores>> {
                let rows: usize = batch.runs.iter().map(|run| run.tokens.len()).sum();
                self.1.fetch_add(rows as u64, std::sync::atomic::Ordering::Relaxed);
                self.0.forward(batch)
            }
            fn copy_kv(&mut self, copies: &[specquant_core::SlotCopy]) -> Result<()> {
                self.0.copy_kv(copies)
            }
        }
        let time = std::sync::atomic::AtomicU64::new(0);
        let mut model = Counting(fake(64, 64), &time);
        let sweep = Sweep { sequences: 3, context: 7, rows: 4 };
        sweep.fill(&mut model).unwrap();
        assert_eq!(time.load(std::sync::atomic::Ordering::Relaxed), 21);
        let times = [1, 4, 2].map(|rows| sweep.time(&mut model, &Rows(&time), rows).unwrap());
        assert_eq!(times, [3, 12, 6]);
    }
}

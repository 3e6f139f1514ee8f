//! A model made slower by a known share, to see whether a run finds it. Only in builds with the feature `debug-knobs`.
//!
//! Some forwards are run twice, which changes nothing in the cache and keeps every thread as busy as it was.

use anyhow::{Context, Result, ensure};
use specquant_core::{Batch, Model, ModelInfo, Scores, SlotCopy};

/// Which cell is slowed, and by how much: `1=0.03` makes the second cell run 3 of 100 forwards twice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slow {
    /// The cell, counted from 0.
    pub(crate) cell: usize,
    /// Forwards that are run twice / all.
    pub(crate) share: f64,
}

impl Slow {
    /// Reads the flag.
    pub(crate) fn parse(text: &str) -> Result<Slow> {
        let (cell, share) = text.split_once('=').context("--debug-slow: write CELL=SHARE, such as 1=0.03")?;
        let slow = Slow { cell: cell.parse()?, share: share.parse()? };
        ensure!((0.0..10.0).contains(&slow.share), "--debug-slow: share {share} must lie in 0..10");
        Ok(slow)
    }

    /// The share of a cell's forwards that are run twice.
    pub(crate) fn share_of(self, cell: usize) -> f64 {
        if cell == self.cell { self.share } else { 0.0 }
    }
}

/// The slower model.
pub(crate) struct Slowed<'a> {
    pub(crate) model: &'a mut dyn Model,
    pub(crate) share: f64,
    /// Forwards that are due a second time.
    pub(crate) due: &'a mut f64,
}

impl Model for Slowed<'_> {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Scores>> {
        *self.due += self.share;
        while *self.due >= 1.0 {
            *self.due -= 1.0;
            self.model.forward(batch)?;
        }
        self.model.forward(batch)
    }

    fn copy_kv(&mut self, copies: &[SlotCopy]) -> Result<()> {
        self.model.copy_kv(copies)
    }
}

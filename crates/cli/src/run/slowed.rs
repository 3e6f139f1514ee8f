//! A model made slower by a known share, to see whether a run finds it. Only in builds with the feature `debug-knobs`.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use specquant_core::{Batch, Model, ModelInfo, Scores, SlotCopy};

/// Which cell is slowed, and by how much: `1=0.03` makes the second cell's forwards take 3% longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Slow {
    /// The cell, counted from 0.
    pub(crate) cell: usize,
    /// What its forwards take longer.
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

    /// What the forwards of a cell take longer.
    pub(crate) fn share_of(self, cell: usize) -> f64 {
        if cell == self.cell { self.share } else { 0.0 }
    }
}

/// The slower model.
pub(crate) struct Slowed<'a> {
    pub(crate) model: &'a mut dyn Model,
    pub(crate) share: f64,
}

impl Model for Slowed<'_> {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn forward(&mut self, batch: &Batch<'_>) -> Result<Vec<Scores>> {
        let start = Instant::now();
        let scores = self.model.forward(batch);
        let until = start.elapsed().mul_f64(1.0 + self.share);
        while start.elapsed() < until {
            std::hint::spin_loop();
        }
        scores
    }

    fn copy_kv(&mut self, copies: &[SlotCopy]) -> Result<()> {
        self.model.copy_kv(copies)
    }
}

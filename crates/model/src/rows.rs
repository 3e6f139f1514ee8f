//! A batch as rows: the new tokens of all runs one after another, each with its position, its slot and its keys.
//!
//! Rows that exist can be run: every id, position and slot has been checked against the model.

use anyhow::{Result, ensure};
use specquant_core::{Batch, ModelInfo, Run};

/// One row for each new token, in the order of the runs.
#[derive(Debug, Default)]
pub(crate) struct Rows<'a> {
    /// Token of each row.
    pub(crate) ids: Vec<u32>,
    /// Position of each row in its sequence.
    pub(crate) positions: Vec<u32>,
    /// Where each row's key and value go.
    pub(crate) slots: Vec<u32>,
    /// Slots of the keys that each row attends to, its own the last.
    pub(crate) keys: Vec<&'a [u32]>,
    /// Rows that are scored, ascending.
    pub(crate) scored: Vec<u32>,
}

impl<'a> Rows<'a> {
    /// Lays the runs of a batch out as rows.
    ///
    /// # Errors
    /// A run without tokens, a token id beyond the vocabulary, a position beyond the context, a slot beyond the cache,
    /// a number of slots other than of positions, or more or fewer scored rows than there are.
    pub(crate) fn new(batch: &Batch<'a>, info: &ModelInfo) -> Result<Rows<'a>> {
        let n = batch.tokens();
        let mut rows = Rows {
            ids: Vec::with_capacity(n),
            positions: Vec::with_capacity(n),
            slots: Vec::with_capacity(n),
            keys: Vec::with_capacity(n),
            scored: Vec::new(),
        };
        for run in &batch.runs {
            check(run, info)?;
            rows.add(run);
        }
        Ok(rows)
    }

    fn add(&mut self, run: &Run<'a>) {
        let end = run.start + run.tokens.len();
        self.ids.extend_from_slice(run.tokens);
        self.positions.extend(run.start as u32..end as u32);
        self.slots.extend_from_slice(&run.slots[run.start..]);
        self.keys.extend((run.start..end).map(|position| &run.slots[..=position]));
        let rows = self.ids.len() as u32;
        self.scored.extend(rows - run.score.rows() as u32..rows);
    }
}

fn check(run: &Run<'_>, info: &ModelInfo) -> Result<()> {
    let Run { seq, tokens, start, slots, score } = run;
    ensure!(!tokens.is_empty(), "sequence {seq}: no tokens to run");
    let end = start.saturating_add(tokens.len());
    ensure!(end <= info.context, "sequence {seq}: positions {start}..{end} go beyond the context of {}", info.context);
    ensure!(
        end <= info.kv_slots,
        "sequence {seq}: positions {start}..{end} go beyond the {} slots of the KV cache",
        info.kv_slots
    );
    ensure!(slots.len() == end, "sequence {seq}: {} slots for {end} positions", slots.len());
    if let Some(id) = tokens.iter().find(|&&id| id as usize >= info.vocab) {
        anyhow::bail!("sequence {seq}: token {id} is beyond the vocabulary of {}", info.vocab);
    }
    if let Some(slot) = slots.iter().find(|&&slot| slot as usize >= info.kv_slots) {
        anyhow::bail!("sequence {seq}: slot {slot} is beyond the {} slots of the KV cache", info.kv_slots);
    }
    let (scored, new) = (score.rows(), tokens.len());
    let least = usize::from(*score != specquant_core::Score::Nothing);
    ensure!(
        (least..=new).contains(&scored),
        "sequence {seq}: {scored} rows to score of {new} new tokens; ask for {least} to {new}"
    );
    Ok(())
}

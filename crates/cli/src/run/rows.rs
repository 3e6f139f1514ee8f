//! T(n) and the cost of a draft token, measured in turns before the first round.

use anyhow::Result;
use specquant_core::Model;
use specquant_engine::{Sweep, Wall};
use specquant_metrics::RowCosts;

/// Forwards of each kind, of which the median counts.
const REPEATS: usize = 15;

/// The costs of a target and its draft model. `None` where one of them has no room for a second row.
///
/// Forwards are timed where they stand in a run, since what ran before decides what the caches hold: a single row after
/// another, and n rows after n - 1 forwards of the draft.
pub(crate) fn costs(target: &mut dyn Model, draft: &mut dyn Model, wanted: Sweep) -> Result<Option<RowCosts>> {
    let sweep = wanted.within(target).within(draft);
    if sweep.rows < 2 {
        return Ok(None);
    }
    // The draft runs a single row as far into a context as the target does.
    let single = Sweep { rows: 1, ..sweep };
    sweep.fill(target)?;
    single.fill(draft)?;
    let clock = Wall::start();
    let (mut of_target, mut of_draft) = (vec![Vec::new(); sweep.rows], Vec::new());
    for turn in 0..REPEATS {
        for at in 1..=sweep.rows {
            let rows = if turn % 2 == 0 { at } else { sweep.rows + 1 - at };
            if rows == 1 {
                sweep.time(target, &clock, 1)?;
            }
            for _ in 1..rows {
                of_draft.push(single.time(draft, &clock, 1)?);
            }
            of_target[rows - 1].push(sweep.time(target, &clock, rows)?);
        }
    }
    Ok(Some(RowCosts {
        sequences: sweep.sequences,
        context: sweep.context,
        target_ns: of_target.into_iter().map(median).collect(),
        draft_ns: Some(median(of_draft)),
    }))
}

/// The middle one of the values, the upper one of an even number.
fn median(mut values: Vec<u64>) -> f64 {
    values.sort_unstable();
    values[values.len() / 2] as f64
}

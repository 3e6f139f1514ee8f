//! `run --dry-run`: the cells, the memory that they need, and the time that they may take. Nothing is loaded or run.

use anyhow::{Result, ensure};
use specquant_core::{Memory, RunSpec, Speculation};
use specquant_machine::Moment;

use super::quality;
use super::role::{Role, slots_of};
use crate::{device, show};

/// Prints the plan of a run.
pub(crate) fn dry(cells: &[RunSpec]) -> Result<()> {
    let slots = slots(cells)?.max(quality::least_slots(cells)?);
    let models = models(cells, slots)?;
    let mut lines: Vec<String> = (1..).zip(cells).map(|(number, cell)| describe(number, cell)).collect();
    lines
        .extend(models.iter().map(|(name, bytes)| format!("memory   {name}, {slots} KV slots: {}", mebibytes(*bytes))));
    let (all, available) = (models.iter().map(|(_, bytes)| bytes).sum::<u64>(), Moment::now().memory_available());
    let fits = available.map_or(Ok(()), |available| enough(all, available));
    let room = available.map_or(String::new(), |available| {
        format!(", {} available: {}", mebibytes(available), if fits.is_ok() { "fits" } else { "DOES NOT FIT" })
    });
    lines.push(format!("memory   in all {}{room}", mebibytes(all)));
    lines.push(time(cells));
    show(&lines.join("\n"))?;
    fits
}

/// Refuses cells whose models do not fit into memory together: every round runs all of them.
pub(crate) fn fit(cells: &[RunSpec], slots: usize) -> Result<()> {
    let Some(available) = Moment::now().memory_available() else { return Ok(()) };
    enough(models(cells, slots)?.iter().map(|(_, bytes)| bytes).sum(), available)
}

fn enough(all: u64, available: u64) -> Result<()> {
    ensure!(
        all < available,
        "the models of these cells need {} and {} are available: run fewer weight formats at once, each with f16 as its \
         control, or a smaller batch; --dry-run shows what each needs",
        mebibytes(all),
        mebibytes(available)
    );
    Ok(())
}

/// KV slots of every model.
fn slots(cells: &[RunSpec]) -> Result<usize> {
    let mut slots = 1;
    for cell in cells {
        let files = device::files(&Role::Target.source(cell))?;
        let (context, tokenizer) = (files.config()?.max_position_embeddings, files.tokenizer()?);
        let prompts = specquant_workload::prompts(&cell.workload)?;
        let requests = specquant_workload::generate(cell, &prompts.prompts, &tokenizer, context)?;
        slots = slots.max(slots_of(cell, &requests.requests, context));
    }
    Ok(slots)
}

/// The models that cells share, with the bytes that each will hold.
fn models(cells: &[RunSpec], slots: usize) -> Result<Vec<(String, u64)>> {
    let mut models: Vec<(String, u64)> = Vec::new();
    for cell in cells {
        let drafts = cell.speculation != Speculation::Off;
        for role in [Some(Role::Target), drafts.then_some(Role::Draft)].into_iter().flatten() {
            let (source, weights) = (role.source(cell), role.weights(cell));
            let kv_dtype = cell.kv_dtype.unwrap_or(weights.default_kv_dtype());
            let name = format!("{} {source} in {weights}, KV in {kv_dtype}", role.name());
            if models.iter().all(|(known, _)| *known != name) {
                let Memory { matrices, embedding, kv, .. } =
                    device::files(&source)?.footprint(weights, kv_dtype, slots)?;
                models.push((name, matrices + embedding + kv));
            }
        }
    }
    Ok(models)
}

/// How long it may take.
fn time(cells: &[RunSpec]) -> String {
    let spec = &cells[0];
    let until = format!("rounds until intervals are within ±{}%", 100.0 * spec.precision);
    let rounds = spec.rounds.map_or(until, |rounds| format!("{rounds} rounds"));
    let limit =
        spec.time_limit().map_or("no limit of time".into(), |limit| format!("at most {} s", limit.as_secs_f64()));
    format!("time     {rounds}, {limit}, after loading and warm-up; a round has {} passes", cells.len() + 1)
}

fn describe(number: usize, cell: &RunSpec) -> String {
    let draft = match cell.speculation {
        Speculation::Off => String::new(),
        Speculation::Draft { .. } => format!(" from {} in {}", cell.draft, cell.draft_weights()),
    };
    format!(
        "cell {number:<3} {} in {}, {}{draft}, {}, KV {}",
        cell.target, cell.weights, cell.speculation, cell.batching, cell.kv
    )
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

//! Where models run, and how they get there from a name on the command line.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use specquant_core::{Model, Quantizer, RunSpec, WeightFormat};
use specquant_kernels::{Isa, Team};
use specquant_machine::Machine;
use specquant_model::{LoadOptions, ModelFiles, bundled};

/// The workers that a spec asks for; 0 threads takes one for each physical core.
pub(crate) fn team(threads: usize, machine: &Machine) -> Result<Team> {
    ensure!(threads <= 1024, "threads {threads}: must lie in 0..=1024; 0 takes every physical core");
    let threads = if threads == 0 { machine.physical_cores } else { threads };
    Team::new(threads, Isa::detect())
}

/// What `--device` came to, for the header of a run.
pub(crate) fn describe(spec: &RunSpec, team: &Team) -> String {
    let threads = if team.threads() == 1 { "1 thread".into() } else { format!("{} threads", team.threads()) };
    let chosen = if spec.device == "auto" { "device auto: " } else { "" };
    format!("{chosen}cpu {}, {threads}", team.isa())
}

/// The files of a model: `bundled:target`, for short `bundled`, or `bundled:draft`, or a folder.
pub(crate) fn files(name: &str) -> Result<ModelFiles> {
    ensure!(!name.is_empty(), "a model without a name: give a Hugging Face folder, or `bundled`");
    match name.split_once(':') {
        Some(("bundled", role)) => bundled(role),
        None if name == "bundled" => bundled("target"),
        _ => ModelFiles::folder(Path::new(name)),
    }
}

/// Loads a model in one format with room for `slots` tokens in its KV cache.
pub(crate) fn load(
    files: &ModelFiles,
    weights: WeightFormat,
    quantizer: Quantizer,
    slots: usize,
    team: &Team,
) -> Result<Box<dyn Model>> {
    let kv_dtype = weights.default_kv_dtype();
    specquant_model::load(files, &LoadOptions { weights, quantizer, kv_dtype, kv_slots: slots, team: team.clone() })
}

/// Reads a quantizer.
pub(crate) fn quantizer(text: &str) -> Result<Quantizer> {
    text.parse().context("--quantizer")
}

/// Reads a list of weight formats.
pub(crate) fn formats(list: &str) -> Result<Vec<WeightFormat>> {
    list.split(',').map(|format| format.trim().parse().context("--weights")).collect()
}

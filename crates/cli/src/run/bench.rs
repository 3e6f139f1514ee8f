//! The loaded models of an experiment, and one pass of a cell over its requests.
//!
//! Cells that need the same model share it; a pass begins with an empty cache and leaves nothing behind.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context, Result, bail};
use specquant_core::{
    Batching, Clock, EventKind, FileHash, KvDtype, Model, Quantizer, Request, RunSpec, Speculation, WeightFormat,
};
use specquant_engine::{Arrivals, DraftModel, Engine, NoDraft, Output, Parts, Policy, Proposer, Sweep, Wall, drive};
use specquant_kernels::Team;
use specquant_kv::allocator;
use specquant_machine::Machine;
use specquant_metrics::{Peaks, Quality, RowCosts};
use specquant_model::{ModelFiles, Tokenizer, same_vocabulary};
use specquant_report::{Run, SCHEMA};
use specquant_workload::{Dataset, Generated, generate};

use super::role::{Role, slots_of};
use super::warm::WarmUp;
use super::{dry, quality, rows};
use crate::{device, peaks};

/// T(n) is measured for n up to this.
const MOST_ROWS: usize = 9;

/// Everything that passes run on.
pub(crate) struct Bench {
    machine: Machine,
    team: Team,
    pub(super) sources: BTreeMap<String, Source>,
    pub(super) targets: Vec<Loaded>,
    pub(super) drafts: Vec<Loaded>,
    pub(super) arms: Vec<Arm>,
    /// KV slots that sequences share.
    slots: usize,
    files: Vec<FileHash>,
    /// What was noticed of models and prompts, in sentences.
    notes: Vec<String>,
    #[cfg(feature = "debug-knobs")]
    pub(crate) slow: Option<super::slowed::Slow>,
    #[cfg(feature = "debug-knobs")]
    due: f64,
}

/// What a model is loaded from, and what is known before it is.
pub(super) struct Source {
    files: ModelFiles,
    pub(super) tokenizer: Tokenizer,
    pub(super) context: usize,
}

/// What one pass brought.
#[derive(Default)]
pub(crate) struct Pass {
    /// What happened.
    pub(crate) measured: specquant_metrics::Pass,
    /// What came out, by request.
    pub(crate) outputs: Vec<Output>,
}

impl Pass {
    /// Adds what a pass over further requests brought.
    pub(crate) fn merge(&mut self, other: Pass) {
        self.measured.merge(other.measured);
        self.outputs.extend(other.outputs);
    }
}

/// What preparing the cells brought.
pub(crate) struct Known {
    /// When the run began, UTC.
    pub(crate) began: String,
    /// Parts into which its requests are cut.
    pub(crate) parts: usize,
    /// The most that the device can do.
    pub(crate) peaks: Peaks,
    /// Passes that warmed each cell up.
    pub(crate) warm_up: Vec<usize>,
    /// What forwards of each cell cost.
    pub(crate) row_costs: Vec<Option<RowCosts>>,
    /// What the formats of each cell cost in quality.
    pub(crate) quality: Vec<Option<Quality>>,
}

pub(super) struct Arm {
    pub(super) cell: RunSpec,
    pub(super) target: usize,
    pub(super) draft: Option<usize>,
    requests: Vec<Request>,
}

pub(super) struct Loaded {
    pub(super) key: Key,
    pub(super) model: Box<dyn Model>,
    /// Nanoseconds that loading took.
    load_ns: u64,
}

/// Cells with equal keys share a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) source: String,
    pub(super) weights: WeightFormat,
    pub(super) quantizer: Quantizer,
    pub(super) kv_dtype: KvDtype,
}

impl Bench {
    /// Loads what the cells need. `prompts` gives the prompts of a cell.
    pub(crate) fn load(cells: &[RunSpec], prompts: impl Fn(&RunSpec) -> Result<Dataset>) -> Result<Bench> {
        let first = cells.first().context("no cell to run")?;
        let machine = Machine::read();
        let team = device::team(first.threads, &machine)?;
        let mut bench = Bench {
            machine,
            team,
            sources: BTreeMap::new(),
            targets: Vec::new(),
            drafts: Vec::new(),
            arms: Vec::new(),
            slots: 1,
            files: Vec::new(),
            notes: Vec::new(),
            #[cfg(feature = "debug-knobs")]
            slow: None,
            #[cfg(feature = "debug-knobs")]
            due: 0.0,
        };
        let requests = cells.iter().map(|cell| bench.open(cell, prompts(cell)?)).collect::<Result<Vec<_>>>()?;
        let room = bench.slots.max(quality::least_slots(cells)?);
        dry::fit(cells, room)?;
        let mut said = BTreeSet::new();
        bench.notes.retain(|note| said.insert(note.clone()));
        for (cell, requests) in cells.iter().zip(requests) {
            let target = bench.model(cell, Role::Target, room)?;
            let draft = match cell.speculation {
                Speculation::Off => None,
                Speculation::Draft { .. } => Some(bench.model(cell, Role::Draft, room)?),
            };
            bench.arms.push(Arm { cell: cell.clone(), target, draft, requests });
        }
        Ok(bench)
    }

    /// Opens what a cell needs and makes its requests.
    fn open(&mut self, cell: &RunSpec, Dataset { prompts, notes }: Dataset) -> Result<Vec<Request>> {
        let source = self.source(cell, Role::Target)?;
        let made = generate(cell, &prompts, &source.tokenizer, source.context);
        let Generated { requests, notes: more } =
            made.with_context(|| format!("prompts `{}`", cell.workload.prompts))?;
        let slots = slots_of(cell, &requests, source.context);
        self.slots = self.slots.max(slots);
        self.notes.extend(notes.into_iter().chain(more));
        if cell.speculation != Speculation::Off {
            self.source(cell, Role::Draft)?;
            self.check_pair(cell)?;
        }
        Ok(requests)
    }

    /// Opens the files of a cell's model, once for all cells.
    fn source(&mut self, cell: &RunSpec, role: Role) -> Result<&Source> {
        let name = role.source(cell);
        if !self.sources.contains_key(&name) {
            let open = || {
                let files = device::files(&name)?;
                let (tokenizer, config) = (files.tokenizer()?, files.config()?);
                anyhow::Ok(Source { files, tokenizer, context: config.max_position_embeddings })
            };
            let source = open().with_context(|| format!("{} `{name}`", role.name()))?;
            let named = |note| format!("{}: {note}", source.files.name());
            self.notes.extend(source.files.notes(Some(&source.tokenizer))?.into_iter().map(named));
            self.sources.insert(name.clone(), source);
        }
        Ok(&self.sources[&name])
    }

    /// Draft tokens mean the same to both models, or the pair is refused.
    fn check_pair(&self, cell: &RunSpec) -> Result<()> {
        let [target, draft] = [Role::Target, Role::Draft].map(|role| &self.sources[&role.source(cell)]);
        same_vocabulary(&target.tokenizer, &draft.tokenizer).with_context(|| {
            let (target, draft) = (target.files.name(), draft.files.name());
            format!("`{draft}` cannot draft for `{target}`: take a draft model with the target's vocabulary")
        })
    }

    /// The place of a cell's model, loaded if it is not yet.
    fn model(&mut self, cell: &RunSpec, role: Role, slots: usize) -> Result<usize> {
        let weights = role.weights(cell);
        let loaded = match role {
            Role::Target => &mut self.targets,
            Role::Draft => &mut self.drafts,
        };
        let kv_dtype = cell.kv_dtype.unwrap_or(weights.default_kv_dtype());
        let key = Key { source: role.source(cell), weights, quantizer: cell.quantizer, kv_dtype };
        if let Some(at) = loaded.iter().position(|known| known.key == key) {
            return Ok(at);
        }
        let clock = Wall::start();
        let model = quality::load(&self.sources[&key.source].files, &key, slots, &self.team)?;
        loaded.push(Loaded { key, model, load_ns: clock.now() });
        Ok(loaded.len() - 1)
    }

    /// A model of an opened source.
    pub(super) fn load_model(&self, key: &Key, slots: usize) -> Result<Box<dyn Model>> {
        quality::load(&self.sources[&key.source].files, key, slots, &self.team)
    }

    /// What was noticed of models and prompts, in sentences.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The requests of each cell.
    pub(crate) fn requests(&self) -> Vec<&[Request]> {
        self.arms.iter().map(|arm| arm.requests.as_slice()).collect()
    }

    /// Runs the requests of a cell that lie in `range`. `None` if `interrupted` became true first.
    pub(crate) fn pass(
        &mut self,
        cell: usize,
        range: Range<usize>,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<Pass>> {
        self.serve(cell, self.arms[cell].requests[range].to_vec(), interrupted)
    }

    /// Warms a cell up on requests that are like its own in length only. Returns the passes that this took, or `None` if
    /// `interrupted` became true first.
    pub(crate) fn warm_up(&mut self, cell: usize, interrupted: &dyn Fn() -> bool) -> Result<Option<usize>> {
        let Arm { cell: spec, target, requests, draft } = &self.arms[cell];
        let info = self.targets[*target].model.info();
        // Of ids that the draft does not have it would make no drafts.
        let vocab = draft.map_or(info.vocab, |draft| self.drafts[draft].model.info().vocab.min(info.vocab));
        let limit = spec.batching.limit();
        let requests = specquant_workload::warm_up(requests, limit, vocab, &info.eos);
        let mut passes: Vec<Vec<Request>> = requests.chunks(limit).map(<[Request]>::to_vec).collect();
        let (mut warm, mut at) = (WarmUp::default(), 0);
        loop {
            let Some(pass) = self.serve(cell, passes[at % passes.len()].clone(), interrupted)? else { return Ok(None) };
            let (mut rate, ns) = (pass.measured.output_tok_s().unwrap_or(0.0), pass.measured.wall_ns);
            if at == 0 && WarmUp::whole(passes.len(), ns) {
                // A batch, which told how long passes are, is not compared with longer ones.
                (passes, rate) = (vec![requests.clone()], 0.0);
            }
            if warm.ended(rate, ns) {
                return Ok(Some(warm.passes));
            }
            at += 1;
        }
    }

    fn serve(&mut self, at: usize, requests: Vec<Request>, interrupted: &dyn Fn() -> bool) -> Result<Option<Pass>> {
        let Arm { cell, target, draft, .. } = &self.arms[at];
        let slots = cell.kv_pool.unwrap_or(self.slots);
        let (expected, target) = (requests.len(), &mut self.targets[*target]);
        let proposer: Box<dyn Proposer + '_> = match draft {
            None => Box::new(NoDraft),
            Some(draft) => {
                let model = &mut *self.drafts[*draft].model;
                Box::new(DraftModel::new(model, allocator(cell.kv, slots)))
            }
        };
        let kv = allocator(cell.kv, slots);
        let clock = Wall::start();
        let text = &self.sources[&target.key.source].tokenizer;
        let model = &mut *target.model;
        #[cfg(feature = "debug-knobs")]
        let model = &mut super::slowed::Slowed {
            model,
            share: self.slow.map_or(0.0, |slow| slow.share_of(at)),
            due: &mut self.due,
        };
        let parts = Parts { target: model, kv, proposer, text, clock: &clock };
        let (limit, chunk, depth) = (cell.batching.limit(), cell.chunk, cell.speculation.depth());
        let wait = match cell.batching {
            Batching::Continuous { .. } => None,
            Batching::Static { wait, .. } => Some(wait.as_nanos() as u64),
        };
        let mut engine = Engine::new(parts, Policy { limit, wait, chunk, depth });
        // As many users as sequences that may run together, so that nobody queues for a place.
        let arrivals = Arrivals::Closed { users: limit };
        let Some(outputs) = drive(&mut engine, requests, arrivals, interrupted)? else { return Ok(None) };
        let events = engine.take_events();
        if outputs.len() < expected {
            let why = events.iter().find_map(|event| match &event.kind {
                EventKind::Rejected { request, why } => Some(format!("request {request}: {why}")),
                _ => None,
            });
            let lost = expected - outputs.len();
            bail!("{lost} of {expected} requests cannot be served: {}", why.unwrap_or_default());
        }
        let measured = specquant_metrics::Pass::of(&events);
        Ok(Some(Pass { measured, outputs }))
    }

    /// What forwards of a cell's models cost by their rows; `None` for a cell that drafts nothing, or whose models have no
    /// room for it. Cells that share models and batch limit share the answer, in `known`.
    pub(crate) fn row_costs(
        &mut self,
        cell: usize,
        known: &mut BTreeMap<[usize; 3], RowCosts>,
    ) -> Result<Option<RowCosts>> {
        let Arm { cell, target, draft, requests } = &self.arms[cell];
        let Some(draft) = *draft else { return Ok(None) };
        let (key, sequences) = ([*target, draft, cell.batching.limit()], cell.batching.limit().min(requests.len()));
        if let Some(costs) = known.get(&key) {
            return Ok(Some(costs.clone()));
        }
        let prompts: usize = requests.iter().map(|request| request.prompt.len()).sum();
        let context = prompts / requests.len() + cell.workload.max_new_tokens / 2;
        let (target, draft) = (&mut *self.targets[*target].model, &mut *self.drafts[draft].model);
        let costs = rows::costs(target, draft, Sweep { sequences, context, rows: MOST_ROWS })?;
        known.extend(costs.clone().map(|costs| (key, costs)));
        Ok(costs)
    }

    /// Hashes all files that decide what comes out.
    pub(crate) fn hash(&mut self) -> Result<()> {
        let sources: Vec<Vec<FileHash>> =
            self.sources.values().map(|source| source.files.hashes()).collect::<Result<_>>()?;
        let prompts = self.arms.iter().map(|arm| specquant_workload::hash(&arm.cell.workload));
        self.files = sources.concat();
        for hash in prompts.collect::<Result<Vec<_>>>()? {
            if !self.files.contains(&hash) {
                self.files.push(hash);
            }
        }
        Ok(())
    }

    /// The most that the device can do.
    pub(crate) fn peaks(&self) -> Result<Peaks> {
        peaks::peaks(&self.machine, &self.team)
    }

    /// Where it runs.
    pub(crate) fn device(&self) -> String {
        device::describe(&self.arms[0].cell, &self.team)
    }

    /// What is known of the run before its first round.
    pub(crate) fn describe(&self, known: Known) -> Run {
        let Known { began, parts, peaks, warm_up, row_costs, quality } = known;
        let loaded = || self.targets.iter().chain(&self.drafts);
        let requests = &self.arms[0].requests;
        let tokens: usize = requests.iter().map(|request| request.prompt.len()).sum();
        Run {
            schema: SCHEMA,
            build: crate::build::build(),
            notes: self.notes.clone(),
            files: self.files.clone(),
            began,
            machine: self.machine.clone(),
            device: self.device(),
            peaks,
            models: loaded().map(|loaded| loaded.model.info().clone()).collect(),
            load_ns: loaded().map(|loaded| loaded.load_ns).collect(),
            row_costs,
            quality,
            prompts: requests.len(),
            prompt_tokens: tokens as f64 / requests.len() as f64,
            parts,
            warm_up,
            cells: self.arms.iter().map(|arm| arm.cell.clone()).collect(),
            targets: self.arms.iter().map(|arm| arm.target).collect(),
            drafts: self.arms.iter().map(|arm| arm.draft.map(|at| at + self.targets.len())).collect(),
        }
    }
}

//! What the weight formats of a run's cells cost in quality, over the first chunks of the bundled text.
//!
//! All models that answer for one target run over each chunk once, whatever they are compared with.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use specquant_core::{Model, RunSpec, Speculation, Text, WeightFormat};
use specquant_engine::{Chunks, study};
use specquant_kernels::Team;
use specquant_metrics::{Divergences, Likelihood, Matches, Predictions, Quality};

use super::bench::{Bench, Key, Loaded};
use super::role::Role;
use crate::device;

/// Tokens of a chunk, where the context allows.
const CHUNK: usize = 512;

/// What one target of a group gathers.
#[derive(Default)]
struct Gathered {
    likelihood: Likelihood,
    divergences: Divergences,
    /// By draft: its matches in its own format and in f16.
    drafts: BTreeMap<usize, [Matches; 2]>,
}

/// What a group of targets and their drafts gave.
struct Study {
    targets: Vec<Gathered>,
    /// By draft.
    drafts: BTreeMap<usize, Likelihood>,
    /// The place of the target that the others are compared with.
    reference: Option<usize>,
    chunk: usize,
}

impl Study {
    /// Adds what targets and drafts predict in a chunk; `next` is what came.
    fn add<'a>(
        &mut self,
        targets: &[Predictions],
        drafts: impl Iterator<Item = (&'a usize, &'a Predictions)>,
        next: &[u32],
    ) {
        for (gathered, predicted) in self.targets.iter_mut().zip(targets) {
            gathered.likelihood.add(predicted, next);
            if let Some(reference) = self.reference {
                gathered.divergences.add(predicted, &targets[reference], next);
            }
        }
        drafts.for_each(|(draft, predicted)| self.drafts.entry(*draft).or_default().add(predicted, next));
    }
}

/// Models that are studied together.
struct Models<'a> {
    /// Places among the run's targets, and among its drafts, ascending.
    targets: &'a [usize],
    drafts: &'a [usize],
    /// Those drafts in f16.
    floats: &'a mut [Box<dyn Model>],
}

impl Bench {
    /// Tokens of a chunk.
    fn chunk(&self) -> usize {
        self.sources.values().map(|source| source.context).fold(CHUNK, usize::min)
    }

    /// The quality of each cell; `None` where none was asked for, or the text is too short.
    pub(super) fn quality(&mut self) -> Result<Vec<Option<Quality>>> {
        let mut all = vec![None; self.arms.len()];
        let chunks = self.arms[0].cell.quality_chunks;
        if chunks == 0 {
            return Ok(all);
        }
        let sources: Vec<String> = self.targets.iter().map(|target| target.key.source.clone()).collect();
        for (first, source) in sources.iter().enumerate() {
            if sources[..first].contains(source) {
                continue;
            }
            for (cell, quality) in self.group(source, chunks)? {
                all[cell] = Some(quality);
            }
        }
        Ok(all)
    }

    /// The quality of all cells with targets from one source, by cell.
    fn group(&mut self, source: &str, chunks: usize) -> Result<Vec<(usize, Quality)>> {
        let chunk = self.chunk();
        let (before, ids) = self.text(source, chunks * chunk)?;
        if before.len() + ids.len() < chunk {
            return Ok(Vec::new());
        }
        let targets: Vec<usize> = (0..self.targets.len()).filter(|&at| self.targets[at].key.source == source).collect();
        // A draft of fewer ids may not know a token of the text.
        let most = ids.iter().max().map_or(0, |id| *id as usize);
        let knows = |draft: usize| self.drafts[draft].model.info().vocab > most;
        let mut pairs = self.quantized_drafts(&targets);
        pairs.retain(|(_, draft)| knows(*draft));
        let quantized: BTreeSet<usize> = pairs.iter().map(|(_, draft)| *draft).collect();
        let arms = self.arms.iter().filter(|arm| targets.contains(&arm.target));
        let drafts: BTreeSet<usize> = arms.filter_map(|arm| arm.draft).filter(|draft| knows(*draft)).collect();
        let mut floats = quantized.iter().map(|&draft| self.float_draft(draft, chunk)).collect::<Result<Vec<_>>>()?;
        let (drafts, quantized) = (Vec::from_iter(drafts), Vec::from_iter(quantized));
        let reference = reference(&self.targets, &targets);
        let gathered = targets.iter().map(|_| Gathered::default()).collect();
        let mut found = Study { targets: gathered, drafts: BTreeMap::new(), reference, chunk };
        let models = Models { targets: &targets, drafts: &drafts, floats: &mut floats };
        study(&mut self.chosen(models), Chunks { ids: &ids, before: &before, size: chunk }, &mut |seen| {
            let (of_targets, rest) = seen.predicted.split_at(targets.len());
            let (of_drafts, of_floats) = rest.split_at(drafts.len());
            found.add(of_targets, drafts.iter().zip(of_drafts), seen.next);
            for (target, draft) in &pairs {
                let place = |all: &[usize]| all.binary_search(draft).unwrap_or_default();
                let [own, float] = found.targets[*target].drafts.entry(*draft).or_default();
                own.add(&of_drafts[place(&drafts)], &of_targets[*target]);
                float.add(&of_floats[place(&quantized)], &of_targets[*target]);
            }
            Ok(())
        })?;
        self.settle(&targets, &found)
    }

    /// What stands before every text, and the first tokens of the bundled one, together at most so many.
    fn text(&self, source: &str, most: usize) -> Result<(Vec<u32>, Vec<u32>)> {
        let tokenizer = &self.sources[source].tokenizer;
        let special = self.arms.iter().any(|arm| arm.cell.workload.special_tokens);
        let before = if special { tokenizer.template().before.clone() } else { Vec::new() };
        let mut ids = tokenizer.encode(specquant_workload::eval_text())?;
        ids.truncate(most.saturating_sub(before.len()));
        Ok((before, ids))
    }

    /// The models themselves: targets, drafts, and the drafts in f16.
    fn chosen<'a>(&'a mut self, models: Models<'a>) -> Vec<&'a mut dyn Model> {
        let Models { targets, drafts, floats } = models;
        let targets = (0..).zip(&mut self.targets).filter(|(at, _)| targets.contains(at));
        let drafts = (0..).zip(&mut self.drafts).filter(|(at, _)| drafts.contains(at));
        let loaded = targets.chain(drafts).map(|(_, loaded)| &mut *loaded.model as &mut dyn Model);
        loaded.chain(floats.iter_mut().map(|model| &mut **model as &mut dyn Model)).collect()
    }

    /// What was gathered, for each cell.
    fn settle(&self, targets: &[usize], study: &Study) -> Result<Vec<(usize, Quality)>> {
        let (mut all, &Study { targets: ref gathered, ref drafts, reference, chunk }) = (Vec::new(), study);
        for (cell, arm) in self.arms.iter().enumerate() {
            let Some(at) = targets.iter().position(|&target| target == arm.target) else { continue };
            let compared = reference.filter(|&reference| reference != at);
            let matches = arm.draft.and_then(|draft| gathered[at].drafts.get(&draft));
            let draft = arm.draft.and_then(|draft| drafts.get(&draft));
            let quality = Quality {
                perplexity: gathered[at].likelihood.perplexity(chunk),
                reference: compared.map(|reference| self.targets[targets[reference]].key.weights),
                divergence: if compared.is_some() { gathered[at].divergences.divergence()? } else { None },
                draft_perplexity: draft.map(|draft| draft.perplexity(chunk).value),
                draft: matches.and_then(|[own, float]| Some([own.rates()?, float.rates()?])),
            };
            all.push((cell, quality));
        }
        Ok(all)
    }

    /// Places in `targets` and drafts of the cells whose draft has fewer than 16 bits.
    fn quantized_drafts(&self, targets: &[usize]) -> Vec<(usize, usize)> {
        let mut pairs = Vec::new();
        for arm in &self.arms {
            let target = targets.iter().position(|&target| target == arm.target);
            let draft = arm.draft.filter(|&draft| self.drafts[draft].key.weights.is_quantized());
            pairs.extend(target.zip(draft).filter(|pair| !pairs.contains(pair)));
        }
        pairs
    }

    /// A draft model in f16.
    fn float_draft(&self, draft: usize, slots: usize) -> Result<Box<dyn Model>> {
        let weights = WeightFormat::F16;
        let key = Key { weights, kv_dtype: weights.default_kv_dtype(), ..self.drafts[draft].key.clone() };
        self.load_model(&key, slots)
            .context("a quantized draft is compared with itself in f16; --quality-chunks 0 leaves that out")
    }
}

/// Slots that every model needs for a chunk, where quality is measured; 0 where it is not.
pub(super) fn least_slots(cells: &[RunSpec]) -> Result<usize> {
    let mut least = CHUNK;
    for cell in cells.iter().filter(|cell| cell.quality_chunks > 0) {
        let drafts = (cell.speculation != Speculation::Off).then_some(Role::Draft);
        for role in [Some(Role::Target), drafts].into_iter().flatten() {
            least = least.min(device::files(&role.source(cell))?.config()?.max_position_embeddings);
        }
    }
    Ok(if cells.iter().any(|cell| cell.quality_chunks > 0) { least } else { 0 })
}

/// Loads a model with room for so many tokens, and looks at its first logits.
pub(super) fn load(
    files: &specquant_model::ModelFiles,
    key: &Key,
    slots: usize,
    team: &Team,
) -> Result<Box<dyn Model>> {
    let Key { weights, quantizer, kv_dtype, .. } = *key;
    let options = specquant_model::LoadOptions { weights, quantizer, kv_dtype, kv_slots: slots, team: team.clone() };
    let mut model = specquant_model::load(files, &options)?;
    specquant_engine::finite(&mut *model)?;
    Ok(model)
}

/// The place of the widest format in a group, if it has 16 bits or more.
fn reference(loaded: &[Loaded], group: &[usize]) -> Option<usize> {
    let weights = |place: &usize| loaded[group[*place]].key.weights;
    (0..group.len()).filter(|place| !weights(place).is_quantized()).min_by_key(weights)
}

//! `specquant quality`: what each weight format costs in quality, against the same model in f32.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use specquant_core::{Memory, Model, Text, WeightFormat};
use specquant_engine::{Chunks, study};
use specquant_kernels::Team;
use specquant_machine::Machine;
use specquant_metrics::{Divergence, Divergences, Likelihood, Match, Matches, Perplexity};
use specquant_model::{ModelFiles, same_vocabulary};

use crate::args::QualityArgs;
use crate::device;
use crate::{Ended, note, show};

/// Prints the quality of a model in each format over a text.
pub(crate) fn quality(args: &QualityArgs, json: bool) -> Result<Ended> {
    let files = device::files(args.model.name())?;
    let text = match args.text.as_str() {
        "bundled" => specquant_workload::eval_text().to_string(),
        path => specquant_workload::text(Path::new(path))?,
    };
    let tokenizer = files.tokenizer()?;
    let ids = tokenizer.encode(&text)?;
    let before = if args.no_special_tokens { &[] } else { tokenizer.template().before.as_slice() };
    files.notes(Some(&tokenizer))?.iter().for_each(|said| note(&format!("note: {said}")));
    let context = files.config()?.max_position_embeddings;
    let chunk = args.chunk;
    ensure!(
        (4..=context).contains(&chunk),
        "--chunk {chunk}: must lie in 4..={context}, the context of {}",
        files.name()
    );
    let draft = draft(args)?;
    if let Some(draft) = &draft {
        same_vocabulary(&tokenizer, &draft.tokenizer()?).with_context(|| {
            format!("`{}` cannot draft for `{}`: take another --draft, or none", draft.name(), files.name())
        })?;
    }
    let team = device::team(args.threads, &Machine::read())?;
    let formats = device::formats(&args.weights)?;
    let study = Study {
        files: &files,
        draft: draft.as_ref(),
        args,
        team: &team,
        text: Chunks { ids: &ids, before, size: chunk },
    };
    let rows = formats.into_iter().map(|weights| study.row(weights)).collect::<Result<Vec<_>>>()?;
    let draft = draft.as_ref().map(ModelFiles::name);
    let document =
        Document { model: files.name(), draft, quantizer: &args.quantizer, tokens: ids.len(), formats: rows };
    show(&if json { serde_json::to_string(&document)? } else { document.table(chunk) })?;
    Ok(Ended::Done)
}

/// The draft model: the bundled one for the bundled target unless another is named.
fn draft(args: &QualityArgs) -> Result<Option<ModelFiles>> {
    let name = match args.draft.as_deref() {
        Some("none") => return Ok(None),
        Some("bundled") => "bundled:draft",
        Some(name) => name,
        None if ["bundled", "bundled:target"].contains(&args.model.name()) => "bundled:draft",
        None => return Ok(None),
    };
    device::files(name).map(Some).with_context(|| format!("--draft {name}"))
}

/// What every row is measured with.
struct Study<'a> {
    files: &'a ModelFiles,
    draft: Option<&'a ModelFiles>,
    args: &'a QualityArgs,
    team: &'a Team,
    text: Chunks<'a>,
}

impl Study<'_> {
    /// A format beside f32.
    fn row(&self, weights: WeightFormat) -> Result<Row> {
        let mut models = vec![self.load(self.files, WeightFormat::F32)?, self.load(self.files, weights)?];
        if let Some(draft) = self.draft {
            models.extend([self.load(draft, WeightFormat::F32)?, self.load(draft, weights)?]);
        }
        let (mut likelihood, mut divergences) = (Likelihood::default(), Divergences::default());
        let (mut as_target, mut as_draft) = (Matches::default(), Matches::default());
        let mut all: Vec<&mut dyn Model> = models.iter_mut().map(|model| &mut **model as &mut dyn Model).collect();
        study(&mut all, self.text, &mut |chunk| {
            likelihood.add(&chunk.predicted[1], chunk.next);
            divergences.add(&chunk.predicted[1], &chunk.predicted[0], chunk.next);
            if let [f32, model, draft_f32, draft] = &chunk.predicted[..] {
                as_target.add(draft_f32, model);
                as_draft.add(draft, f32);
            }
            Ok(())
        })?;
        let (perplexity, info) = (likelihood.perplexity(self.args.chunk), models[1].info());
        let elements = (info.work.row_flops + info.work.scored_flops) / 2;
        let divergence = divergences.divergence()?.with_context(|| {
            format!(
                "{} in {weights}: the text has no finite likelihood: its weights are damaged or overflow",
                info.name
            )
        })?;
        Ok(Row {
            weights,
            bits_per_weight: 8.0 * info.memory.matrices as f64 / elements as f64,
            memory: info.memory,
            perplexity,
            against_f32: (weights != WeightFormat::F32).then_some(divergence),
            accepts_f32_draft: as_target.rates(),
            drafts_for_f32: as_draft.rates(),
        })
    }

    fn load(&self, files: &ModelFiles, weights: WeightFormat) -> Result<Box<dyn Model>> {
        let (quantizer, chunk) = (device::quantizer(&self.args.quantizer)?, self.args.chunk);
        device::load(files, weights, quantizer, chunk, self.team)
    }
}

/// What the command found.
#[derive(Serialize)]
struct Document<'a> {
    model: &'a str,
    draft: Option<&'a str>,
    quantizer: &'a str,
    /// Tokens of the text.
    tokens: usize,
    formats: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    weights: WeightFormat,
    /// Of the matrices, scales and padding included.
    bits_per_weight: f64,
    memory: Memory,
    perplexity: Perplexity,
    /// `None` for f32 itself.
    against_f32: Option<Divergence>,
    /// This format as the target of an f32 draft.
    accepts_f32_draft: Option<Match>,
    /// The draft in this format, for the f32 target.
    drafts_for_f32: Option<Match>,
}

impl Document<'_> {
    fn table(&self, chunk: usize) -> String {
        let scored = self.formats.first().map_or(0, |row| row.perplexity.scored_tokens);
        let mut lines = vec![format!(
            "{}: {} tokens in chunks of {chunk}, the second half of each scored ({scored} tokens); divergence in nats",
            self.model, self.tokens
        )];
        let acceptance = if self.draft.is_some() { "  accepts f32 draft  drafts for f32" } else { "" };
        lines.push(format!(
            "{:<12} {:>5} {:>8} {:>11}  {:<22} {:>9} {:>9} {:>9}{acceptance}",
            "weights", "bits", "MiB", "perplexity", "against f32 [95%]", "mean KLD", "p99 KLD", "same top"
        ));
        lines.extend(self.formats.iter().map(Row::line));
        if let Some(draft) = self.draft {
            lines.push(format!("Acceptance: greedy, along the text, of {draft}; a run measures it on outputs."));
        }
        lines.join("\n")
    }
}

impl Row {
    fn line(&self) -> String {
        let against = match &self.against_f32 {
            None => format!("{:<22} {:>9} {:>9} {:>9}", "reference", "", "", ""),
            Some(Divergence { perplexity, mean_kld, p99_kld, same_top }) => {
                let ratio = perplexity.interval.map_or(String::new(), |interval| {
                    let percent = |ratio: f64| 100.0 * (ratio - 1.0);
                    let (low, high) = (percent(interval.low), percent(interval.high));
                    format!("{:+.2}% [{low:+.2}, {high:+.2}]", percent(perplexity.ratio))
                });
                format!("{ratio:<22} {mean_kld:>9.6} {p99_kld:>9.6} {:>8.2}%", 100.0 * same_top)
            }
        };
        let share = |rates: Option<Match>| rates.map_or(String::new(), |rates| format!("{:.4}", rates.greedy));
        format!(
            "{:<12} {:>5.2} {:>8.2} {:>11.5}  {against}  {:>17}  {:>14}",
            self.weights,
            self.bits_per_weight,
            self.memory.matrices as f64 / f64::from(1 << 20),
            self.perplexity.value,
            share(self.accepts_f32_draft),
            share(self.drafts_for_f32),
        )
        .trim_end()
        .to_string()
    }
}

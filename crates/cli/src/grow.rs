//! `specquant model grow`: a trained model at the cost of a larger one; and `specquant model compare`, which says whether two
//! models answer alike.

use std::io::IsTerminal;

use anyhow::{Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use specquant_core::{Batch, Greedy, Model, Run, Score, Scores, Text, greedy};
use specquant_machine::Machine;
use specquant_model::{Shape, same_vocabulary};

use crate::args::{CompareArgs, GrowArgs};
use crate::{Ended, device, show};

/// Writes the enlarged model and says what it is.
pub(crate) fn grow(args: &GrowArgs, json: bool) -> Result<Ended> {
    let files = device::files(&args.from)?;
    let old = Shape::of(&files.config()?);
    let named = args.like.as_deref().map_or(Ok(old), |name| old.like(name))?;
    let shape = Shape {
        hidden: args.hidden.unwrap_or(named.hidden),
        layers: args.layers.unwrap_or(named.layers),
        heads: args.heads.unwrap_or(named.heads),
        kv_heads: args.kv_heads.unwrap_or(named.kv_heads),
        head_dim: args.head_dim.unwrap_or(named.head_dim),
        intermediate: args.intermediate.unwrap_or(named.intermediate),
        max_position: args.max_position.unwrap_or(named.max_position),
    };
    let hidden = !std::io::stderr().is_terminal();
    let bar = if hidden { ProgressBar::hidden() } else { ProgressBar::new(0) };
    bar.set_style(ProgressStyle::with_template("writing {bar:30} {bytes} of {total_bytes}")?);
    let grown = specquant_model::grow(&files, &shape, args.seed, &args.out, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    let note = if shape.max_position > old.max_position {
        format!("; positions from {} on were never trained: for timing only", old.max_position)
    } else {
        String::new()
    };
    if json {
        let (from, parameters, bytes) = (files.name(), grown.parameters, grown.bytes);
        show(&serde_json::json!({ "from": from, "parameters": parameters, "bytes": bytes }).to_string())?;
    } else {
        let (out, from) = (args.out.display(), files.name());
        show(&format!(
            "{out}: {} parameters, {:.0} MiB, the same function as {from}{note}",
            grown.parameters,
            grown.bytes as f64 / f64::from(1 << 20)
        ))?;
    }
    Ok(Ended::Done)
}

/// What `model compare --json` prints.
#[derive(Debug, Default, Serialize)]
struct Comparison {
    prompts: usize,
    rows: usize,
    /// Rows in which the likeliest tokens differ.
    different: usize,
    largest_difference: f32,
    /// The least lead of the likeliest token in the first model's rows.
    least_lead: f32,
}

/// Runs the bundled prompts and the first model's greedy continuation of each through both models.
pub(crate) fn compare(args: &CompareArgs, json: bool) -> Result<Ended> {
    let [first, second] = both(args)?;
    let (a, b) = (device::files(first)?, device::files(second)?);
    let (text, other) = (a.tokenizer()?, b.tokenizer()?);
    same_vocabulary(&text, &other)?;
    let [format] = device::formats(&args.weights)?[..] else {
        anyhow::bail!("--weights {}: give one format", args.weights)
    };
    let team = device::team(args.threads, &Machine::read())?;
    let slots = a.config()?.max_position_embeddings.min(b.config()?.max_position_embeddings);
    let load = |files| device::load(files, format, specquant_core::Quantizer::Mse, slots, &team);
    let (mut a, mut b) = (load(&a)?, load(&b)?);
    let prompts = specquant_workload::bundled()?;
    ensure!(args.num_prompts > 0, "--num-prompts 0: give at least 1");
    let mut found = Comparison { least_lead: f32::INFINITY, ..Comparison::default() };
    for prompt in prompts.iter().take(args.num_prompts) {
        let (mut tokens, _) = text.template().around(&text.encode(&prompt.text)?);
        tokens.truncate(slots - 1);
        let more = args.max_new_tokens.min(slots - tokens.len());
        continued(a.as_mut(), &mut tokens, more)?;
        let (a, b) = (logits(a.as_mut(), &tokens)?, logits(b.as_mut(), &tokens)?);
        found.prompts += 1;
        for (a, b) in a.iter().zip(&b) {
            let (Greedy { id, logit, runner_up }, other) = (greedy(a), greedy(b));
            found.rows += 1;
            found.different += usize::from(id != other.id);
            found.least_lead = found.least_lead.min(logit - runner_up);
            let difference = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            found.largest_difference = found.largest_difference.max(difference);
        }
    }
    if json {
        show(&serde_json::to_string(&found)?)?;
    } else {
        let Comparison { prompts, rows, different, largest_difference, least_lead } = &found;
        show(&format!(
            "{format}: the likeliest token differs in {different} of {rows} rows of {prompts} prompts; largest difference \
             of a logit {largest_difference:e}, least lead of a likeliest token {least_lead:e}"
        ))?;
    }
    Ok(if found.different == 0 { Ended::Done } else { Ended::Wrong })
}

/// The two models to compare, by their names.
fn both(args: &CompareArgs) -> Result<[&str; 2]> {
    let mut models = args.models.iter();
    let first = args.target.as_ref().or_else(|| models.next());
    let second = args.draft.as_ref().or_else(|| models.next());
    match (first, second, models.next()) {
        (Some(first), Some(second), None) => Ok([first, second]),
        _ => anyhow::bail!("give two models, such as `model compare bundled:target DIR`"),
    }
}

/// Adds the greedy continuation of so many tokens.
fn continued(model: &mut dyn Model, tokens: &mut Vec<u32>, n: usize) -> Result<()> {
    let mut start = 0;
    for _ in 0..n {
        let slots: Vec<u32> = (0..tokens.len() as u32).collect();
        let run = Run { seq: 0, tokens: &tokens[start..], start, slots: &slots, score: Score::Greedy { rows: 1 } };
        let scores = model.forward(&Batch { runs: vec![run] })?;
        let [Scores::Greedy(rows)] = &scores[..] else { anyhow::bail!("the model answered without a token") };
        start = tokens.len();
        tokens.push(rows[0].id);
    }
    Ok(())
}

/// The logits of every row.
fn logits(model: &mut dyn Model, tokens: &[u32]) -> Result<Vec<Vec<f32>>> {
    let slots: Vec<u32> = (0..tokens.len() as u32).collect();
    let run = Run { seq: 0, tokens, start: 0, slots: &slots, score: Score::Logits { rows: tokens.len() } };
    match model.forward(&Batch { runs: vec![run] })?.pop() {
        Some(Scores::Logits(rows)) => Ok(rows),
        _ => anyhow::bail!("the model answered without logits"),
    }
}

//! `specquant model`: what a checkpoint is, and what it answers.

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use specquant_core::{Batch, Run, Score, Scores, WeightFormat};
use specquant_machine::Machine;

use crate::args::{LogitsArgs, Named};
use crate::device;
use crate::{Ended, show};

/// Prints shape, sizes and dtypes.
pub(crate) fn info(model: &Named, json: bool) -> Result<Ended> {
    let summary = device::files(model.name())?.summary()?;
    if json {
        show(&serde_json::to_string_pretty(&summary)?)?;
        return Ok(Ended::Done);
    }
    let config = &summary.config;
    let heads = format!(
        "{} query, {} key-value, {} wide",
        config.num_attention_heads, config.num_key_value_heads, config.head_dim
    );
    let begins = match &summary.begins_with[..] {
        [] => "the text itself: the tokenizer puts no token before it".to_string(),
        ids => format!("{ids:?}, which the tokenizer puts before every text"),
    };
    let mut lines = vec![
        ("parameters", summary.parameters.to_string()),
        ("vocabulary", config.vocab_size.to_string()),
        ("context", config.max_position_embeddings.to_string()),
        ("layers", config.num_hidden_layers.to_string()),
        ("hidden, FFN", format!("{}, {}", config.hidden_size, config.intermediate_size)),
        ("heads", heads),
        ("RoPE base", config.rope_theta.to_string()),
        ("head", if config.tie_word_embeddings { "tied to the embedding" } else { "of its own" }.to_string()),
        ("begins with", begins),
        ("ends with", format!("{:?}, by generation_config, else config, else tokenizer_config", config.eos_token_ids)),
    ];
    for dtype in &summary.dtypes {
        lines.push((&dtype.dtype, format!("{} tensors, {} bytes", dtype.tensors, dtype.bytes)));
    }
    for file in &summary.files {
        lines.push((&file.file, format!("{} bytes", file.bytes)));
    }
    for file in &summary.unread {
        lines.push((&file.file, format!("not read ({} bytes)", file.bytes)));
    }
    lines.extend(summary.notes.iter().map(|note| ("note", note.clone())));
    let lines: Vec<String> = lines.iter().map(|(name, value)| format!("  {name:<18} {value}")).collect();
    show(&format!("{}\n{}", summary.name, lines.join("\n")))?;
    Ok(Ended::Done)
}

/// What `model logits --json` prints.
#[derive(Serialize)]
struct Logits<'a> {
    model: &'a str,
    weights: WeightFormat,
    tokens: &'a [u32],
    logits: &'a [f32],
}

/// Prints the logits after the given tokens.
pub(crate) fn logits(args: &LogitsArgs, json: bool) -> Result<Ended> {
    let files = device::files(args.model.name())?;
    let [weights] = device::formats(&args.weights)?[..] else { bail!("--weights {}: give one format", args.weights) };
    let team = device::team(args.threads, &Machine::read())?;
    let (tokens, n) = (&args.tokens, args.tokens.len());
    let context = files.config()?.max_position_embeddings;
    ensure!(n <= context, "--tokens: {n} tokens are more than the model's context of {context}");
    let mut model = device::load(&files, weights, device::quantizer(&args.quantizer)?, n, &team)?;
    let slots: Vec<u32> = (0..n as u32).collect();
    let run = Run { seq: 0, tokens, start: 0, slots: &slots, score: Score::Logits { rows: 1 } };
    let scores = model.forward(&Batch { runs: vec![run] }).context("--tokens")?;
    let [Scores::Logits(rows)] = &scores[..] else { bail!("the model answered without logits") };
    let sound = rows[0].iter().all(|logit| logit.is_finite());
    ensure!(sound, "{}: its logits are not finite: its weights are damaged or overflow", files.name());
    if json {
        show(&serde_json::to_string(&Logits { model: files.name(), weights, tokens, logits: &rows[0] })?)?;
        return Ok(Ended::Done);
    }
    let mut best: Vec<(usize, f32)> = rows[0].iter().copied().enumerate().collect();
    best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let lines: Vec<String> =
        best.into_iter().take(args.top).map(|(id, logit)| format!("{id:>8} {logit:>12.6}")).collect();
    show(&lines.join("\n"))?;
    Ok(Ended::Done)
}

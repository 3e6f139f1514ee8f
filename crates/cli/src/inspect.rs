//! `specquant model`: what a checkpoint is, and what it answers.

use anyhow::{Result, bail, ensure};
use serde_json::json;
use specquant_core::{Batch, Run, Score, Scores};
use specquant_machine::Machine;

use crate::Ended;
use crate::args::LogitsArgs;
use crate::device;

/// Prints shape, sizes and dtypes.
pub(crate) fn info(model: &str, json: bool) -> Result<Ended> {
    let summary = device::files(model)?.summary()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&summary)?);
        return Ok(Ended::Done);
    }
    let config = &summary.config;
    println!("{}", summary.name);
    println!("  parameters   {}", summary.parameters);
    println!("  vocabulary   {}", config.vocab_size);
    println!("  context      {}", config.max_position_embeddings);
    println!("  layers       {}", config.num_hidden_layers);
    println!("  hidden, FFN  {}, {}", config.hidden_size, config.intermediate_size);
    println!(
        "  heads        {} query, {} key-value, {} wide",
        config.num_attention_heads, config.num_key_value_heads, config.head_dim
    );
    println!("  RoPE base    {}", config.rope_theta);
    println!("  head         {}", if config.tie_word_embeddings { "tied to the embedding" } else { "of its own" });
    println!("  ends with    {:?}", config.eos_token_ids);
    for dtype in &summary.dtypes {
        println!("  {:<12} {} tensors, {} bytes", dtype.dtype, dtype.tensors, dtype.bytes);
    }
    for file in &summary.files {
        println!("  {:<12} {} bytes", file.file, file.bytes);
    }
    Ok(Ended::Done)
}

/// Prints the logits after the given tokens.
pub(crate) fn logits(args: &LogitsArgs, json: bool) -> Result<Ended> {
    let files = device::files(&args.model)?;
    let [weights] = device::formats(&args.weights)?[..] else { bail!("--weights {}: give one format", args.weights) };
    let team = device::team(args.threads, &Machine::read())?;
    let (tokens, n) = (&args.tokens, args.tokens.len());
    let context = files.config()?.max_position_embeddings;
    ensure!(n <= context, "--tokens: {n} tokens are more than the model's context of {context}");
    let mut model = device::load(&files, weights, n, &team)?;
    let slots: Vec<u32> = (0..n as u32).collect();
    let run = Run { seq: 0, tokens, start: 0, slots: &slots, score: Score::Logits { rows: 1 } };
    let scores = model.forward(&Batch { runs: vec![run] })?;
    let [Scores::Logits(rows)] = &scores[..] else { bail!("the model answered without logits") };
    if json {
        let document = json!({ "model": files.name(), "weights": weights, "tokens": tokens, "logits": rows[0] });
        println!("{document}");
        return Ok(Ended::Done);
    }
    let mut best: Vec<(usize, f32)> = rows[0].iter().copied().enumerate().collect();
    best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    for (id, logit) in best.into_iter().take(args.top) {
        println!("{id:>8} {logit:>12.6}");
    }
    Ok(Ended::Done)
}

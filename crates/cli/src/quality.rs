//! `specquant quality`: how good a model's predictions are in each weight format.

use anyhow::{Context, Result};
use serde_json::json;
use specquant_core::Text;
use specquant_engine::perplexity;
use specquant_machine::Machine;

use crate::Ended;
use crate::args::QualityArgs;
use crate::device;

/// Prints the perplexity of a text for each format.
pub(crate) fn quality(args: &QualityArgs, json: bool) -> Result<Ended> {
    let files = device::files(&args.model)?;
    let text = match args.text.as_str() {
        "bundled" => specquant_workload::eval_text().to_string(),
        path => std::fs::read_to_string(path).with_context(|| format!("{path}: cannot read the text as UTF-8"))?,
    };
    let ids = files.tokenizer()?.encode(&text)?;
    let team = device::team(args.threads, &Machine::read())?;
    let mut rows = Vec::new();
    for weights in device::formats(&args.weights)? {
        let mut model = device::load(&files, weights, args.chunk, &team)?;
        rows.push((weights, perplexity(&mut *model, &ids, args.chunk)?));
    }
    if json {
        let formats: Vec<_> =
            rows.iter().map(|(weights, perplexity)| json!({ "weights": weights, "perplexity": perplexity })).collect();
        println!("{}", json!({ "model": files.name(), "tokens": ids.len(), "formats": formats }));
        return Ok(Ended::Done);
    }
    println!("{}: {} tokens, chunks of {}, second halves scored", files.name(), ids.len(), args.chunk);
    println!("{:<10} {:>12} {:>14}", "weights", "perplexity", "scored tokens");
    for (weights, perplexity) in rows {
        println!("{weights:<10} {:>12.5} {:>14}", perplexity.value, perplexity.scored_tokens);
    }
    Ok(Ended::Done)
}

//! `specquant quality`: how good a model's predictions are in each weight format.

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use specquant_core::{Text, WeightFormat};
use specquant_engine::{Perplexity, perplexity};
use specquant_machine::Machine;

use crate::args::QualityArgs;
use crate::device;
use crate::{Ended, show};

/// Prints the perplexity of a text for each format.
pub(crate) fn quality(args: &QualityArgs, json: bool) -> Result<Ended> {
    let files = device::files(&args.model)?;
    let text = match args.text.as_str() {
        "bundled" => specquant_workload::eval_text().to_string(),
        path => std::fs::read_to_string(path).with_context(|| format!("{path}: cannot read the text as UTF-8"))?,
    };
    let ids = files.tokenizer()?.encode(&text)?;
    let context = files.config()?.max_position_embeddings;
    let chunk = args.chunk;
    ensure!(
        (4..=context).contains(&chunk),
        "--chunk {chunk}: must lie in 4..={context}, the context of {}",
        files.name()
    );
    let team = device::team(args.threads, &Machine::read())?;
    let mut formats = Vec::new();
    for weights in device::formats(&args.weights)? {
        let mut model = device::load(&files, weights, args.chunk, &team)?;
        formats.push(Row { weights, perplexity: perplexity(&mut *model, &ids, args.chunk)? });
    }
    let document = Document { model: files.name(), tokens: ids.len(), formats };
    show(&if json { serde_json::to_string(&document)? } else { document.table(args.chunk) })?;
    Ok(Ended::Done)
}

/// What the command found.
#[derive(Serialize)]
struct Document<'a> {
    model: &'a str,
    /// Tokens of the text.
    tokens: usize,
    formats: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    weights: WeightFormat,
    perplexity: Perplexity,
}

impl Document<'_> {
    fn table(&self, chunk: usize) -> String {
        let head = format!(
            "{}: {} tokens, chunks of {chunk}, second halves scored\n{:<10} {:>12} {:>14}",
            self.model, self.tokens, "weights", "perplexity", "scored tokens"
        );
        let row = |row: &Row| {
            format!("{:<10} {:>12.5} {:>14}", row.weights, row.perplexity.value, row.perplexity.scored_tokens)
        };
        [head].into_iter().chain(self.formats.iter().map(row)).collect::<Vec<_>>().join("\n")
    }
}

//! `specquant generate`: one prompt, continued.

use anyhow::{Result, bail};
use serde::Serialize;
use specquant_core::{Reason, RunSpec, expand};
use specquant_engine::Output;
use specquant_metrics::Summary;
use specquant_workload::{Dataset, Prompt};

use crate::args::GenerateArgs;
use crate::interrupt::Interrupt;
use crate::overlay::cell_table;
use crate::run::Bench;
use crate::{Ended, note, show};

/// Continues the prompt and prints its continuation.
pub(crate) fn generate(args: &GenerateArgs, json: bool) -> Result<Ended> {
    let mut cells = expand(&cell_table(&args.cell)?)?;
    let [only] = &mut cells[..] else { bail!("generate runs one cell: give every flag a single value") };
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => specquant_workload::text(path)?,
        (None, None) => bail!("no prompt: give --prompt TEXT or --prompt-file FILE"),
    };
    // What messages and the printed spec name as the source of the prompt.
    only.workload.prompts = if args.prompt.is_some() { "--prompt" } else { "--prompt-file" }.into();
    let prompt = Prompt { id: "prompt".into(), category: None, text };
    let mut bench = Bench::load(&cells, |_| Ok(Dataset { prompts: vec![prompt.clone()], notes: Vec::new() }))?;
    bench.notes().iter().for_each(|said| note(&format!("note: {said}")));
    let interrupt = Interrupt::listen()?;
    let Some(pass) = bench.pass(0, 0..1, &|| interrupt.asked())? else { return Ok(Ended::Interrupted) };
    let cell = &cells[0];
    let summary = Summary::of(std::slice::from_ref(&pass.measured));
    let output = &pass.outputs[0];
    if json {
        let (device, summary) = (bench.device(), &summary);
        let Output { text, tokens, reason, .. } = output;
        show(&serde_json::to_string(&Document { text, tokens, reason: *reason, spec: cell, device, summary })?)?;
        return Ok(Ended::Done);
    }
    show(&output.text)?;
    let mut facts = vec![format!("{} tokens, {}", output.tokens.len(), ended(output.reason)), bench.device()];
    if let (Some(ttft), Some(decode)) = (&summary.latency.ttft_ms, summary.phases.decode_tok_s) {
        facts.push(format!("TTFT {:.1} ms, decode {decode:.0} tok/s", ttft.p50.value));
    }
    let rates = &summary.acceptance;
    if let Some(acceptance) = rates.draft_acceptance {
        facts.push(format!("{}: accepted {acceptance:.3} of drafted, tau {:.2}", cell.speculation, rates.tau));
    }
    note(&facts.join(" | "));
    Ok(Ended::Done)
}

/// Why an output ended, in words.
fn ended(reason: Reason) -> &'static str {
    match reason {
        Reason::Eos => "ended by an end-of-text token",
        Reason::Stop => "ended by a stop string",
        Reason::Length => "as many as asked for",
        Reason::Context => "up to the end of the model's context",
    }
}

/// What `generate --json` prints.
#[derive(Serialize)]
struct Document<'a> {
    text: &'a str,
    tokens: &'a [u32],
    reason: Reason,
    spec: &'a RunSpec,
    device: String,
    summary: &'a Summary,
}

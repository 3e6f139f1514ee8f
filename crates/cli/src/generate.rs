//! `specquant generate`: one prompt, continued.

use anyhow::{Context, Result, bail};
use serde_json::json;
use specquant_core::expand;
use specquant_metrics::Summary;
use specquant_workload::Prompt;

use crate::Ended;
use crate::args::GenerateArgs;
use crate::interrupt::Interrupt;
use crate::overlay::cell_table;
use crate::run::Bench;

/// Continues the prompt and prints its continuation.
pub(crate) fn generate(args: &GenerateArgs, json: bool) -> Result<Ended> {
    let cells = expand(&cell_table(&args.cell)?)?;
    let [cell] = &cells[..] else { bail!("generate runs one cell: give every flag a single value") };
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => {
            std::fs::read_to_string(path).with_context(|| format!("{}: cannot read the prompt", path.display()))?
        }
        (None, None) => bail!("no prompt: give --prompt TEXT or --prompt-file FILE"),
    };
    let prompt = Prompt { id: "prompt".into(), category: None, text };
    let mut bench = Bench::load(&cells, |_| Ok(vec![prompt.clone()]))?;
    let interrupt = Interrupt::listen()?;
    let Some(pass) = bench.pass(0, usize::MAX, &|| interrupt.asked())? else { return Ok(Ended::Interrupted) };
    let summary = Summary::of(std::slice::from_ref(&pass.measured));
    let output = &pass.outputs[0];
    if json {
        let document = json!({
            "text": output.text,
            "tokens": output.tokens,
            "reason": output.reason,
            "spec": cell,
            "device": bench.device(),
            "summary": summary,
        });
        println!("{document}");
        return Ok(Ended::Done);
    }
    println!("{}", output.text);
    let rates = &summary.acceptance;
    eprint!("{} tokens, ended by {:?} | {}", output.tokens.len(), output.reason, bench.device());
    if let (Some(ttft), Some(decode)) = (&summary.latency.ttft_ms, summary.phases.decode_tok_s) {
        eprint!(" | TTFT {:.1} ms, decode {decode:.0} tok/s", ttft.p50.value);
    }
    if let Some(acceptance) = rates.draft_acceptance {
        eprint!(" | {}: accepted {acceptance:.3} of drafted, tau {:.2}", cell.speculation, rates.tau);
    }
    eprintln!();
    Ok(Ended::Done)
}

//! The table of a run, for a terminal and as Markdown: one line for each arm, with its verdict.
//!
//! Every rate stands in a row with a latency percentile, and every ratio says what it is a ratio to.

use comfy_table::{CellAlignment, Table, TableStyle, presets};
use specquant_core::Sampling;
use specquant_metrics::{Paired, Percentile};

use crate::record::{Record, Speedup, Verdict};

/// Column titles; units stand in the second line.
const COLUMNS: [&str; 14] = [
    "target\n",
    "weights\n",
    "spec\n",
    "prefill\ntok/s",
    "decode\ntok/s",
    "TTFT p50\nms",
    "TPOT p50/p95\nms",
    "decode vs own plain\n[95%]",
    "predicted\n",
    "vs plain\nf16",
    "alpha\n",
    "accepted\n",
    "tau\n",
    "output\n",
];

/// Columns whose values are words.
const WORDS: [usize; 4] = [0, 1, 2, 13];

/// What was run, on what: the lines above the table.
pub fn header(record: &Record) -> String {
    let run = &record.run;
    let models: Vec<String> = run
        .models
        .iter()
        .map(|model| format!("{} {} {}", model.name, parameters(model.parameters), model.weights))
        .collect();
    let cell = &run.cells[0];
    format!(
        "specquant {} | {} | {} | {}\n{} prompt{}, mean {:.0} tokens in, {:.0} out | {} | {}, KV {} | {}",
        run.version,
        models.join(" + "),
        run.machine.cpu,
        run.device,
        run.prompts,
        if run.prompts == 1 { "" } else { "s" },
        run.prompt_tokens,
        record.arms[0].summary.throughput.mean_output_tokens.unwrap_or(0.0),
        sampling(&cell.sampling),
        cell.batching,
        cell.kv,
        rounds(record),
    )
}

/// The table for a terminal.
pub fn text(record: &Record) -> String {
    render(record, presets::NOTHING, str::to_string)
}

/// The header and the table as Markdown.
pub fn markdown(record: &Record) -> String {
    // A Markdown cell cannot hold a line break.
    let table = render(record, presets::ASCII_MARKDOWN, |title| title.trim().replace('\n', " "));
    format!("# specquant run {}\n\n{}\n\n{table}\n", record.run.began, header(record).replace('\n', "  \n"))
}

fn render(record: &Record, style: TableStyle, title: fn(&str) -> String) -> String {
    let mut table = Table::new();
    table.load_style(style).set_header(COLUMNS.map(title));
    for at in 0..record.arms.len() {
        table.add_row(row(record, at));
    }
    for (at, column) in table.column_iter_mut().enumerate() {
        column.set_cell_alignment(if WORDS.contains(&at) { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.trim_fmt()
}

fn row(record: &Record, at: usize) -> Vec<String> {
    let arm = &record.arms[at];
    let (summary, latency) = (&arm.summary, &arm.summary.latency);
    let targets = &record.run.targets;
    let repeated = at > 0 && targets[at] == targets[at - 1];
    let target = if repeated { String::new() } else { parameters(record.run.models[targets[at]].parameters) };
    let control = record.arms.iter().any(|other| other.spec != arm.spec && other.spec.plain() == arm.spec);
    let drafted = summary.acceptance.drafting_steps > 0;
    if matches!(arm.verdict, Verdict::Differs { .. }) {
        // The speed of wrong output is no speed.
        let mut cells = vec![target, arm.spec.weights.to_string(), arm.spec.speculation.to_string()];
        cells.resize(COLUMNS.len() - 1, String::new());
        cells.push(verdict(&arm.verdict));
        return cells;
    }
    vec![
        target,
        arm.spec.weights.to_string(),
        arm.spec.speculation.to_string(),
        rate(summary.phases.prefill_tok_s),
        rate(summary.phases.decode_tok_s),
        latency.ttft_ms.map_or(String::new(), |ttft| milliseconds(ttft.p50)),
        latency.tpot_ms.map_or(String::new(), |tpot| format!("{}/{}", milliseconds(tpot.p50), milliseconds(tpot.p95))),
        arm.vs_plain.as_ref().map_or(if control { "control" } else { "" }.into(), |ratio| interval(&ratio.decode)),
        arm.costs.and_then(|costs| costs.predicted).map_or(String::new(), |ratio| format!("{ratio:.2}x")),
        arm.vs_f16.as_ref().map_or(String::new(), |Speedup { decode, .. }| format!("{:.2}x", decode.ratio)),
        decimals(summary.acceptance.evaluated_acceptance, 3),
        decimals(summary.acceptance.draft_acceptance, 3),
        if drafted { format!("{:.2}", summary.acceptance.tau) } else { String::new() },
        verdict(&arm.verdict),
    ]
}

/// A count of parameters as people say it: 5.2M, 110M, 1.1B.
pub(crate) fn parameters(n: u64) -> String {
    let (n, unit) = match n {
        0..1_000_000 => (n as f64 / 1e3, "K"),
        1_000_000..1_000_000_000 => (n as f64 / 1e6, "M"),
        _ => (n as f64 / 1e9, "B"),
    };
    if n < 10.0 { format!("{n:.1}{unit}") } else { format!("{n:.0}{unit}") }
}

fn sampling(sampling: &Sampling) -> String {
    if sampling.is_greedy() {
        return "greedy".into();
    }
    let Sampling { temperature, top_k, top_p, min_p } = sampling;
    format!("sampled: temperature {temperature}, top-k {top_k}, top-p {top_p}, min-p {min_p}")
}

fn rounds(record: &Record) -> String {
    let seconds: f64 = record.arms.iter().map(|arm| arm.summary.throughput.wall_s).sum();
    let interrupted = if record.interrupted { ", interrupted" } else { "" };
    let plural = if record.rounds == 1 { "" } else { "s" };
    format!("{} interleaved round{plural}, {seconds:.0} s measured{interrupted}", record.rounds)
}

fn rate(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| if value < 100.0 { format!("{value:.1}") } else { format!("{value:.0}") })
}

/// A percentile; one that the sample is too small for is marked.
fn milliseconds(percentile: Percentile) -> String {
    let mark = if percentile.supported { "" } else { "?" };
    match percentile.value {
        value if value < 10.0 => format!("{value:.2}{mark}"),
        value => format!("{value:.0}{mark}"),
    }
}

fn decimals(value: Option<f64>, places: usize) -> String {
    value.map_or(String::new(), |value| format!("{value:.places$}"))
}

/// A ratio with its interval, such as `1.11x [1.08, 1.14]`.
pub(crate) fn interval(ratio: &Paired) -> String {
    match &ratio.interval {
        Some(interval) => format!("{:.2}x [{:.2}, {:.2}]", ratio.ratio, interval.low, interval.high),
        None => format!("{:.2}x [one round]", ratio.ratio),
    }
}

fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Reference => "reference".into(),
        Verdict::SameBits => "same bits".into(),
        Verdict::Sampled => "sampled".into(),
        Verdict::Differs { request, token, .. } => format!("WRONG (request {request}, token {token})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{rounds, run};
    use crate::{Check, caution, conclusion};

    #[test]
    fn a_run_reads_well_on_a_terminal_and_as_markdown() {
        let record = Record::derive(&run(), &rounds(3, 15), false).unwrap();
        insta::assert_snapshot!("terminal", format!("{}\n{}", header(&record), text(&record)));
        insta::assert_snapshot!("markdown", markdown(&record));
        insta::assert_snapshot!("notes", format!("{}\n{}", caution(&record).unwrap(), conclusion(&record)));
    }

    #[test]
    fn a_run_whose_speculation_loses_says_so() {
        let slow = Record::derive(&run(), &rounds(3, 40), false).unwrap();
        insta::assert_snapshot!("loses", conclusion(&slow));
        let mut wrong = rounds(2, 15);
        wrong[1].passes[1].check = Check::Differs { request: 0, token: 5 };
        let wrong = Record::derive(&run(), &wrong, false).unwrap();
        insta::assert_snapshot!("wrong", format!("{}\n{}", text(&wrong), conclusion(&wrong)));
        let one = Record::derive(&run(), &rounds(1, 15), true).unwrap();
        insta::assert_snapshot!("one_round", format!("{}\n{}", header(&one), conclusion(&one)));
    }
}

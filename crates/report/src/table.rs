//! The table of a run, for a terminal and as Markdown: one line for each arm, with its verdict.
//!
//! Every rate stands in a row with a latency percentile, and every ratio says what it is a ratio to.

use comfy_table::{CellAlignment, Table, TableStyle, presets};
use specquant_core::{Sampling, Speculation};
use specquant_metrics::{Paired, Percentile, Spread};

use crate::names::Names;
use crate::record::{Arm, Record, Verdict};

/// One column: its title, the metrics that it shows, whether its values are words, and its value for an arm. A column
/// without values is left out.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) metrics: &'static [&'static str],
    words: bool,
    value: fn(&Context<'_>, &Arm) -> String,
}

/// What columns need to know beside the arm.
pub(crate) struct Context<'a> {
    record: &'a Record,
    names: &'a Names,
}

const fn words(title: &'static str, value: fn(&Context<'_>, &Arm) -> String) -> Column {
    Column { title, metrics: &[], words: true, value }
}

const fn number(
    title: &'static str,
    metrics: &'static [&'static str],
    value: fn(&Context<'_>, &Arm) -> String,
) -> Column {
    Column { title, metrics, words: false, value }
}

/// Columns that say what an arm is; the rest says what it achieved, and is empty where its output was wrong.
const IDENTITY: usize = 4;

/// Titles hold the unit, or what a ratio is a ratio to, in the second line.
pub(crate) const COLUMNS: [Column; 18] = [
    words("target\n", target),
    words("weights\n", |_, arm| arm.spec.weights.to_string()),
    words("spec\n", |_, arm| arm.spec.speculation.to_string()),
    words("cell\n", |context, arm| context.names.further(&arm.spec)),
    number("prefill\ntok/s", &["phases.prefill_tok_s"], |_, arm| rate(arm.summary.phases.prefill_tok_s)),
    number("decode\ntok/s", &["phases.decode_tok_s"], |_, arm| rate(arm.summary.phases.decode_tok_s)),
    number("TTFT p50\nms", &["latency.ttft_ms"], |_, arm| {
        arm.summary.latency.ttft_ms.map_or(String::new(), |ttft| milliseconds(ttft.p50))
    }),
    number("TPOT p50/p95\nms", &["latency.tpot_ms"], |_, arm| {
        let both = |tpot: Spread| format!("{}/{}", milliseconds(tpot.p50), milliseconds(tpot.p95));
        arm.summary.latency.tpot_ms.map_or(String::new(), both)
    }),
    number("goodput\n1/s", &["goodput"], |_, arm| decimals(arm.goodput.and_then(|goodput| goodput.requests_s), 2)),
    number("cost per\n1K tokens", &["cost"], |_, arm| {
        arm.cost.map_or(String::new(), |cost| format!("{:.3e}", cost.per_1k_tokens))
    }),
    number("decode vs own\nplain [95%]", &["vs_plain"], vs_plain),
    number("predicted\n", &["prediction"], |_, arm| ratio(arm.prediction.map(|prediction| prediction.speedup))),
    number("decode vs\ncontrol [95%]", &["vs_control"], vs_control),
    number("alpha\n", &["acceptance.evaluated_acceptance"], |_, arm| {
        // The caution below the table tells what the star means.
        let alpha = decimals(arm.summary.acceptance.evaluated_acceptance, 3);
        if arm.spec.workload.ignore_eos && !alpha.is_empty() { format!("{alpha}*") } else { alpha }
    }),
    number("accepted\n", &["acceptance.draft_acceptance"], |_, arm| {
        decimals(arm.summary.acceptance.draft_acceptance, 3)
    }),
    number("tau\n", &["acceptance.tau"], |_, arm| {
        let rates = &arm.summary.acceptance;
        if rates.drafting_steps > 0 { format!("{:.2}", rates.tau) } else { String::new() }
    }),
    number("PPL, mean KLD\nof weights", &["quality"], quality),
    words("output\n", |_, arm| verdict(&arm.verdict)),
];

/// Place of the verdict, which every arm has.
const VERDICT: usize = COLUMNS.len() - 1;

/// What was run, on what: the lines above the table. What differs between cells stands in the table instead.
pub fn header(record: &Record) -> String {
    let run = &record.run;
    let mut models = Vec::new();
    for model in &run.models {
        let name = format!("{} {}", model.name, parameters(model.parameters));
        // A model in two formats is one model, and formats stand in the table.
        if !models.contains(&name) {
            models.push(name);
        }
    }
    let (cell, names) = (&run.cells[0], Names::of(&run.cells));
    let output = record.arms[0].summary.throughput.mean_output_tokens.unwrap_or(0.0);
    let plural = if run.prompts == 1 { "" } else { "s" };
    let mut facts = Vec::new();
    if !names.vary("workload") {
        facts.push(format!("{} prompt{plural}, mean {:.0} tokens in, {output:.0} out", run.prompts, run.prompt_tokens));
    }
    if !names.vary("sampling") {
        facts.push(sampling(&cell.sampling));
    }
    if !names.vary("batching") {
        facts.push(cell.batching.to_string());
    }
    if !names.vary("kv") {
        facts.push(format!("KV {}", cell.kv));
    }
    facts.push(rounds(record));
    format!(
        "specquant {} | {} | {} | {}\n{}",
        run.build.version,
        models.join(" + "),
        run.machine.cpu,
        run.device,
        facts.join(" | ")
    )
}

/// A plain cell's perplexity, with its divergence where the run has a wider format of the same target. Where all have one
/// format there is nothing to compare.
fn quality(context: &Context<'_>, arm: &Arm) -> String {
    let compared =
        context.record.arms.iter().any(|arm| arm.quality.is_some_and(|quality| quality.divergence.is_some()));
    let Some(quality) = arm.quality.filter(|_| compared && arm.spec.speculation == Speculation::Off) else {
        return String::new();
    };
    let divergence = quality.divergence.map_or("reference".into(), |divergence| format!("{:.5}", divergence.mean_kld));
    format!("{:.3} {divergence}", quality.perplexity.value)
}

/// The table for a terminal.
pub fn text(record: &Record) -> String {
    let table = render(record, presets::NOTHING, str::to_string);
    invalid(record).map_or(table.clone(), |invalid| format!("{invalid}\n{table}"))
}

/// What stands above the tables of a run that cannot have been measured as it is stored.
fn invalid(record: &Record) -> Option<String> {
    record.invalid.first().map(|first| format!("INVALID: {first}"))
}

/// The header and the table as Markdown.
pub fn markdown(record: &Record) -> String {
    // A Markdown cell cannot hold a line break.
    let table = render(record, presets::ASCII_MARKDOWN, |title| title.trim().replace('\n', " "));
    let (began, header) = (&record.run.began, header(record).replace('\n', "  \n"));
    let invalid = invalid(record).map_or(String::new(), |invalid| format!("**{invalid}**\n\n"));
    format!("# specquant run {began}\n\n{header}\n\n{invalid}{table}\n")
}

fn render(record: &Record, style: TableStyle, title: fn(&str) -> String) -> String {
    let names = Names::of(&record.run.cells);
    let context = Context { record, names: &names };
    let value = |at: usize, arm: &Arm| {
        // The speed of wrong output is no speed.
        let shown = at < IDENTITY || at == VERDICT || !matches!(arm.verdict, Verdict::Differs { .. });
        if shown { (COLUMNS[at].value)(&context, arm) } else { String::new() }
    };
    let filled = |at: &usize| record.arms.iter().any(|arm| !value(*at, arm).is_empty());
    let columns: Vec<usize> = (0..COLUMNS.len()).filter(filled).collect();
    let mut table = Table::new();
    table.load_style(style).set_header(columns.iter().map(|&at| title(COLUMNS[at].title)));
    for arm in &record.arms {
        table.add_row(columns.iter().map(|&at| value(at, arm)));
    }
    for (&at, column) in columns.iter().zip(table.column_iter_mut()) {
        column.set_cell_alignment(if COLUMNS[at].words { CellAlignment::Left } else { CellAlignment::Right });
    }
    table.trim_fmt()
}

/// The parameters of an arm's target and, where targets differ, its name.
fn target(context: &Context<'_>, arm: &Arm) -> String {
    let run = &context.record.run;
    let at = run.cells.iter().position(|cell| *cell == arm.spec).map(|at| run.targets[at]);
    let model = at.map(|at| &run.models[at]);
    let parameters = model.map_or(String::new(), |model| parameters(model.parameters));
    let name = model.filter(|_| context.names.vary("target")).map_or(String::new(), |model| format!(" {}", model.name));
    parameters + &name
}

fn vs_plain(context: &Context<'_>, arm: &Arm) -> String {
    let controls = |other: &Arm| other.spec != arm.spec && other.spec.plain() == arm.spec;
    match &arm.vs_plain {
        Some(speedup) => interval(&speedup.decode),
        None if context.record.arms.iter().any(controls) => "plain".into(),
        None => String::new(),
    }
}

fn vs_control(context: &Context<'_>, arm: &Arm) -> String {
    let run = &context.record.run;
    // With a single plain cell this is the ratio to the own plain cell once more.
    let plain = run.cells.iter().filter(|cell| cell.speculation == Speculation::Off).count();
    match &arm.vs_control {
        _ if plain == 1 => String::new(),
        Some(speedup) => interval(&speedup.decode),
        None => "control".into(),
    }
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
    let resumed = if record.resumed.is_empty() { "" } else { ", resumed" };
    format!("{} interleaved round{plural}, {seconds:.1} s measured{resumed}{interrupted}", record.rounds)
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

fn ratio(value: Option<f64>) -> String {
    value.map_or(String::new(), |value| format!("{value:.2}x"))
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
    use specquant_core::{RunSpec, WeightFormat};

    use super::*;
    use crate::sample::log;
    use crate::{Check, Log, caution, conclusion, latency, trust};

    #[test]
    fn a_run_reads_well_on_a_terminal_and_as_markdown() {
        let record = Record::derive(&log(3, 15)).unwrap();
        insta::assert_snapshot!("terminal", format!("{}\n{}", header(&record), text(&record)));
        insta::assert_snapshot!("markdown", markdown(&record));
        insta::assert_snapshot!(
            "notes",
            format!(
                "{}\n{}\n{}\n{}",
                latency(&record).unwrap(),
                trust(&record),
                caution(&record).unwrap(),
                conclusion(&record)
            )
        );
    }

    #[test]
    fn a_run_whose_speculation_loses_says_so() {
        let slow = Record::derive(&log(3, 40)).unwrap();
        insta::assert_snapshot!("loses", conclusion(&slow));
        let mut wrong = log(2, 15);
        wrong.rounds[1].passes[1].check = Check::Differs { request: 0, token: 5 };
        let wrong = Record::derive(&wrong).unwrap();
        insta::assert_snapshot!("wrong", format!("{}\n{}", text(&wrong), conclusion(&wrong)));
        let one = Record::derive(&Log { ended: None, ..log(1, 15) }).unwrap();
        insta::assert_snapshot!("one_round", format!("{}\n{}", header(&one), conclusion(&one)));
    }

    #[test]
    fn formats_are_compared_with_the_control_by_its_name() {
        let first = |change: fn(&mut [RunSpec])| {
            let mut log = log(3, 15);
            change(&mut log.run.cells);
            conclusion(&Record::derive(&log).unwrap()).lines().next().unwrap().to_string()
        };
        assert_eq!(first(|_| ()), "=> Plain decode against f16: f32 0.50x [0.50, 0.50].");
        // Without f16 the first plain cell is the control.
        let bf16 = first(|cells| cells[..2].iter_mut().for_each(|cell| cell.weights = WeightFormat::Bf16));
        assert_eq!(bf16, "=> Plain decode against bf16: f32 0.50x [0.50, 0.50].");
        // Two targets have a control each.
        let targets = first(|cells| (cells[1].target, cells[1].speculation) = ("b".into(), Speculation::Off));
        assert_eq!(targets, "=> Plain decode against its control: f32, target bundled 0.50x [0.50, 0.50].");
    }

    #[test]
    fn limits_name_the_cell_that_serves_most() {
        let conclude = |slo: &str| {
            let mut log = log(3, 15);
            log.run.cells.iter_mut().for_each(|cell| cell.slo = Some(slo.parse().unwrap()));
            conclusion(&Record::derive(&log).unwrap()).lines().last().unwrap().to_string()
        };
        // TTFT is 50 ms in every cell, and E2E is shortest for the one that drafts.
        assert_eq!(conclude("ttft:49"), "=> Within ttft:49: no cell keeps these limits for any request.");
        let most = "=> Within ttft:51: f16 draft:4 serves most, 9.09 requests/s, 100% of its requests.";
        assert_eq!(conclude("ttft:51"), most);
    }

    fn caution_of(change: fn(&mut Log)) -> String {
        let mut log = log(2, 15);
        change(&mut log);
        caution(&Record::derive(&log).unwrap()).unwrap_or_default()
    }

    #[test]
    fn drafts_that_are_never_right_and_outputs_past_their_ends_are_cautions() {
        let few = |log: &mut Log| {
            let drafting = |arm: &crate::ArmPass| arm.pass.acceptance.drafting_steps() > 0;
            for arm in log.rounds.iter_mut().flat_map(|round| &mut round.passes).filter(|arm| drafting(arm)) {
                arm.pass.acceptance = specquant_metrics::Acceptance::from_histogram(4, &[1000, 20]);
            }
            log.run.quality.iter_mut().flatten().for_each(|quality| quality.draft_perplexity = Some(812.5));
        };
        let said = caution_of(few);
        assert!(
            said.contains("the draft is hardly ever right: alpha 0.019") && said.contains("perplexity is 812.50"),
            "{said}"
        );
        assert!(!caution_of(|_| ()).contains("hardly"));
        let past = caution_of(|log| log.run.cells.iter_mut().for_each(|cell| cell.workload.ignore_eos = true));
        assert!(past.contains("* outputs run past the ends of texts"), "{past}");
        let noted = caution_of(|log| log.run.notes = vec!["a: tied".into()]);
        assert!(noted.contains("a: tied"), "{noted}");
    }

    #[test]
    fn what_disturbs_or_limits_a_run_is_a_caution() {
        let load = caution_of(|log| log.rounds[1].conditions.load = Some(2.6));
        assert!(load.contains("other programs ran: load 2.6 on 2 cores"), "{load}");
        let own = caution_of(|log| log.rounds[1].conditions.load = Some(2.4));
        assert!(!own.contains("other programs"), "{own}");
        let batch = |log: &mut Log| log.run.cells[1].batching = "continuous:8".parse().unwrap();
        let sparse = caution_of(batch);
        assert!(sparse.contains("up to 8 sequences may run together, of 1 in all"), "{sparse}");
        let broken = caution_of(|log| {
            let rates = |greedy| specquant_metrics::Match { greedy, sampled: greedy };
            log.run.quality[1].as_mut().unwrap().draft = Some([rates(0.25), rates(0.625)]);
        });
        assert!(broken.contains("ALARM") && broken.contains("25% of the time, in f16 62%"), "{broken}");
        let sound = caution_of(|log| {
            let rates = |greedy| specquant_metrics::Match { greedy, sampled: greedy };
            log.run.quality[1].as_mut().unwrap().draft = Some([rates(0.5), rates(0.625)]);
        });
        assert!(!sound.contains("ALARM"), "{sound}");
    }
}

//! What the report holds beside the table: where the time went, how forwards scale with rows, intervals of another kind, and
//! the definition of every column.

use std::fmt::Write;

use comfy_table::{Table, presets};
use specquant_metrics::{
    DEFINITIONS, DERIVED, Definition, Divergence, Kind, Peaks, PhaseCosts, PhaseUse, RowCosts, Spread, StepMeans,
};

use specquant_core::{Memory, ModelInfo, Speculation};

use crate::kv;
use crate::names::Names;
use crate::record::{Arm, Record};
use crate::table::COLUMNS;

/// All of it, as Markdown.
pub fn details(record: &Record) -> String {
    let parts = [
        steps(record),
        utilization(record),
        memory(record),
        kv::table(record),
        quality(record),
        rows(record),
        predictions(record),
        itl(record),
        bootstrap(record),
        definitions(),
    ];
    let text = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n");
    if record.invalid.is_empty() { text } else { text.replace("## ", "## INVALID: ") }
}

/// A section with a table; nothing where the table has no row.
pub(crate) fn section(title: &str, header: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header(header);
    for row in rows {
        table.add_row(row);
    }
    format!("## {title}\n\n{}\n", table.trim_fmt())
}

/// A cell, told apart from all others of the run.
pub(crate) fn name(record: &Record, arm: &Arm) -> String {
    let names = Names::of(&record.run.cells);
    match arm.spec.speculation {
        Speculation::Off => names.control(&arm.spec),
        speculation => format!("{} {speculation} {}", names.control(&arm.spec), names.draft(&arm.spec)).trim().into(),
    }
}

/// Mean milliseconds of a decode step of one sequence, by phase.
fn steps(record: &Record) -> String {
    let row = |arm: &Arm| {
        let StepMeans { total_ns, draft_prefill_ns, draft_ns, target_ns, sample_ns, verify_ns, keep_ns, other_ns } =
            arm.summary.steps.decode.per_sequence()?;
        let parts = [total_ns, draft_prefill_ns + draft_ns, target_ns, sample_ns, verify_ns, keep_ns, other_ns];
        Some([name(record, arm)].into_iter().chain(parts.map(|ns| format!("{:.4}", ns / 1e6))).collect())
    };
    let header = ["cell", "step", "draft", "target", "sample", "verify", "keep", "other"];
    section("Decode steps, ms per sequence", &header, record.arms.iter().filter_map(row).collect())
}

/// What the target's forwards used of the machine, in prefill and in decode steps.
fn utilization(record: &Record) -> String {
    let row = |arm: &Arm| {
        let phases = [arm.utilization.prefill, arm.utilization.decode];
        let values = phases.into_iter().flat_map(|phase| match phase {
            None => [const { String::new() }; 4],
            Some(PhaseUse { flops_s, bytes_s, mfu, mbu }) => {
                let [mfu, mbu] = [mfu, mbu].map(|share| format!("{:.1}%", 100.0 * share));
                [format!("{:.2}", flops_s / 1e9), mfu, format!("{:.2}", bytes_s / 1e9), mbu]
            }
        });
        [name(record, arm)].into_iter().chain(values).collect()
    };
    let Peaks { read_bytes_s, flops_s } = record.run.peaks;
    let title = format!(
        "Utilization of the target's forwards, of {:.1} GFLOP/s and {:.1} GB/s measured (MBU above 100%: read from cache)",
        flops_s / 1e9,
        read_bytes_s / 1e9
    );
    let header =
        ["cell", "prefill GFLOP/s", "MFU", "prefill GB/s", "MBU", "decode GFLOP/s", "MFU", "decode GB/s", "MBU"];
    section(&title, &header, record.arms.iter().map(row).collect())
}

/// Bytes that each model keeps, beside what its format asks for.
fn memory(record: &Record) -> String {
    let row = |model: &ModelInfo| {
        let Memory { matrices, matrices_exact, embedding, kv } = model.memory;
        let over = 100.0 * (matrices as f64 / matrices_exact as f64 - 1.0);
        let mebibytes = |bytes: u64| format!("{:.2}", bytes as f64 / f64::from(1 << 20));
        let parts = [mebibytes(matrices), mebibytes(matrices_exact), format!("{over:.2}%")];
        let formats = [model.name.clone(), model.weights.to_string()];
        formats.into_iter().chain(parts).chain([mebibytes(embedding), mebibytes(kv)]).collect()
    };
    let header = ["model", "weights", "matrices MiB", "of the format", "padding", "embedding and norms", "KV cache"];
    section("Resident memory, MiB", &header, record.run.models.iter().map(row).collect())
}

/// What the formats cost in quality.
fn quality(record: &Record) -> String {
    let row = |arm: &Arm| {
        let quality = arm.quality?;
        let reference = quality.reference.map_or("itself".into(), |reference| reference.to_string());
        let compared = quality.divergence.map_or([const { String::new() }; 4], |of| {
            let Divergence { perplexity, mean_kld, p99_kld, same_top } = of;
            [
                format!("{:.5}", perplexity.ratio),
                format!("{mean_kld:.6}"),
                format!("{p99_kld:.6}"),
                format!("{:.2}%", 100.0 * same_top),
            ]
        });
        let drafts = quality.draft.map_or([const { String::new() }; 2], |drafts| {
            drafts.map(|draft| format!("{:.3}/{:.3}", draft.greedy, draft.sampled))
        });
        let perplexity = [name(record, arm), format!("{:.4}", quality.perplexity.value), reference];
        Some(perplexity.into_iter().chain(compared).chain(drafts).collect())
    };
    let scored = record.arms.iter().find_map(|arm| Some(arm.quality?.perplexity.scored_tokens)).unwrap_or(0);
    let title = format!("Quality of the weights, over {scored} tokens of the bundled text");
    let header = [
        "cell",
        "perplexity",
        "against",
        "ratio",
        "mean KLD",
        "p99 KLD",
        "same top",
        "draft matches, greedy/sampled",
        "f16 draft",
    ];
    section(&title, &header, record.arms.iter().filter_map(row).collect())
}

/// T(n) of each pair of models.
fn rows(record: &Record) -> String {
    let mut all: Vec<Vec<String>> = Vec::new();
    for (cell, costs) in record.run.cells.iter().zip(&record.run.row_costs) {
        let Some(costs) = costs else { continue };
        let RowCosts { sequences, context, target_ns, .. } = costs;
        let model = format!("{} {}, {sequences} x {context} tokens", cell.target, cell.weights);
        let relative = (1..=9).map(|n| if n <= target_ns.len() { costs.relative(n) } else { None });
        let cells =
            relative.chain([costs.draft_relative()]).map(|value| value.map_or("".into(), |x| format!("{x:.2}")));
        let row: Vec<String> =
            [model, format!("{:.3}", target_ns.first().unwrap_or(&0.0) / 1e6)].into_iter().chain(cells).collect();
        if !all.contains(&row) {
            all.push(row);
        }
    }
    let header = ["forwards of", "T(1) ms", "1", "2", "3", "4", "5", "6", "7", "8", "9", "c"];
    section("Target forwards of n rows, T(n) / T(1), and a draft forward, c", &header, all)
}

/// Predicted and measured speed-up, and the residual by phase in plain steps per token.
fn predictions(record: &Record) -> String {
    let row = |arm: &Arm| {
        let prediction = arm.prediction?;
        let PhaseCosts { draft, target, sample, verify, keep, other } = prediction.residual;
        let speedups = [prediction.speedup, prediction.measured].map(|value| format!("{value:.3}"));
        let parts = [draft, target, sample, verify, keep, other].map(|value| format!("{value:+.4}"));
        Some([name(record, arm)].into_iter().chain(speedups).chain(parts).collect())
    };
    let header = ["cell", "predicted", "measured", "draft", "target", "sample", "verify", "keep", "other"];
    section(
        "Predicted speed-up and its residual, plain steps per token",
        &header,
        record.arms.iter().filter_map(row).collect(),
    )
}

/// Inter-token latency as five tools define it.
fn itl(record: &Record) -> String {
    let row = |arm: &Arm| {
        let itl = &arm.summary.latency.itl;
        let of = |spread: Option<Spread>| {
            spread.map_or(String::new(), |spread| format!("{:.3}/{:.3}", spread.mean, spread.p99.value))
        };
        let values =
            [itl.per_emission_ms, itl.per_token_ms, itl.at_arrival_ms, itl.per_emission_mean_ms, itl.by_run_mean_ms];
        let row: Vec<String> = [name(record, arm)].into_iter().chain(values.map(of)).collect();
        itl.per_emission_ms.map(|_| row)
    };
    let header = ["cell", "per emission", "per token", "at arrival", "emission mean", "by run mean"];
    section("Inter-token latency by convention, mean/p99 ms", &header, record.arms.iter().filter_map(row).collect())
}

/// Bootstrap intervals beside those of Student's t, and p values.
fn bootstrap(record: &Record) -> String {
    let mut rows = Vec::new();
    for arm in &record.arms {
        for (against, speedup) in [("own plain", &arm.vs_plain), ("control", &arm.vs_control)] {
            let Some(speedup) = speedup else { continue };
            let ends = |interval: Option<specquant_metrics::Interval>| {
                interval.map_or("".into(), |ends| format!("[{:.4}, {:.4}]", ends.low, ends.high))
            };
            let (decode, mut p) = (&speedup.decode, String::new());
            if let Some(adjusted) = speedup.adjusted_p {
                let _ = write!(p, "{adjusted:.2e}");
            }
            let visible = decode.detectable.map_or(String::new(), |effect| format!("{:.2}%", 100.0 * effect));
            rows.push(vec![
                name(record, arm),
                against.into(),
                format!("{:.4}", decode.ratio),
                ends(decode.interval),
                ends(decode.bca),
                p,
                visible,
            ]);
        }
    }
    let header = ["cell", "against", "decode", "Student-t 95%", "BCa 95%", "p (Holm)", "detectable"];
    section("Ratios", &header, rows)
}

/// What the columns of the table are.
fn definitions() -> String {
    let all = || DERIVED.iter().chain(DEFINITIONS);
    let row = |id: &&str| -> Option<Vec<String>> {
        let Definition { unit, kind, text, .. } = all().find(|definition| definition.id == *id)?;
        let kind = match kind {
            Kind::Exact => "exact",
            Kind::Timed => "timed",
        };
        Some([id, kind, unit, text].map(str::to_string).to_vec())
    };
    let ids = COLUMNS.iter().flat_map(|column| column.metrics);
    section("Metrics", &["metric", "kind", "unit", "definition"], ids.filter_map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::log;

    #[test]
    fn a_report_has_everything_that_the_table_has_no_room_for() {
        let record = Record::derive(&log(3, 15)).unwrap();
        insta::assert_snapshot!("details", details(&record));
    }

    #[test]
    fn what_an_arm_holds_beside_its_summary_is_defined() {
        let record = Record::derive(&log(3, 15)).unwrap();
        let arm = serde_json::to_value(&record.arms[1]).unwrap();
        let derived =
            arm.as_object().unwrap().keys().filter(|key| !["spec", "summary", "verdict"].contains(&key.as_str()));
        let mut defined: Vec<&str> = DERIVED.iter().map(|definition| definition.id).collect();
        defined.sort_unstable();
        let mut derived: Vec<&str> = derived.map(String::as_str).collect();
        derived.sort_unstable();
        assert_eq!(derived, defined);
    }

    #[test]
    fn every_column_names_metrics_that_are_defined() {
        for column in &COLUMNS {
            for id in column.metrics {
                let defined = DERIVED.iter().chain(DEFINITIONS).any(|definition| definition.id == *id);
                assert!(defined, "{}: {id}", column.title);
            }
        }
    }
}

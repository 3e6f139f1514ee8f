//! A session as a table for people, under a header that names everything a reader needs to judge it.

use std::fmt::Write;

use specquant_metrics::Spread;

use super::record::{Record, Row};

/// Header, a line for each row, and the commands.
pub(crate) fn table(record: &Record) -> String {
    let mut text = header(record);
    let _ = writeln!(
        text,
        "\n  {:<12} {:<10} {:<22} {:>10} {:>10}  {:>5}  {:<15} flash attention",
        "ours", "llama.cpp", "work", "ours", "llama.cpp", "ratio", "95% interval"
    );
    let _ = writeln!(text, "  {:46} {:>10} {:>10}", "", "tok/s", "tok/s");
    for row in &record.rows {
        let _ = writeln!(text, "  {}", line(row));
    }
    let _ = write!(
        text,
        "  ratio: ours / llama.cpp, geometric mean over turns; tok/s: medians of turns\n\ncommands of a turn"
    );
    for row in &record.rows {
        let _ = write!(text, "\n  {}\n  {}", row.our_command, row.their_command);
    }
    text
}

fn header(record: &Record) -> String {
    let Record { machine, threads, turns, ours, theirs, conditions, .. } = record;
    let (row, or_unknown) = (record.rows.first(), |text: Option<String>| text.unwrap_or("unknown".into()));
    let load = or_unknown(record.load_before.map(|load| format!("{load:.2}")));
    let steal = or_unknown(conditions.steal_share.map(|share| format!("{:.1}%", share * 100.0)));
    let id = machine.cpu_id.as_ref().map(|id| format!(" ({id})")).unwrap_or_default();
    let flags = if theirs.flags.is_empty() { "built with unknown options".into() } else { theirs.flags.join(" ") };
    let lines = [
        format!("{}: decode and prefill of one sequence, ours beside llama.cpp", record.model),
        format!("machine      {}{id}, {}", machine.cpu, record.simd.join(" ")),
        format!("             load {load} before, {steal} of processor time stolen meanwhile"),
        format!(
            "both         {threads} threads, keys and values {}, {turns} turns",
            or_unknown(row.map(|row| row.our_kv.clone()))
        ),
        format!(
            "specquant    {}{}, {}",
            ours.commit,
            if ours.changed { " with changes" } else { "" },
            or_unknown(row.map(|row| row.our_device.clone()))
        ),
        format!("llama.cpp    {}, {flags}", or_unknown(row.map(|row| row.their_sample.build_commit.clone()))),
    ];
    lines.join("\n") + "\n"
}

fn line(row: &Row) -> String {
    let median = |rates: &[f64]| Spread::of(rates.iter().copied()).map_or(f64::NAN, |spread| spread.p50.value);
    let interval =
        row.ratio.interval.map_or("one turn".into(), |interval| format!("{:.3} to {:.3}", interval.low, interval.high));
    let [off, on] = row.their_probe_tok_s;
    format!(
        "{:<12} {:<10} {:<22} {:>10.2} {:>10.2}  {:>5.3}  {interval:<15} {} (without {off:.2}, with {on:.2})",
        row.pair.ours,
        row.pair.theirs,
        row.work.label(),
        median(&row.ours_tok_s),
        median(&row.theirs_tok_s),
        row.ratio.ratio,
        if row.their_sample.flash_attn == 1 { "on" } else { "off" },
    )
}

//! What a run prints and stores of its record.

use std::path::Path;

use specquant_report::Record;

/// The report of a run's folder.
pub(crate) fn report(record: &Record) -> String {
    let (table, details) = (specquant_report::markdown(record), specquant_report::details(record));
    format!("{table}\n```\n{}\n```\n\n{details}", notes(record).join("\n"))
}

/// What the terminal shows of a run.
pub(crate) fn screen(record: &Record, folder: &Path) -> String {
    let bundled = record.run.cells.iter().all(|cell| cell.target == "bundled");
    let next = match (record.interrupted, bundled) {
        (true, _) => format!(" Next: run --resume {}", folder.display()),
        (false, true) => " Next: your own pair, run --target DIR --draft DIR".into(),
        (false, false) => String::new(),
    };
    format!(
        "{}\n\n{}\n{}\nSaved {} (record.json, report.md).{next}",
        specquant_report::header(record),
        specquant_report::text(record),
        notes(record).join("\n"),
        folder.display()
    )
}

/// What must be known to read the table, and what it means.
fn notes(record: &Record) -> Vec<String> {
    let latency = specquant_report::latency(record);
    let (trust, caution) = (specquant_report::trust(record), specquant_report::caution(record));
    let lines = latency.into_iter().chain(specquant_report::kv(record)).chain([trust]).chain(caution);
    lines.chain([specquant_report::conclusion(record)]).collect()
}

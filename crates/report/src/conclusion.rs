//! What a run means, in words: the choice, the reason, and the limit of what was seen.

use std::cmp::Ordering;

use crate::record::{Arm, Costs, Record, Speedup, label};
use crate::table::{interval, parameters};

/// One paragraph for each control: which speculation to use there, if any, and why. Begins with `=>`.
pub fn conclusion(record: &Record) -> String {
    if let Some(wrong) = record.arms.iter().find(|arm| matches!(arm.verdict, crate::Verdict::Differs { .. })) {
        let name = label(&wrong.spec);
        return format!("=> Wrong output: {name} does not give its reference's tokens. Its speed means nothing.");
    }
    let controls = record.arms.iter().filter(|arm| arm.vs_plain.is_none());
    let lines: Vec<String> = controls.filter_map(|control| advice(record, control)).collect();
    if lines.is_empty() {
        return "=> No speculative cell to compare: add --speculation off,draft:2,draft:4".into();
    }
    lines.join("\n")
}

/// What of the table does not carry over to other models or machines, if anything.
pub fn caution(record: &Record) -> Option<String> {
    let cache = record.run.machine.cache_bytes?;
    let cached = record.run.models.iter().filter(|model| model.memory.matrices <= cache);
    let names: Vec<String> =
        cached.map(|model| format!("{} {}", parameters(model.parameters), model.weights)).collect();
    (!names.is_empty()).then(|| {
        format!(
            "Caution: the weights of {} fit in this processor's cache of {} MiB; speeds of weight formats do not carry \
             over to models that are read from memory.",
            names.join(", "),
            cache >> 20
        )
    })
}

/// A speculative arm with what it gained and what its steps cost.
type Candidate<'a> = (&'a Arm, &'a Speedup, Costs);

fn advice(record: &Record, control: &Arm) -> Option<String> {
    let mut arms: Vec<Candidate<'_>> = record
        .arms
        .iter()
        .filter(|arm| arm.spec != control.spec && arm.spec.plain() == control.spec)
        .filter_map(|arm| Some((arm, arm.vs_plain.as_ref()?, arm.costs?)))
        .collect();
    arms.sort_by(|a, b| b.1.decode.ratio.partial_cmp(&a.1.decode.ratio).unwrap_or(Ordering::Equal));
    let best = arms.first()?;
    let (arm, speedup, _) = best;
    let weights = label(&control.spec);
    let gain = interval(&speedup.decode);
    let choice = match &speedup.decode.interval {
        Some(interval) if interval.low > 1.0 => format!("With {weights} use {}: {gain} decode", arm.spec.speculation),
        Some(interval) if interval.high < 1.0 => {
            format!("With {weights} speculation loses: the best, {}, is {gain} of plain", arm.spec.speculation)
        }
        Some(_) => format!("With {weights} no gain was seen: the best, {}, is {gain}", arm.spec.speculation),
        None => format!("With {weights} {} was {gain}: one round shows no noise, add --rounds 5", arm.spec.speculation),
    };
    let end_to_end = format!("{:.2}x end to end", speedup.end_to_end.ratio);
    let reasons: Vec<String> = arms.iter().map(reason).collect();
    Some(format!("=> {choice} ({end_to_end}).\n   {}", reasons.join("\n   ")))
}

/// Why an arm gains or loses: what a step yields against what it costs.
fn reason((arm, _, costs): &Candidate<'_>) -> String {
    let rates = &arm.summary.acceptance;
    format!(
        "{}: a step yields tau {:.2} tokens and costs {:.2} plain steps (c = {:.2} for each of {:.1} draft tokens, \
         T({:.0})/T(1) = {:.2}), which predicts {:.2}x; alpha {:.2}.",
        arm.spec.speculation,
        rates.tau,
        costs.step,
        costs.draft_token,
        costs.mean_draft,
        (costs.mean_draft + 1.0).round(),
        costs.verify,
        costs.predicted.unwrap_or(f64::NAN),
        rates.evaluated_acceptance.unwrap_or(0.0),
    )
}

//! What a run means, in words: the choice, the reason, and the limit of what was seen.

use std::cmp::Ordering;

use specquant_core::Speculation;

use specquant_metrics::{PhaseCosts, Prediction};

use crate::names::Names;
use crate::record::{Arm, Costs, Record, Speedup, Verdict, label};
use crate::table::interval;

/// Comparisons that chance alone makes look like this less often, all of a run judged together, are taken as real.
const SIGNIFICANT: f64 = 0.05;

/// A prediction is discussed if it misses by more than this.
const MISSED: f64 = 0.05;

/// What weight formats gain and, for each control, which speculation to use there, if any, and why. Lines begin with `=>`.
pub fn conclusion(record: &Record) -> String {
    if let Some(wrong) = record.arms.iter().find(|arm| matches!(arm.verdict, Verdict::Differs { .. })) {
        let name = label(&wrong.spec);
        return format!("=> Wrong output: {name} does not give its reference's tokens. Its speed means nothing.");
    }
    let names = Names::of(&record.run.cells);
    let controls = record.arms.iter().filter(|arm| arm.spec.speculation == Speculation::Off);
    let mut lines: Vec<String> = formats(record, &names).into_iter().collect();
    lines.extend(controls.filter_map(|control| advice(record, &names, control)));
    lines.extend(record.arms.iter().filter_map(|arm| idle(&names, arm)));
    lines.extend(limits(record, &names));
    if lines.is_empty() {
        return "=> Nothing to compare: add --speculation off,draft:2,draft:4 or --weights f32,f16".into();
    }
    lines.join("\n")
}

/// The decode rates of plain cells against their control.
fn formats(record: &Record, names: &Names) -> Option<String> {
    let plain: Vec<&Arm> = record.arms.iter().filter(|arm| arm.spec.speculation == Speculation::Off).collect();
    // Runs of several targets or batchings have a control for each.
    let controls: Vec<&&Arm> = plain.iter().filter(|arm| arm.vs_control.is_none()).collect();
    let control = if let [one] = controls[..] { names.control(&one.spec) } else { "its control".to_string() };
    let compare = |arm: &Arm| {
        let ratio = interval(&arm.vs_control.as_ref()?.decode);
        Some(format!("{} {ratio}{}", names.control(&arm.spec), cost(arm)))
    };
    let ratios: Vec<String> = plain.into_iter().filter_map(compare).collect();
    (!ratios.is_empty()).then(|| format!("=> Plain decode against {control}: {}.", ratios.join("; ")))
}

/// Which cell serves most requests within the latency limits.
fn limits(record: &Record, names: &Names) -> Option<String> {
    let slo = record.arms.first()?.spec.slo?;
    let served = |arm: &Arm| arm.goodput.and_then(|goodput| goodput.requests_s).unwrap_or(0.0);
    let best = record.arms.iter().max_by(|a, b| served(a).total_cmp(&served(b)))?;
    let name = match best.spec.speculation {
        Speculation::Off => names.control(&best.spec),
        speculation => format!("{} {speculation}", names.control(&best.spec.plain())),
    };
    let goodput = best.goodput?;
    Some(if goodput.met == 0 {
        format!("=> Within {slo}: no cell keeps these limits for any request.")
    } else {
        let share = 100.0 * goodput.share.unwrap_or(0.0);
        format!("=> Within {slo}: {name} serves most, {:.2} requests/s, {share:.0}% of its requests.", served(best))
    })
}

/// What a quantized format costs beside the widest of the run.
fn cost(arm: &Arm) -> String {
    let divergence = arm.quality.and_then(|quality| quality.divergence).filter(|_| arm.spec.weights.is_quantized());
    divergence.map_or(String::new(), |of| {
        let percent = |ratio: f64| 100.0 * (ratio - 1.0);
        let ends = of.perplexity.interval.map_or(String::new(), |interval| {
            format!(" [{:+.1}, {:+.1}]", percent(interval.low), percent(interval.high))
        });
        format!(" (perplexity {:+.1}%{ends})", percent(of.perplexity.ratio))
    })
}

/// An arm that was to draft and never did.
fn idle(names: &Names, arm: &Arm) -> Option<String> {
    let skipped = arm.summary.counts.drafts_skipped;
    let drafts = arm.spec.speculation != Speculation::Off && arm.summary.acceptance.drafted == 0;
    let why = if skipped > 0 {
        format!("{skipped} drafts were skipped for want of draft context or cache")
    } else {
        "outputs are too short for a draft".to_string()
    };
    drafts.then(|| format!("=> {} drafted nothing: {why}. It ran plain.", arm_name(names, arm)))
}

/// A speculative arm with what it gained and what its steps cost.
type Candidate<'a> = (&'a Arm, &'a Speedup, Costs);

fn advice(record: &Record, names: &Names, control: &Arm) -> Option<String> {
    let mut arms: Vec<Candidate<'_>> = record
        .arms
        .iter()
        .filter(|arm| arm.spec != control.spec && arm.spec.plain() == control.spec)
        .filter_map(|arm| Some((arm, arm.vs_plain.as_ref()?, arm.costs?)))
        .collect();
    arms.sort_by(|a, b| b.1.decode.ratio.partial_cmp(&a.1.decode.ratio).unwrap_or(Ordering::Equal));
    let best = arms.first()?;
    let (arm, speedup, _) = best;
    let (cell, draft, gain) = (names.control(&control.spec), arm_name(names, arm), interval(&speedup.decode));
    let choice = match (speedup.adjusted_p, speedup.decode.ratio > 1.0) {
        (Some(p), true) if p < SIGNIFICANT => format!("With {cell}: use {draft}, {gain} decode"),
        (Some(p), false) if p < SIGNIFICANT => {
            format!("With {cell}: speculation loses; the best, {draft}, is {gain} of plain")
        }
        (Some(_), _) => {
            format!(
                "With {cell}: undecided; the best, {draft}, is {gain} of plain, and {} may tell",
                if arm.spec.rounds.is_some() { "more --rounds" } else { "a longer --time-budget" }
            )
        }
        (None, _) => format!("With {cell}: {draft} was {gain}, which shows no noise; add --rounds 6"),
    };
    let end_to_end = format!("{:.2}x end to end", speedup.end_to_end.ratio);
    let reasons: Vec<String> = arms.iter().map(|arm| reason(names, arm)).collect();
    Some(format!("=> {choice} ({end_to_end}).\n   {}", reasons.join("\n   ")))
}

/// Why an arm gains or loses: what a step yields against what it costs.
fn reason(names: &Names, (arm, _, costs): &Candidate<'_>) -> String {
    let rates = &arm.summary.acceptance;
    format!(
        "{}: a step yields tau {:.2} tokens and costs {:.2} plain steps ({:.1} draft tokens at c = {:.2}, a verifying \
         forward at {:.2}); alpha {:.2}.{}",
        arm_name(names, arm),
        rates.tau,
        costs.step,
        costs.mean_draft,
        costs.draft_token,
        costs.verify,
        rates.evaluated_acceptance.unwrap_or(0.0),
        arm.prediction.as_ref().map_or(String::new(), missed),
    )
}

/// Where a prediction that missed went wrong.
fn missed(prediction: &Prediction) -> String {
    let PhaseCosts { draft, target, sample, verify, keep, other } = prediction.residual;
    let rest = sample + verify + keep + other;
    let parts = [("drafting", draft), ("target forwards", target), ("the rest", rest)];
    let worst = parts.into_iter().max_by(|a, b| a.1.abs().total_cmp(&b.1.abs()));
    let far = (prediction.speedup / prediction.measured - 1.0).abs() > MISSED;
    let Some((phase, cost)) = worst.filter(|_| far) else { return String::new() };
    let direction = if cost > 0.0 { "more" } else { "less" };
    format!(" Predicted {:.2}x: {phase} cost {:.2} plain steps a token {direction}.", prediction.speedup, cost.abs())
}

/// A speculative arm among those of its control.
fn arm_name(names: &Names, arm: &Arm) -> String {
    let draft = names.draft(&arm.spec);
    if draft.is_empty() { arm.spec.speculation.to_string() } else { format!("{} ({draft})", arm.spec.speculation) }
}

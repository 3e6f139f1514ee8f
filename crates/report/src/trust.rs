//! The lines between the table and the conclusion: latency, and how far the numbers can be trusted.

use specquant_metrics::{Percentile, Spread};

use crate::names::Names;
use crate::record::{Arm, Record, Trust};
use crate::round::Ended;
use crate::table::parameters;

/// Processor time that others may take before it is worth a word.
const STOLEN: f64 = 0.01;

/// A load average, for each core, that this program alone does not make.
const BUSY: f64 = 1.25;

/// An A/A interval that reaches beyond this says nothing.
const MOST_SAYING: f64 = 10.0;

/// TTFT and E2E of the control, and the parts of the TTFT.
pub fn latency(record: &Record) -> Option<String> {
    let arm = record.arms.get(record.run.control())?;
    let latency = &arm.summary.latency;
    let (ttft, e2e) = (latency.ttft_ms?, latency.e2e_ms?);
    let mean = |spread: Option<Spread>| spread.map_or(0.0, |spread| spread.mean);
    let bounds = |percentile: Percentile| {
        percentile.interval.map_or(String::new(), |[low, high]| format!(" [{low:.1}, {high:.1}]"))
    };
    Some(format!(
        "Latency  {}: TTFT p50/p95 {:.1}/{:.1}{} ms, of it queue {:.1}, prefill {:.1}; E2E p50/p95 {:.0}/{:.0} ms; cold TTFT {:.0} ms",
        Names::of(&record.run.cells).control(&arm.spec),
        ttft.p50.value,
        ttft.p95.value,
        bounds(ttft.p95),
        mean(latency.queue_ms),
        mean(latency.prefill_ms),
        e2e.p50.value,
        e2e.p95.value,
        arm.cold_ttft_ms?,
    ))
}

/// The control against itself, what could be seen, why rounds ended, and the digest.
pub fn trust(record: &Record) -> String {
    let Trust { repeat, noisy, detectable, digest } = &record.trust;
    let repeat = repeat.as_ref().map_or("no rate to repeat".to_string(), |repeat| match repeat.interval {
        // Of two or three rounds the interval is so wide that its ends say nothing.
        Some(interval) if interval.high > MOST_SAYING => format!("{:.3}, too few rounds for an interval", repeat.ratio),
        Some(interval) => format!("{:.3} [{:.3}, {:.3}] at 99.9%", repeat.ratio, interval.low, interval.high),
        None => format!("{:.3}, one round", repeat.ratio),
    });
    let label = if *noisy { " NOISY: the control differs from itself" } else { "" };
    let seen = match detectable {
        None => String::new(),
        Some(effect) if *effect > 1.0 => "; effects of any usual size may go unseen".into(),
        Some(effect) => format!("; effects below {:.1}% may go unseen here", 100.0 * effect),
    };
    let digest = digest.clone().unwrap_or("NONE: rounds differ in tokens or acceptance".into());
    format!("Trust    A/A {repeat}{label}{seen}; {}; exact digest {digest}", ended(record))
}

fn ended(record: &Record) -> &'static str {
    match record.ended {
        Some(Ended::Rounds) => "all rounds made",
        Some(Ended::Precise) => "precise enough",
        Some(Ended::TimeBudget) => "time budget spent",
        Some(Ended::Interrupted) => "interrupted",
        None => "not ended",
    }
}

/// What of the table does not carry over, and what disturbed the run, if anything.
pub fn caution(record: &Record) -> Option<String> {
    let words: Vec<String> = [
        collapsed(record),
        hardly_right(record),
        run_past_ends(record),
        cached(record),
        disturbed(record),
        sparse(record),
        failed(record),
    ]
    .into_iter()
    .flatten()
    .chain(record.run.notes.iter().cloned())
    .collect();
    (!words.is_empty()).then(|| format!("Caution  {}", words.join("\n         ")))
}

/// Drafts that their format has broken.
fn collapsed(record: &Record) -> Option<String> {
    let broken = record.arms.iter().find(|arm| arm.quality.is_some_and(|quality| quality.draft_collapsed()))?;
    let [draft, f16] = broken.quality?.draft?;
    Some(format!(
        "ALARM: the draft in {} finds the target's token {:.0}% of the time, in f16 {:.0}%: its weights do not survive this \
         format; take --draft-weights f16",
        broken.spec.draft_weights(),
        100.0 * draft.greedy,
        100.0 * f16.greedy
    ))
}

/// Below this a draft is hardly ever right.
const HARDLY: f64 = 0.1;

/// A draft model whose tokens nearly all fall, beyond what chance could explain: most likely the wrong model.
fn hardly_right(record: &Record) -> Option<String> {
    let upper = |arm: &&Arm| {
        let rates = &arm.summary.acceptance;
        specquant_metrics::upper_share(rates.accepted, rates.accepted + rates.rejected).filter(|upper| *upper < HARDLY)
    };
    let arm = record.arms.iter().find(|arm| upper(arm).is_some())?;
    let quality = arm.quality.and_then(|quality| Some((quality.draft_perplexity?, quality.perplexity.value)));
    let seen = quality.map_or(String::new(), |(draft, target)| {
        format!("; on the bundled text the draft's perplexity is {draft:.2}, the target's {target:.2}")
    });
    Some(format!(
        "the draft is hardly ever right: alpha {:.3}, at most {:.3}{seen}: is it a draft for this target?",
        arm.summary.acceptance.evaluated_acceptance.unwrap_or(0.0),
        upper(&arm)?
    ))
}

/// Outputs that go on where the model would have ended.
fn run_past_ends(record: &Record) -> Option<String> {
    let drafts = |arm: &Arm| arm.spec.workload.ignore_eos && arm.summary.acceptance.drafting_steps > 0;
    record.arms.iter().any(drafts).then(|| {
        "* outputs run past the ends of texts (ignore_eos): acceptance there is not that of real text".to_string()
    })
}

fn cached(record: &Record) -> Option<String> {
    let cache = record.run.machine.cache_bytes?;
    let cached = record.run.models.iter().filter(|model| model.memory.matrices <= cache);
    let mut names: Vec<String> = cached.map(|model| parameters(model.parameters)).collect();
    names.dedup();
    names.sort();
    names.dedup();
    (!names.is_empty()).then(|| {
        format!(
            "{} fit in this processor's {} MiB of cache: what formats gain there does not carry over to larger models",
            names.join(" and "),
            cache >> 20
        )
    })
}

/// What the machine did in the rounds that it should not have.
fn disturbed(record: &Record) -> Option<String> {
    let seen = &record.disturbance;
    let mut words = Vec::new();
    if let Some(share) = seen.steal_share.filter(|share| *share > STOLEN) {
        words.push(format!("{:.1}% of processor time went to other guests of the host", 100.0 * share));
    }
    if let Some(times) = seen.throttled.filter(|times| *times > 0) {
        words.push(format!("a processor throttled {times} times"));
    }
    if let Some(faults) = seen.major_faults.filter(|faults| *faults > 0) {
        words.push(format!("{faults} pages were read from disk"));
    }
    let cores = record.run.machine.logical_cores;
    if let Some(load) = seen.load.filter(|load| *load > BUSY * cores as f64) {
        words.push(format!("other programs ran: load {load:.1} on {cores} cores"));
    }
    (!words.is_empty()).then(|| words.join("; "))
}

/// Batches that cannot fill up.
fn sparse(record: &Record) -> Option<String> {
    let (prompts, widest) = (record.run.prompts, record.run.cells.iter().map(|cell| cell.batching.limit()).max()?);
    (widest > prompts).then(|| {
        format!(
            "up to {widest} sequences may run together, of {prompts} in all: more --num-prompts would fill the batch"
        )
    })
}

/// Requests that did not finish.
fn failed(record: &Record) -> Option<String> {
    let lost = |arm: &Arm| arm.summary.counts.requests - arm.summary.counts.finished;
    let lost: u64 = record.arms.iter().map(lost).sum();
    (lost > 0).then(|| format!("{lost} requests did not finish and have no part in rates and latencies"))
}

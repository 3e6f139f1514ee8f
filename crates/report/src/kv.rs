//! What the KV caches held: a line for each way of sharing them, and a table with every cell.

use specquant_core::{RunSpec, Speculation};
use specquant_metrics::KvShares;

use crate::details::{name, section};
use crate::names::Names;
use crate::record::{Arm, Record};

/// The target's cache over time, once for each allocator, pool and batching: of the control, or the first cell without a draft.
pub fn kv(record: &Record) -> Option<String> {
    let mut shown: Vec<RunSpec> = Vec::new();
    let mut lines = Vec::new();
    let control = record.arms.get(record.run.control());
    for arm in control.into_iter().chain(&record.arms).filter(|arm| arm.spec.speculation == Speculation::Off) {
        let RunSpec { kv, kv_pool, batching, workload, .. } = arm.spec.clone();
        let way = RunSpec { kv, kv_pool, batching, workload, ..RunSpec::default() };
        let Some(shares) = arm.summary.kv.target.filter(|_| !shown.contains(&way)) else { continue };
        lines.push(line(record, arm, &shares));
        shown.push(way);
    }
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn line(record: &Record, arm: &Arm, shares: &KvShares) -> String {
    let KvShares { slots, live, reservation, internal, external, cached, free, peak_live, .. } = *shares;
    let parts = [
        (live, "held tokens"),
        (reservation, "waited for one"),
        (internal, "were never used"),
        (external, "were free and of no use"),
        (cached, "kept tokens for later"),
        (free, "were free"),
    ];
    let parts = parts.into_iter().filter(|(share, _)| *share >= 0.0005);
    let parts: Vec<String> = parts.map(|(share, what)| format!("{:.1}% {what}", 100.0 * share)).collect();
    let hits = arm.summary.kv.hit_rate.filter(|rate| *rate > 0.0);
    let hits = hits.map_or(String::new(), |rate| format!("; {:.1}% of prompt tokens found", 100.0 * rate));
    let preemptions = match arm.summary.counts.preemptions {
        0 => "no preemption".to_string(),
        n => format!("{n} PREEMPTIONS, {:.1}% of rows again", 100.0 * arm.summary.kv.recomputed_share.unwrap_or(0.0)),
    };
    let name = Names::of(&record.run.cells).control(&arm.spec);
    format!(
        "KV       {name}: of {slots} slots {}; at most {:.0}% with tokens{hits}; {preemptions}",
        parts.join(", "),
        100.0 * peak_live as f64 / slots as f64
    )
}

/// Every cell's caches.
pub(crate) fn table(record: &Record) -> String {
    let percent = |share: f64| format!("{:.2}", 100.0 * share);
    let row = |arm: &Arm| {
        let kv = &arm.summary.kv;
        let KvShares { slots, live, shared, reservation, internal, external, cached, free, peak_live } = kv.target?;
        let shares = [live, shared, reservation, internal, external, cached, free].map(percent);
        let rates = [kv.hit_rate, kv.recomputed_share].map(|rate| rate.map_or(String::new(), percent));
        let draft = kv.draft.map_or([const { String::new() }; 2], |draft| [draft.live, draft.reserved].map(percent));
        let row = [name(record, arm), slots.to_string()].into_iter().chain(shares);
        let counts = [peak_live.to_string(), arm.summary.counts.preemptions.to_string()];
        Some(row.chain(counts).chain(rates).chain(draft).collect())
    };
    let header = [
        "cell",
        "slots",
        "live",
        "shared",
        "reservation",
        "internal",
        "external",
        "cached",
        "free",
        "peak live",
        "preemptions",
        "hits",
        "recomputed",
        "draft live",
        "draft reserved",
    ];
    let title =
        "KV cache, % of the target's slots over the time of steps; hits in % of prompt tokens, recomputed in % of rows";
    section(title, &header, record.arms.iter().filter_map(row).collect())
}

//! What doctor found, for a terminal.

use std::time::Duration;

use super::{CACHED, Findings, HALF_NS, PAIRS};

/// A line for each finding.
pub(super) fn text(found: &Findings) -> String {
    let fix = found.fix.iter().enumerate().map(|(at, wrong)| (if at == 0 { "to fix" } else { "" }, wrong.clone()));
    let lines = standing(found).into_iter().chain(measured(found)).chain(fix);
    lines.map(|(name, value)| format!("{name:<12} {value}")).collect::<Vec<_>>().join("\n")
}

/// What is so whenever one looks.
fn standing(found: &Findings) -> Vec<(&'static str, String)> {
    let (machine, build) = (&found.machine, &found.build);
    let cache = machine.cache_bytes.map_or("size not told".into(), |bytes| format!("{} MiB", bytes >> 20));
    let commit = build.commit.get(..10).unwrap_or(&build.commit);
    let (id, cores) = (known(machine.cpu_id.as_ref()), machine.physical_cores);
    vec![
        ("machine", format!("{}, {id}, {cores} cores, last-level cache {cache}", machine.cpu)),
        ("system", format!("{}, kernel {}", machine.os, known(machine.kernel.as_ref()))),
        (
            "build",
            format!("{} {}, commit {commit}, dirty: {}, {}", build.version, build.profile, build.dirty, build.rustc),
        ),
        ("runs on", format!("{} threads, {}", found.threads, found.instructions)),
    ]
}

/// What was measured now.
fn measured(found: &Findings) -> Vec<(&'static str, String)> {
    let seen = &found.conditions;
    let gb = |bytes: f64| format!("{:.1} GB/s", bytes / 1e9);
    let mib = |bytes: Option<u64>| bytes.map_or("not told".into(), |bytes| format!("{} MiB", bytes >> 20));
    let (one, all, block) = (gb(found.read_one), gb(found.read_all), found.block_bytes >> 20);
    let width = found.repeat.interval.map_or(f64::NAN, |interval| 100.0 * interval.resolution());
    let load = seen.load.map_or("not told".into(), |load| format!("{load:.2}"));
    let stolen = seen.steal_share.map_or("not told".into(), |share| format!("{:.1}%", 100.0 * share));
    vec![
        ("memory read", format!("{one} one thread, {all} all threads, over {block} MiB")),
        ("cache read", format!("{} all threads, {} KiB each", gb(found.read_cached), CACHED >> 10)),
        ("peak", format!("{:.0} GFLOP/s of f32 multiply-adds", found.peak_flops / 1e9)),
        ("clock", format!("{:.0} ns a look, steps of {:?}", found.clock_ns, Duration::from_nanos(found.clock_step_ns))),
        (
            "A/A noise",
            format!(
                "pairs of {:.0} ms differ by {:.1}% (sd); {PAIRS} of them tell a ratio to ±{width:.2}%",
                HALF_NS / 1e6,
                100.0 * found.repeat_sd
            ),
        ),
        (
            "now",
            format!(
                "load {load}, stolen {stolen}, memory available {}, swap used {}, governor {}",
                mib(seen.memory_available),
                mib(seen.swap_used),
                known(found.machine.governor.as_ref())
            ),
        ),
    ]
}

fn known(value: Option<&String>) -> &str {
    value.map_or("not told", String::as_str)
}

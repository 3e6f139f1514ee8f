//! What is wrong with a machine for measuring on, each with its remedy.

use super::Findings;

/// Processor time that may be stolen before it is worth a word.
const STOLEN: f64 = 0.01;

/// Spread of equal work above which a machine counts as restless.
const RESTLESS: f64 = 0.05;

/// Everything that would make numbers better.
pub(super) fn fix(found: &Findings) -> Vec<String> {
    [settings(found), doings(found)].into_iter().flatten().flatten().collect()
}

/// How the machine and the program are set up.
fn settings(found: &Findings) -> Vec<Option<String>> {
    let (machine, build) = (&found.machine, &found.build);
    let governor = machine.governor.as_ref().filter(|governor| *governor != "performance");
    let cores = machine.physical_cores;
    vec![
        governor.map(|governor| {
            format!("clock rates follow the governor `{governor}`: sudo cpupower frequency-set -g performance")
        }),
        (found.threads > cores).then(|| format!("{} threads on {cores} cores: give --threads {cores}", found.threads)),
        (machine.virtual_machine == Some(true))
            .then(|| "this is a virtual machine: compare within one run, not across runs or hours".to_string()),
        (build.profile != "release").then(|| "this is a debug build: cargo build --release".to_string()),
        (build.dirty != "no").then(|| "the build is not of a clean commit: commit before numbers are kept".to_string()),
    ]
}

/// What it is doing now.
fn doings(found: &Findings) -> Vec<Option<String>> {
    let (machine, seen) = (&found.machine, &found.conditions);
    let over = |value: Option<f64>, limit: f64| value.filter(|value| *value > limit);
    let percent = |share: f64| format!("{:.1}%", 100.0 * share);
    vec![
        over(seen.load, 0.5 * machine.logical_cores as f64)
            .map(|load| format!("load is {load:.1} on {} processors: end what else runs", machine.logical_cores)),
        over(seen.steal_share, STOLEN).map(|share| {
            format!("{} of processor time goes to other guests: take a quieter hour or host", percent(share))
        }),
        seen.swap_used.filter(|bytes| *bytes > 64 << 20).map(|bytes| {
            format!("{} MiB are swapped out: end what holds the memory, then swapoff -a && swapon -a", bytes >> 20)
        }),
        seen.throttled.filter(|times| *times > 0).map(|times| format!("a processor throttled {times} times: cool it")),
        over(Some(found.repeat_sd), RESTLESS).map(|sd| {
            format!("equal work differs by {}: give runs a longer --time-budget, or quiet the machine", percent(sd))
        }),
    ]
}

#[cfg(test)]
mod tests {
    use specquant_machine::{Build, Conditions, Machine};
    use specquant_metrics::paired;

    use super::*;

    /// A quiet machine of two cores with nothing to fix.
    fn sound() -> Findings {
        let machine = Machine {
            logical_cores: 2,
            physical_cores: 2,
            governor: Some("performance".into()),
            virtual_machine: Some(false),
            ..Machine::read()
        };
        Findings {
            machine,
            build: Build { profile: "release".into(), dirty: "no".into(), ..crate::build::build() },
            threads: 2,
            instructions: "scalar".into(),
            block_bytes: 1,
            read_one: 1.0,
            read_all: 1.0,
            read_cached: 1.0,
            peak_flops: 1.0,
            clock_ns: 1.0,
            clock_step_ns: 1,
            repeat: paired(&[1.0, 1.0], &[1.0, 1.0], 0.95).unwrap(),
            repeat_sd: 0.01,
            conditions: Conditions { load: Some(0.9), steal_share: Some(0.005), ..Conditions::default() },
            fix: Vec::new(),
        }
    }

    /// `spoil` makes one thing wrong; the only advice must hold `expected`.
    fn check(spoil: impl Fn(&mut Findings), expected: &str) {
        let mut found = sound();
        spoil(&mut found);
        let fix = fix(&found);
        assert!(fix.len() == 1 && fix[0].contains(expected), "{fix:?} instead of {expected}");
    }

    #[test]
    fn whatever_is_wrong_is_named_with_its_remedy() {
        assert_eq!(fix(&sound()), [""; 0]);
        check(|found| found.machine.governor = Some("powersave".into()), "frequency-set -g performance");
        check(|found| found.threads = 4, "--threads 2");
        check(|found| found.machine.virtual_machine = Some(true), "compare within one run");
        check(|found| found.build.profile = "debug".into(), "cargo build --release");
        check(|found| found.build.dirty = "yes".into(), "commit before");
        check(|found| found.conditions.load = Some(1.5), "load is 1.5 on 2");
        check(|found| found.conditions.steal_share = Some(0.03), "3.0% of processor time");
        check(|found| found.conditions.swap_used = Some(1 << 30), "1024 MiB are swapped out");
        check(|found| found.conditions.throttled = Some(3), "throttled 3 times");
        check(|found| found.repeat_sd = 0.08, "8.0%");
    }
}

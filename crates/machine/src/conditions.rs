//! What the machine was doing meanwhile: load, clock rates, time stolen by others, memory. Read before and after every
//! round, so that a number can be told from the hour it was measured in.
//!
//! Everything is optional, since an operating system may not tell; only Linux does here. Reading takes well below 1 ms.

use serde::{Deserialize, Serialize};

/// A moment's readings. Counters count from the start of the machine or the process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moment {
    load: Option<f64>,
    mhz: Option<Vec<f64>>,
    ticks: Option<Ticks>,
    throttled: Option<u64>,
    major_faults: Option<u64>,
    memory: Memory,
}

/// What was seen between two moments.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Load average of the last minute, at the end.
    pub load: Option<f64>,
    /// Clock rates of the processors at the beginning and the end: lowest, mean and highest, MHz.
    pub mhz: Option<[f64; 3]>,
    /// Processor time that the hypervisor gave to others / all.
    pub steal_share: Option<f64>,
    /// Processor time in use, by whomever / all.
    pub busy_share: Option<f64>,
    /// Times that a processor slowed itself down for heat.
    pub throttled: Option<u64>,
    /// Pages of this process that had to be read from disk.
    pub major_faults: Option<u64>,
    /// Memory that could be had without swapping at the end, bytes.
    pub memory_available: Option<u64>,
    /// Swap in use at the end, by whomever, bytes.
    pub swap_used: Option<u64>,
    /// Anonymous memory of this process at the end, bytes.
    pub resident_anonymous: Option<u64>,
    /// Mapped files of this process in memory at the end, bytes.
    pub resident_mapped: Option<u64>,
}

/// Processor time since the machine started, in ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    all: u64,
    idle: u64,
    stolen: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Memory {
    available: Option<u64>,
    swap_used: Option<u64>,
    anonymous: Option<u64>,
    mapped: Option<u64>,
}

impl Moment {
    /// Now.
    pub fn now() -> Moment {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let (meminfo, status) = (read("/proc/meminfo"), read("/proc/self/status"));
        let field = |text: &Option<String>, name| text.as_deref().and_then(|text| kibibytes(text, name));
        let swap = field(&meminfo, "SwapTotal").zip(field(&meminfo, "SwapFree"));
        Moment {
            load: read("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok()),
            mhz: clock_rates().or_else(|| megahertz(&read("/proc/cpuinfo")?)),
            ticks: read("/proc/stat").and_then(|text| ticks(&text)),
            throttled: sum_over_processors("thermal_throttle/core_throttle_count"),
            major_faults: read("/proc/self/stat").and_then(|text| major_faults(&text)),
            memory: Memory {
                available: field(&meminfo, "MemAvailable"),
                swap_used: swap.map(|(total, free)| total.saturating_sub(free)),
                anonymous: field(&status, "RssAnon"),
                mapped: field(&status, "RssFile"),
            },
        }
    }

    /// Memory that could be had without swapping, bytes.
    pub fn memory_available(&self) -> Option<u64> {
        self.memory.available
    }

    /// What was seen from an earlier moment to this one.
    pub fn since(&self, earlier: &Moment) -> Conditions {
        let ticks = self.ticks.zip(earlier.ticks);
        let share = |part: fn(Ticks) -> u64| {
            let (now, then) = ticks?;
            let all = now.all.saturating_sub(then.all);
            (all > 0).then(|| part(now).saturating_sub(part(then)) as f64 / all as f64)
        };
        let grown = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        let Memory { available, swap_used, anonymous, mapped } = self.memory;
        Conditions {
            load: self.load,
            mhz: spread([&earlier.mhz, &self.mhz].into_iter().flatten().flatten().copied()),
            steal_share: share(|ticks| ticks.stolen),
            busy_share: share(|ticks| ticks.all - ticks.idle),
            throttled: grown(self.throttled, earlier.throttled),
            major_faults: grown(self.major_faults, earlier.major_faults),
            memory_available: available,
            swap_used,
            resident_anonymous: anonymous,
            resident_mapped: mapped,
        }
    }
}

/// Lowest, mean and highest.
fn spread(values: impl Iterator<Item = f64> + Clone) -> Option<[f64; 3]> {
    let n = values.clone().count();
    let (low, high) = (values.clone().reduce(f64::min)?, values.clone().reduce(f64::max)?);
    Some([low, values.sum::<f64>() / n as f64, high])
}

/// The clock rates that the kernel sets, MHz.
fn clock_rates() -> Option<Vec<f64>> {
    let rates: Vec<f64> = each_processor("cpufreq/scaling_cur_freq").map(|kilohertz| kilohertz as f64 / 1e3).collect();
    (!rates.is_empty()).then_some(rates)
}

fn sum_over_processors(file: &str) -> Option<u64> {
    each_processor(file).reduce(|a, b| a + b)
}

/// The number in a file of each processor's folder, as long as there are such files.
fn each_processor(file: &str) -> impl Iterator<Item = u64> {
    let path = move |processor: usize| format!("/sys/devices/system/cpu/cpu{processor}/{file}");
    let paths = (0..4096).map(path);
    paths.map_while(|path| std::fs::read_to_string(path).ok()?.trim().parse().ok()).collect::<Vec<_>>().into_iter()
}

/// The clock rates that `/proc/cpuinfo` tells.
fn megahertz(cpuinfo: &str) -> Option<Vec<f64>> {
    let lines = cpuinfo.lines().filter(|line| line.starts_with("cpu MHz"));
    let rates: Vec<f64> = lines.filter_map(|line| line.split(':').nth(1)?.trim().parse().ok()).collect();
    (!rates.is_empty()).then_some(rates)
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal, and guest times that are in user.
fn ticks(stat: &str) -> Option<Ticks> {
    let line = stat.lines().find(|line| line.starts_with("cpu "))?;
    let values: Vec<u64> = line.split_whitespace().skip(1).map_while(|value| value.parse().ok()).collect();
    let times = values.get(..8)?;
    Some(Ticks { all: times.iter().sum(), idle: times[3] + times[4], stolen: times[7] })
}

/// A value of `/proc/meminfo` or `/proc/self/status`, bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Field 12 of `/proc/self/stat`. The name in parentheses may hold blanks.
fn major_faults(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(9)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_the_kernel_writes_them() {
        let stat = "cpu  100 0 50 800 20 0 5 25 7 0\ncpu0 1 2 3\nintr 9\n";
        assert_eq!(ticks(stat), Some(Ticks { all: 1000, idle: 820, stolen: 25 }));
        for bad in ["", "cpu  1 2 3\n", "cpu0 1 2 3 4 5 6 7 8\n"] {
            assert_eq!(ticks(bad), None, "{bad}");
        }
        let meminfo = "MemTotal:       24000000 kB\nMemAvailable:   20000 kB\nSwapTotal: 10 kB\n";
        assert_eq!(kibibytes(meminfo, "MemAvailable"), Some(20000 * 1024));
        assert_eq!(
            (kibibytes(meminfo, "Mem"), kibibytes(meminfo, "SwapFree"), kibibytes("A: x kB", "A")),
            (None, None, None)
        );
        assert_eq!(megahertz("model name : x\ncpu MHz\t\t: 2445.4\ncpu MHz : 1000\n"), Some(vec![2445.4, 1000.0]));
        assert_eq!(megahertz("model name : x\n"), None);
        assert_eq!(major_faults("7 (a b) c) S 1 2 3 4 5 6 7 8 9 10 11\n"), Some(9));
        assert_eq!(major_faults("7"), None);
    }

    #[test]
    fn conditions_are_differences_of_counters_and_last_values_of_the_rest() {
        let at = |all, idle, stolen, faults, mhz: &[f64]| Moment {
            load: Some(0.5),
            mhz: Some(mhz.to_vec()),
            ticks: Some(Ticks { all, idle, stolen }),
            major_faults: Some(faults),
            ..Moment::default()
        };
        let seen = at(200, 120, 5, 9, &[1000.0, 3000.0]).since(&at(100, 100, 1, 4, &[2000.0, 2000.0]));
        assert_eq!((seen.busy_share, seen.steal_share), (Some(0.8), Some(0.04)));
        assert_eq!((seen.major_faults, seen.load, seen.throttled), (Some(5), Some(0.5), None));
        assert_eq!(seen.mhz, Some([1000.0, 2000.0, 3000.0]));
        assert_eq!(Moment::default().since(&Moment::default()), Conditions::default());
        // No time has passed, so there is no share of it.
        assert_eq!(at(1, 1, 0, 0, &[]).since(&at(1, 1, 0, 0, &[])).busy_share, None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_tells_something() {
        let seen = Moment::now().since(&Moment::now());
        assert!(seen.load.is_some_and(|load| load >= 0.0) && seen.memory_available.is_some_and(|bytes| bytes > 0));
        assert!(seen.resident_anonymous.is_some_and(|bytes| bytes > 0), "{seen:?}");
    }
}

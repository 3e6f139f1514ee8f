//! What the machine is and what time it is: the facts that a stored number must name.

use serde::{Deserialize, Serialize};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// The machine that a run was made on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's own name, such as `AMD EPYC 9654`.
    pub cpu: String,
    /// Physical cores; the default number of threads.
    pub physical_cores: usize,
    /// Processors that the operating system schedules on.
    pub logical_cores: usize,
    /// Main memory, bytes.
    pub memory_bytes: u64,
    /// Last-level cache of the first processor, bytes, where the operating system tells.
    pub cache_bytes: Option<u64>,
    /// Operating system and its version.
    pub os: String,
}

impl Machine {
    /// Reads this machine. What the operating system does not tell is `unknown`, one core or no memory.
    pub fn read() -> Machine {
        let wanted = RefreshKind::nothing()
            .with_cpu(CpuRefreshKind::nothing())
            .with_memory(MemoryRefreshKind::nothing().with_ram());
        let system = System::new_with_specifics(wanted).ok();
        let cpus = system.as_ref().map_or(&[][..], System::cpus);
        let logical_cores = cpus.len().max(1);
        let physical = System::physical_core_count().unwrap_or(logical_cores);
        Machine {
            cpu: cpus.first().map_or("unknown", |cpu| cpu.brand().trim()).to_string(),
            physical_cores: physical.clamp(1, logical_cores),
            logical_cores,
            memory_bytes: system.as_ref().map_or(0, System::total_memory),
            cache_bytes: last_level_cache(),
            os: System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.to_string()),
        }
    }

    /// The processor's name as part of a folder's name: lower case, words joined by hyphens.
    pub fn label(&self) -> String {
        let words = self.cpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.take(4).collect::<Vec<_>>().join("-").to_lowercase()
    }
}

/// Linux lists the caches of a processor by level; elsewhere nothing is known.
fn last_level_cache() -> Option<u64> {
    let size = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        parse_size(std::fs::read_to_string(path).ok()?.trim())
    };
    (0..8).filter_map(size).max()
}

/// A size as the kernel writes it, such as `32768K`.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

/// The time in UTC to the second, in the basic form of ISO 8601 that file names can hold: `20261130T201500Z`.
pub fn utc_stamp() -> String {
    jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_label_can_be_part_of_a_path() {
        let machine = |cpu: &str| Machine { cpu: cpu.into(), ..Machine::read() };
        for (cpu, expected) in [
            ("AMD EPYC 9654 96-Core Processor", "amd-epyc-9654-96"),
            ("Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-r-xeon-r"),
            ("unknown", "unknown"),
        ] {
            assert_eq!(machine(cpu).label(), expected);
        }
    }

    #[test]
    fn sizes_are_read_as_the_kernel_writes_them() {
        for (text, expected) in
            [("32768K", Some(32 << 20)), ("1M", Some(1 << 20)), ("512", Some(512)), ("", None), ("K", None)]
        {
            assert_eq!(parse_size(text), expected, "{text}");
        }
    }

    #[test]
    fn this_machine_has_cores_and_memory() {
        let machine = Machine::read();
        assert!(machine.physical_cores >= 1 && machine.physical_cores <= machine.logical_cores);
        assert!(machine.memory_bytes > 0);
    }
}

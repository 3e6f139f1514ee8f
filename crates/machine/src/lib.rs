//! What the machine is, what it was doing, what was built, and what time it is: the facts that a stored number must name.

mod build;
mod conditions;

pub use build::Build;
pub use conditions::{Conditions, Moment};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// The machine that a run was made on.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
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
    /// Family, model and stepping of the processor, since its name may say little.
    pub cpu_id: Option<String>,
    /// Whether it is a virtual machine, whose processors others may use too.
    pub virtual_machine: Option<bool>,
    /// How clock rates are chosen, such as `performance` or `powersave`.
    pub governor: Option<String>,
    /// Whether clock rates may rise above the nominal one for a while.
    pub boost: Option<bool>,
    /// Swap space, bytes.
    pub swap_bytes: u64,
    /// Operating system and its version.
    pub os: String,
    /// Version of its kernel.
    pub kernel: Option<String>,
}

impl Machine {
    /// Reads this machine. What the operating system does not tell is `unknown`, one core or no memory.
    pub fn read() -> Machine {
        let wanted =
            RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()).with_memory(MemoryRefreshKind::everything());
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
            cpu_id: read("/proc/cpuinfo").as_deref().and_then(cpu_id),
            virtual_machine: read("/proc/cpuinfo").as_deref().and_then(is_virtual),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            boost: read("/sys/devices/system/cpu/cpufreq/boost").map(|value| value == "1"),
            swap_bytes: system.as_ref().map_or(0, System::total_swap),
            kernel: System::kernel_version().ok(),
            os: System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.to_string()),
        }
    }

    /// The processor's name as part of a folder's name: lower case, words joined by hyphens.
    pub fn label(&self) -> String {
        let words = self.cpu.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.take(4).collect::<Vec<_>>().join("-").to_lowercase()
    }
}

/// A short file's text, where there is such a file.
fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

/// The first processor's value of a field of `/proc/cpuinfo`.
fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let value =
        |line: &'a str| line.split_once(':').filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim());
    cpuinfo.lines().find_map(value)
}

fn cpu_id(cpuinfo: &str) -> Option<String> {
    let [family, model, stepping] = ["cpu family", "model", "stepping"].map(|name| field(cpuinfo, name));
    Some(format!("family {} model {} stepping {}", family?, model?, stepping?))
}

/// Whether the processor says that a hypervisor runs it.
fn is_virtual(cpuinfo: &str) -> Option<bool> {
    field(cpuinfo, "flags").map(|flags| flags.split(' ').any(|flag| flag == "hypervisor"))
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
    fn a_processor_says_which_it_is() {
        let cpuinfo = "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 1\nmodel name\t: AMD EPYC\nstepping\t: 1\nflags : fpu hypervisor lm\n";
        assert_eq!(cpu_id(cpuinfo).unwrap(), "family 25 model 1 stepping 1");
        assert_eq!((is_virtual(cpuinfo), is_virtual("flags : fpu"), is_virtual("")), (Some(true), Some(false), None));
        assert_eq!(cpu_id("model : 1"), None);
    }

    #[test]
    fn this_machine_has_cores_and_memory() {
        let machine = Machine::read();
        assert!(machine.physical_cores >= 1 && machine.physical_cores <= machine.logical_cores);
        assert!(machine.memory_bytes > 0);
    }
}

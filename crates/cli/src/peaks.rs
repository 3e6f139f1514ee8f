//! What this machine can do at most, measured: the yardstick of utilization and of `doctor`.

use anyhow::Result;
use specquant_core::Clock;
use specquant_engine::Wall;
use specquant_kernels::{Reading, Team, multiply_adds};
use specquant_machine::Machine;
use specquant_metrics::Peaks;

/// Bytes below which a bandwidth is not that of memory.
const LEAST: u64 = 256 << 20;

/// Measures both peaks of a team.
pub(crate) fn peaks(machine: &Machine, team: &Team) -> Result<Peaks> {
    let (read_bytes_s, _) = bandwidth(block(machine), team)?;
    Ok(Peaks { read_bytes_s, flops_s: multiply_add_rate(team) })
}

/// Bytes of a block that no cache of this machine keeps.
pub(crate) fn block(machine: &Machine) -> usize {
    LEAST.max(8 * machine.cache_bytes.unwrap_or(0)) as usize
}

/// The best of several passes over a block of so many bytes, bytes per second, and the bytes of a pass.
pub(crate) fn bandwidth(bytes: usize, team: &Team) -> Result<(f64, usize)> {
    let (clock, block) = (Wall::start(), Reading::new(bytes, team)?);
    // About as much is read in all whatever the block, and a small block is read again before it can leave the cache.
    let turns = ((1 << 24) / block.bytes()).max(1);
    let pass = |_| {
        let start = clock.now();
        for _ in 0..turns {
            block.pass(team);
        }
        (turns * block.bytes()) as f64 * 1e9 / (clock.now() - start) as f64
    };
    Ok(((0..8).map(pass).fold(0.0, f64::max), block.bytes()))
}

/// The best of several bursts of multiply-adds, floating-point operations per second.
pub(crate) fn multiply_add_rate(team: &Team) -> f64 {
    let clock = Wall::start();
    let burst = |_| {
        let start = clock.now();
        let operations = multiply_adds(1_000_000, team);
        operations * 1e9 / (clock.now() - start) as f64
    };
    (0..10).map(burst).fold(0.0, f64::max)
}

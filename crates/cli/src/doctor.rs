//! `specquant doctor`: whether numbers from this machine can be trusted, and what would make them better.

mod advice;
mod print;

use anyhow::Result;
use serde::Serialize;
use specquant_core::Clock;
use specquant_engine::Wall;
use specquant_kernels::{Team, multiply_adds};
use specquant_machine::{Build, Conditions, Machine, Moment};
use specquant_metrics::{Paired, paired};

use crate::args::DoctorArgs;
use crate::peaks::{bandwidth, block, multiply_add_rate};
use crate::{Ended, device, show};

/// Bytes of the block that is read from cache: in every core's second-level cache.
const CACHED: usize = 256 << 10;

/// Pairs of equal work that show the noise, and what each half aims to take.
const PAIRS: usize = 40;
const HALF_NS: f64 = 5e6;

/// What doctor found.
#[derive(Debug, Serialize)]
struct Findings {
    machine: Machine,
    build: Build,
    threads: usize,
    instructions: String,
    /// Bytes that were read in one pass from memory.
    block_bytes: usize,
    /// Read bandwidth of one thread from memory, bytes per second.
    read_one: f64,
    /// Read bandwidth of all threads from memory, bytes per second.
    read_all: f64,
    /// Read bandwidth of all threads from their caches, bytes per second.
    read_cached: f64,
    /// Multiply-adds in registers of all threads, floating-point operations per second.
    peak_flops: f64,
    /// Nanoseconds that a look at the clock takes.
    clock_ns: f64,
    /// Smallest step that the clock was seen to make, nanoseconds.
    clock_step_ns: u64,
    /// The same work timed in pairs, second against first.
    repeat: Paired,
    /// Standard deviation of the logarithms of those ratios.
    repeat_sd: f64,
    conditions: Conditions,
    /// What is wrong, each with its remedy.
    fix: Vec<String>,
}

/// Examines the machine and prints what it found.
pub(crate) fn doctor(args: &DoctorArgs, json: bool) -> Result<Ended> {
    let before = Moment::now();
    let machine = Machine::read();
    let team = device::team(args.threads, &machine)?;
    let one = device::team(1, &machine)?;
    let block = args.memory.map_or_else(|| block(&machine), |mebibytes| (mebibytes << 20) as usize);
    let (read_one, _) = bandwidth(block, &one)?;
    let (read_all, block_bytes) = bandwidth(block, &team)?;
    let (read_cached, _) = bandwidth(CACHED * team.threads(), &team)?;
    let peak_flops = multiply_add_rate(&team);
    let (clock_ns, clock_step_ns) = clock();
    let (repeat, repeat_sd) = repeat(&team)?;
    let mut findings = Findings {
        threads: team.threads(),
        instructions: team.isa().to_string(),
        build: crate::build::build(),
        conditions: Moment::now().since(&before),
        fix: Vec::new(),
        machine,
        block_bytes,
        read_one,
        read_all,
        read_cached,
        peak_flops,
        clock_ns,
        clock_step_ns,
        repeat,
        repeat_sd,
    };
    findings.fix = advice::fix(&findings);
    show(&if json { serde_json::to_string_pretty(&findings)? } else { print::text(&findings) })?;
    Ok(Ended::Done)
}

/// What a look at the clock takes, and the smallest step that was seen.
fn clock() -> (f64, u64) {
    const LOOKS: usize = 100_000;
    let clock = Wall::start();
    let (mut last, mut smallest) = (0, u64::MAX);
    for _ in 0..LOOKS {
        let now = clock.now();
        if now > last {
            smallest = smallest.min(now - last);
        }
        last = now;
    }
    (last as f64 / LOOKS as f64, smallest)
}

/// Equal work, timed in pairs, the order of which changes from pair to pair.
fn repeat(team: &Team) -> Result<(Paired, f64)> {
    let clock = Wall::start();
    let timed = |turns| {
        let start = clock.now();
        multiply_adds(turns, team);
        (clock.now() - start) as f64
    };
    let turns = (HALF_NS / timed(100_000).min(timed(100_000)) * 100_000.0) as usize;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for pair in 0..PAIRS {
        let (a, b) = (timed(turns), timed(turns));
        let (a, b) = if pair % 2 == 0 { (a, b) } else { (b, a) };
        first.push(a);
        second.push(b);
    }
    let logs = || first.iter().zip(&second).map(|(a, b)| (b / a).ln());
    let mean = logs().sum::<f64>() / PAIRS as f64;
    let sd = (logs().map(|log| (log - mean).powi(2)).sum::<f64>() / (PAIRS - 1) as f64).sqrt();
    Ok((paired(&second, &first, 0.95)?, sd))
}

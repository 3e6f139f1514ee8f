//! What the benches share: the team, what the machine can do at most, and a line for each case that says which share of that
//! it reached.
//!
//! Peaks are measured by the process that runs the cases, so that their ratio holds on a machine that is not at rest.

use std::time::{Duration, Instant};

use anyhow::Result;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, measurement::WallTime};
use specquant_kernels::{Isa, Reading, Team, multiply_adds};

/// Bytes that no cache of a desktop or small server keeps.
pub const BEYOND_CACHE: usize = 256 << 20;

/// Seconds for which a case is measured, and warmed up.
const MEASURED: f64 = 2.0;
const WARM: f64 = 0.5;

/// A group of cases and what their results are held against.
pub struct Bench<'a> {
    /// All threads of this machine, at most eight, on its best path.
    pub team: Team,
    group: BenchmarkGroup<'a, WallTime>,
    read_bytes_s: f64,
    flops_s: f64,
}

/// What one call of a case does.
#[derive(Clone, Copy, Default)]
pub struct Work {
    /// Bytes of weights, or of keys and values, that are read.
    pub bytes: usize,
    /// Floating-point or integer operations, a multiply-add being two.
    pub operations: usize,
    /// Tokens that go through a model.
    pub tokens: usize,
}

impl<'a> Bench<'a> {
    /// Measures the peaks and says how long so many cases take at most.
    ///
    /// # Errors
    /// When there is no memory for the read that is measured.
    pub fn new(criterion: &'a mut Criterion, name: &str, cases: usize) -> Result<Bench<'a>> {
        let threads = std::thread::available_parallelism()?.get().min(8);
        let team = Team::new(threads, Isa::detect())?;
        let reading = Reading::new(BEYOND_CACHE, &team)?;
        let read_bytes_s = best(|| (reading.pass(&team), reading.bytes() as f64).1);
        let flops_s = best(|| multiply_adds(1 << 21, &team));
        println!(
            "{name}: {cases} cases, {:.0} s at most; {team:?}; memory read {:.1} GB/s, peak {:.0} GFLOP/s",
            cases as f64 * (MEASURED + WARM + 1.0),
            read_bytes_s / 1e9,
            flops_s / 1e9
        );
        let mut group = criterion.benchmark_group(name);
        group.sample_size(20);
        group.measurement_time(Duration::from_secs_f64(MEASURED)).warm_up_time(Duration::from_secs_f64(WARM));
        Ok(Bench { team, group, read_bytes_s, flops_s })
    }

    /// Measures `call`, of which each does `work`, and prints the share of the peaks that the median sample reached.
    pub fn case(&mut self, name: &str, work: Work, mut call: impl FnMut()) {
        let throughput = match work.tokens {
            0 => Throughput::Bytes(work.bytes as u64),
            tokens => Throughput::Elements(tokens as u64),
        };
        self.group.throughput(throughput);
        let mut samples = Vec::new();
        self.group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter_custom(|calls| {
                let start = Instant::now();
                (0..calls).for_each(|_| call());
                let took = start.elapsed();
                samples.push(took.as_secs_f64() / calls as f64);
                took
            });
        });
        // A filter on the command line leaves cases out.
        if !samples.is_empty() {
            samples.sort_by(f64::total_cmp);
            self.tell(name, work, samples[samples.len() / 2]);
        }
    }

    fn tell(&self, name: &str, work: Work, seconds: f64) {
        let (bytes_s, operations_s) = (work.bytes as f64 / seconds, work.operations as f64 / seconds);
        let tokens =
            if work.tokens > 0 { format!("{:.0} tok/s, ", work.tokens as f64 / seconds) } else { String::new() };
        println!(
            "    {name}: {tokens}{:.1} GB/s, {:.2} of memory read; {:.1} Gop/s, {:.2} of peak",
            bytes_s / 1e9,
            bytes_s / self.read_bytes_s,
            operations_s / 1e9,
            operations_s / self.flops_s
        );
    }
}

/// The best rate of several calls that return how much they did.
fn best(mut call: impl FnMut() -> f64) -> f64 {
    let rate = |_| {
        let start = Instant::now();
        let done = call();
        done / start.elapsed().as_secs_f64()
    };
    (0..6).map(rate).fold(0.0, f64::max)
}

//! How much of the machine's arithmetic and memory bandwidth the target's forward used, for prefill and decode apart.
//!
//! Work is counted from what was run: rejected draft rows are in it, rows that were not scored never saw the head, and a
//! matrix is read once a forward. MFU as in PaLM (arXiv 2204.02311, appendix B), but with all rows that were run; MBU as in
//! "LLM Inference Performance Engineering" (Databricks, 2023).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use specquant_core::ModelInfo;

use crate::steps::{StepCost, StepCosts};

/// The most that a machine can do, as measured.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Peaks {
    /// Bytes read from memory in a second.
    pub read_bytes_s: f64,
    /// Floating-point operations in a second.
    pub flops_s: f64,
}

/// What the target's forwards used, by kind of step. Mixed steps are never apportioned and are in neither.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Utilization {
    /// In prefill steps; `None` without them.
    pub prefill: Option<PhaseUse>,
    /// In decode steps, those that verify drafts included; `None` without them.
    pub decode: Option<PhaseUse>,
}

/// What the target's forwards of one kind of step used.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct PhaseUse {
    /// Operations in a second of the target's time.
    pub flops_s: f64,
    /// Bytes of weights, keys and values that had to be read in a second of the target's time.
    pub bytes_s: f64,
    /// MFU: operations / target time / peak.
    pub mfu: f64,
    /// MBU: bytes / target time / bandwidth. Above 1 where weights stay in the caches from step to step.
    pub mbu: f64,
}

impl Utilization {
    /// What these steps of `target` used of a machine with these peaks.
    pub fn of(steps: &StepCosts, target: &ModelInfo, peaks: &Peaks) -> Utilization {
        let used = |steps| PhaseUse::of(steps, target, peaks);
        Utilization { prefill: used(&steps.prefill), decode: used(&steps.decode) }
    }
}

impl PhaseUse {
    /// `None` where no time passed in the target or a peak is not a positive number.
    fn of(steps: &StepCost, target: &ModelInfo, peaks: &Peaks) -> Option<PhaseUse> {
        let sound = |peak: f64| peak.is_finite() && peak > 0.0;
        if steps.times.target == 0 || !sound(peaks.read_bytes_s) || !sound(peaks.flops_s) {
            return None;
        }
        let seconds = steps.times.target as f64 / 1e9;
        let (flops_s, bytes_s) = (flops(steps, target) / seconds, bytes(steps, target) / seconds);
        Some(PhaseUse { flops_s, bytes_s, mfu: flops_s / peaks.flops_s, mbu: bytes_s / peaks.read_bytes_s })
    }
}

/// Operations of the forwards of these steps. As a float, since long runs of large models exceed 64 bits.
fn flops(steps: &StepCost, target: &ModelInfo) -> f64 {
    let (rows, reach, work) = (&steps.rows, &steps.reach, &target.work);
    let times = |count: usize, flops: u64| count as f64 * flops as f64;
    times(rows.prefill + rows.decode + rows.verify, work.row_flops)
        + times(reach.scored, work.scored_flops)
        + times(reach.keys, work.key_flops)
}

/// Bytes that the forwards of these steps had to read: the head only where a row was scored, keys and values once for the
/// rows that share them. A step of either kind has rows, so it is one forward. Activations and single embeddings are left
/// out.
fn bytes(steps: &StepCost, target: &ModelInfo) -> f64 {
    let (head, matrices) = (target.work.head_bytes as f64, target.memory.matrices as f64);
    let weights = steps.steps as f64 * (matrices - head) + steps.scoring as f64 * head;
    weights + steps.reach.context as f64 * target.kv_bytes_per_token() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::*;
    use specquant_core::{Event, KvDtype, Memory, Reach, WeightFormat, Work};

    /// 1,000 elements in layers and 200 in the head, in f16; 16 bytes of keys and values a token.
    fn target() -> ModelInfo {
        ModelInfo {
            name: "target".into(),
            parameters: 1200,
            vocab: 20,
            context: 64,
            layers: 2,
            hidden: 10,
            eos: vec![0],
            weights: WeightFormat::F16,
            kv_dtype: KvDtype::F16,
            kv_slots: 64,
            device: "none".into(),
            memory: Memory { matrices: 2400, matrices_exact: 2400, embedding: 0, kv: 64 * 16 },
            work: Work { row_flops: 2000, scored_flops: 400, key_flops: 80, head_bytes: 400 },
        }
    }

    const PEAKS: Peaks = Peaks { read_bytes_s: 4e9, flops_s: 10e9 };

    /// `expected` is (FLOPs, bytes, target nanoseconds) of prefill and decode steps.
    fn check(events: &[Event], expected: [Option<(f64, f64, f64)>; 2]) {
        let got = Utilization::of(&StepCosts::of(events), &target(), &PEAKS);
        for (got, expected) in [got.prefill, got.decode].into_iter().zip(expected) {
            let got = got.map(|used| [used.flops_s, used.bytes_s, used.mfu, used.mbu]);
            let expected = expected
                .map(|(flops, bytes, ns)| [flops / ns * 1e9, bytes / ns * 1e9, flops / ns / 10.0, bytes / ns / 4.0]);
            let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-12 * b.abs();
            let same = match (&got, &expected) {
                (Some(got), Some(expected)) => got.iter().zip(expected).all(near),
                (got, expected) => got.is_none() && expected.is_none(),
            };
            assert!(same, "{got:?} instead of {expected:?}");
        }
    }

    #[test]
    fn work_is_counted_from_what_was_run() {
        check(&[], [None, None]);
        // A prompt of 6 in two chunks: the first scores nothing and leaves the head unread.
        let first = reaching(900, [4, 0, 0], Reach { keys: 10, context: 4, scored: 0 }, plain(800, 100));
        let second = reaching(1500, [2, 0, 0], Reach { keys: 11, context: 6, scored: 1 }, plain(500, 100));
        check(std::slice::from_ref(&first), [Some((8000.0 + 800.0, 2000.0 + 64.0, 800.0)), None]);
        let prefill = Some((12_000.0 + 400.0 + 1680.0, 4400.0 + 160.0, 1300.0));
        check(&[first.clone(), second.clone()], [prefill, None]);
        // One decode row at position 6, then one with two draft tokens; drafting time is no time of the target.
        let decode = reaching(1600, [0, 1, 0], Reach { keys: 7, context: 7, scored: 1 }, plain(90, 10));
        let verify = reaching(1800, [0, 1, 2], Reach { keys: 27, context: 10, scored: 3 }, drafting(60, 110, 30));
        let used = Some((8000.0 + 1600.0 + 34.0 * 80.0, 4800.0 + 17.0 * 16.0, 200.0));
        check(&[first, second, decode, verify], [prefill, used]);
        // A step with rows of both kinds is in neither.
        check(&[reaching(9, [4, 1, 0], Reach { keys: 9, context: 9, scored: 1 }, plain(8, 1))], [None, None]);
    }

    #[test]
    fn without_time_or_a_peak_there_is_no_utilization() {
        let steps = StepCosts::of(&[step(9, [0, 1, 0], plain(8, 1))]);
        assert!(Utilization::of(&steps, &target(), &PEAKS).decode.is_some());
        let no_time = StepCosts::of(&[step(9, [0, 1, 0], plain(0, 1))]);
        assert_eq!(Utilization::of(&no_time, &target(), &PEAKS).decode, None);
        for peak in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            for peaks in [Peaks { read_bytes_s: peak, ..PEAKS }, Peaks { flops_s: peak, ..PEAKS }] {
                assert_eq!(Utilization::of(&steps, &target(), &peaks).decode, None, "{peaks:?}");
            }
        }
    }
}

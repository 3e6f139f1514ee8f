//! A small run in numbers that are easy to follow, for tests.

use specquant_core::{
    Event, EventKind, FileHash, KvDtype, KvUsage, Memory, ModelInfo, PhaseTimes, Reach, Reason, Rows, RunSpec,
    Speculation, TextSize, WeightFormat, Work,
};
use specquant_machine::{Build, Conditions, Machine};
use specquant_metrics::{Divergence, Paired, Pass, Peaks, Perplexity, Quality, RowCosts};

use crate::round::{ArmPass, Check, Digest, Ended, Log, Round};
use crate::run::{Run, SCHEMA};

/// Three cells: f16 plain, f16 with four draft tokens, f32 plain.
pub(crate) fn run() -> Run {
    let plain = RunSpec::default();
    let drafting = RunSpec { speculation: Speculation::Draft { k: 4 }, ..plain.clone() };
    let wide = RunSpec { weights: WeightFormat::F32, ..plain.clone() };
    Run {
        schema: SCHEMA,
        build: build(),
        began: "20260102T030405Z".into(),
        machine: machine(),
        device: "cpu scalar, 2 threads".into(),
        peaks: Peaks { read_bytes_s: 20e9, flops_s: 100e9 },
        models: vec![
            model("big", WeightFormat::F16, 2 << 20),
            model("big", WeightFormat::F32, 4 << 20),
            model("small", WeightFormat::F16, 1 << 19),
        ],
        notes: Vec::new(),
        files: vec![FileHash { name: "big/model.safetensors".into(), bytes: 9, sha256: "11".into() }],
        prompts: 1,
        prompt_tokens: 100.0,
        parts: 1,
        load_ns: vec![30_000_000, 40_000_000, 10_000_000],
        // T(5) is 10.9 / 9.9 of T(1), and a draft token 1 / 9.9.
        row_costs: vec![None, Some(row_costs([9.9, 10.1, 10.3, 10.6, 10.9], 1.0)), None],
        warm_up: vec![3, 4, 5],
        quality: vec![Some(quality(12.5, true)), Some(quality(12.5, true)), Some(quality(12.0, false))],
        cells: vec![plain, drafting, wide],
        targets: vec![0, 0, 1],
        drafts: vec![None, Some(2), None],
    }
}

/// A perplexity, and what it is compared with.
fn quality(value: f64, compared: bool) -> Quality {
    let perplexity = Perplexity { value, nll: value.ln(), scored_tokens: 1020, chunk: 512, chunks: 4 };
    let ratio = Paired { n: 4, ratio: value / 12.0, interval: None, bca: None, p: None, detectable: None };
    let divergence = Divergence { perplexity: ratio, mean_kld: 0.0125, p99_kld: 0.5, same_top: 0.75 };
    Quality {
        draft_perplexity: None,
        perplexity,
        reference: compared.then_some(WeightFormat::F32),
        divergence: compared.then_some(divergence),
        draft: None,
    }
}

fn machine() -> Machine {
    Machine {
        cpu: "Test CPU".into(),
        physical_cores: 2,
        logical_cores: 2,
        memory_bytes: 1 << 30,
        cache_bytes: Some(1 << 20),
        cpu_id: None,
        virtual_machine: Some(false),
        governor: None,
        boost: None,
        swap_bytes: 0,
        os: "Test OS".into(),
        kernel: None,
    }
}

fn build() -> Build {
    Build {
        version: "0.0.0".into(),
        commit: "0123456789abcdef".into(),
        dirty: "no".into(),
        rustc: "rustc 1.0.0".into(),
        target: "test".into(),
        profile: "release".into(),
        rustflags: String::new(),
        lock_sha256: "00".into(),
    }
}

fn row_costs(target_ms: [f64; 5], draft_ms: f64) -> RowCosts {
    let target_ns = target_ms.iter().map(|ms| 1e6 * ms).collect();
    RowCosts { sequences: 1, context: 100, target_ns, draft_ns: Some(1e6 * draft_ms) }
}

fn model(name: &str, weights: WeightFormat, matrices: u64) -> ModelInfo {
    ModelInfo {
        name: name.into(),
        parameters: matrices / 2,
        vocab: 100,
        context: 200,
        layers: 1,
        hidden: 8,
        eos: vec![0],
        weights,
        kv_dtype: KvDtype::F16,
        kv_slots: 200,
        device: "cpu".into(),
        memory: Memory { matrices, matrices_exact: matrices, ..Memory::default() },
        work: Work::default(),
    }
}

/// A finished run of `n` rounds.
pub(crate) fn log(n: usize, drafting_ms: u64) -> Log {
    Log {
        run: run(),
        rounds: rounds(n, drafting_ms),
        resumed: Vec::new(),
        ended: Some(Ended::Rounds),
        invalid: Vec::new(),
    }
}

/// Rounds in which a plain f16 step takes 10 ms, a drafting step `drafting_ms` and a plain f32 step 20 ms, each a
/// little slower from round to round.
fn rounds(n: usize, drafting_ms: u64) -> Vec<Round> {
    let round = |number: usize| {
        let slower = number as u64 * 1000;
        let drafting = (0..4).map(|step| (drafting_ms * 1_000_000 + slower * step, 4, 2));
        let plain = |ms: u64| (0..12).map(move |_| (ms * 1_000_000 + slower, 0, 0)).collect();
        Round {
            number,
            order: vec![vec![0, 1, 2, 3]],
            conditions: Conditions { steal_share: Some(0.01), ..Conditions::default() },
            passes: vec![
                pass(plain(10), if number == 1 { Check::Reference } else { Check::SameBits }),
                pass(drafting.collect(), Check::SameBits),
                pass(plain(20), if number == 1 { Check::Reference } else { Check::SameBits }),
                pass(plain(10), Check::SameBits),
            ],
        }
    };
    (1..=n).map(round).collect()
}

/// One request whose decode steps take (nanoseconds, drafted, accepted), after a prefill of 50 ms.
fn pass(steps: Vec<(u64, usize, usize)>, check: Check) -> ArmPass {
    let mut at = 50_000_000;
    let tokens =
        |n, drafted, accepted| EventKind::Tokens { request: 0, n, drafted, accepted, rejected: drafted > accepted };
    let kv = KvUsage { capacity: 400, live: 100, reserved: 60, ..KvUsage::default() };
    let step = |rows, times| EventKind::Step { rows, reach: Reach::default(), times, kv, draft_kv: KvUsage::default() };
    let mut kinds = vec![
        (0, EventKind::Arrived { request: 0, prompt: 100 }),
        (0, EventKind::Admitted { request: 0, cached: 0 }),
        (0, EventKind::Holds { request: 0, slots: 160 }),
        (at, tokens(1, 0, 0)),
        (at, step(Rows { prefill: 100, ..Rows::default() }, times(at, 0))),
    ];
    let mut output = 1;
    for (ns, drafted, accepted) in steps {
        at += ns;
        output += accepted + 1;
        kinds.push((at, tokens(accepted + 1, drafted, accepted)));
        let rows = Rows { prefill: 0, decode: 1, verify: drafted };
        kinds.push((at, step(rows, times(ns, drafted as u64))));
    }
    kinds.push((
        at,
        EventKind::Finished { request: 0, reason: Reason::Length, tokens: output, text: TextSize::default() },
    ));
    let events: Vec<Event> = kinds.into_iter().map(|(at, kind)| Event { at, kind }).collect();
    let digests = vec![Digest { request: 0, tokens: output, digest: "0123456789abcdef".into() }];
    ArmPass { pass: Pass::of(&events), digests, check }
}

/// A millisecond for each draft token, a tenth of one for the rest, and the target for what remains.
fn times(ns: u64, drafted: u64) -> PhaseTimes {
    let (draft, other) = (drafted * 1_000_000, 100_000);
    PhaseTimes { draft, other, target: ns - draft - other, ..PhaseTimes::default() }
}

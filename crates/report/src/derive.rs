//! From a log to its record, by a pure function: a stored run can be summarized again at any time.
//!
//! Rates are compared within rounds only. Where a cell ran twice in a round, the geometric mean of its rates stands for it.

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use specquant_core::{RunSpec, Speculation};
use specquant_metrics::{
    Cost, Goodput, Interval, Paired, Pass, Prediction, StepMeans, Summary, Utilization, holm, paired, resampled,
};

use crate::record::{Arm, Costs, Disturbance, Record, Speedup, Trust, Verdict, label};
use crate::round::{ArmPass, Check, Ended, Log, Round};
use crate::run::Run;

/// The confidence level of every interval but one.
const LEVEL: f64 = 0.95;

/// The level at which the control is compared with itself: so high that a miss is no chance.
const REPEAT_LEVEL: f64 = 0.999;

impl Record {
    /// Derives the record of a log with at least one round.
    pub fn derive(log: &Log) -> Result<Record> {
        let Log { run, rounds, resumed, ended, invalid } = log;
        ensure!(!rounds.is_empty(), "no round ended, so there is nothing to report");
        let rates = Rates::of(rounds, run);
        let mut arms: Vec<Arm> =
            (0..run.cells.len()).map(|cell| derive_arm(log, &rates, cell)).collect::<Result<_>>()?;
        judge_together(&mut arms);
        let interrupted = matches!(ended, None | Some(Ended::Interrupted));
        Ok(Record {
            trust: trust(log, &rates, &arms)?,
            disturbance: disturbance(rounds),
            run: run.clone(),
            rounds: rounds.len(),
            resumed: resumed.clone(),
            ended: *ended,
            interrupted,
            invalid: invalid.clone(),
            arms,
        })
    }
}

/// Rates of every pass: by arm, then by round. `None` where nothing was output.
struct Rates {
    decode: Vec<Vec<Option<f64>>>,
    end_to_end: Vec<Vec<Option<f64>>>,
    control: usize,
}

/// `paired`, or `resampled` where the time is to spare.
type Compare = fn(&[f64], &[f64], f64) -> Result<Paired>;

impl Rates {
    fn of(rounds: &[Round], run: &Run) -> Rates {
        let arms = run.cells.len() + 1;
        let rates = |rate: fn(&Pass) -> Option<f64>| {
            (0..arms).map(|arm| rounds.iter().map(|round| rate(&round.passes[arm].pass)).collect()).collect()
        };
        Rates { decode: rates(Pass::decode_tok_s), end_to_end: rates(Pass::output_tok_s), control: run.control() }
    }

    /// A cell's decode and end-to-end rates against another's; `None` where a round has no rate to compare.
    fn speedup(&self, cell: usize, control: usize) -> Result<Option<Speedup>> {
        let ratio = |rates| self.ratio(rates, [cell, control], resampled);
        let (decode, end_to_end) = (ratio(&self.decode)?, ratio(&self.end_to_end)?);
        Ok(decode.zip(end_to_end).map(|(decode, end_to_end)| Speedup { decode, end_to_end, adjusted_p: None }))
    }

    fn ratio(&self, rates: &[Vec<Option<f64>>], [cell, control]: [usize; 2], how: Compare) -> Result<Option<Paired>> {
        match (self.cell(rates, cell), self.cell(rates, control)) {
            (Some(cell), Some(control)) => how(&cell, &control, LEVEL).map(Some),
            _ => Ok(None),
        }
    }

    /// The control against itself.
    fn repeat(&self, level: f64) -> Result<Option<Paired>> {
        let arm = |at: usize| self.decode[at].iter().copied().collect::<Option<Vec<f64>>>();
        match (arm(self.decode.len() - 1), arm(self.control)) {
            (Some(second), Some(first)) => paired(&second, &first, level).map(Some),
            _ => Ok(None),
        }
    }

    fn cell(&self, rates: &[Vec<Option<f64>>], cell: usize) -> Option<Vec<f64>> {
        let first = rates[cell].iter().copied().collect::<Option<Vec<f64>>>()?;
        if cell != self.control {
            return Some(first);
        }
        let both = first.iter().zip(&rates[rates.len() - 1]);
        both.map(|(first, second)| Some((first * (*second)?).sqrt())).collect()
    }
}

/// The 95% intervals of all decode ratios of a run: of each cell against its own plain cell and against the control, and
/// of the control against itself. They alone decide whether rounds are enough, wherever they lie.
pub fn intervals(log: &Log) -> Result<Vec<Interval>> {
    let run = &log.run;
    let rates = Rates::of(&log.rounds, run);
    let mut ratios: Vec<Paired> = rates.repeat(LEVEL)?.into_iter().collect();
    for cell in 0..run.cells.len() {
        for other in [run.plain_of(cell), run.control_of(cell)].into_iter().flatten().filter(|&other| other != cell) {
            ratios.extend(rates.ratio(&rates.decode, [cell, other], paired)?);
        }
    }
    Ok(ratios.iter().filter_map(|ratio| ratio.interval).collect())
}

fn derive_arm(log: &Log, rates: &Rates, cell: usize) -> Result<Arm> {
    let Log { run, rounds, .. } = log;
    let spec = run.cells[cell].clone();
    let passes = |cell: usize| rounds.iter().map(move |round| &round.passes[cell].pass);
    let plain = run.plain_of(cell).filter(|&at| at != cell);
    let control = run.control_of(cell).filter(|&at| at != cell);
    // An arm that was to draft and never did ran plain: its ratio says nothing of speculation.
    let ran = spec.speculation == Speculation::Off || passes(cell).any(|pass| pass.acceptance.drafted() > 0);
    let speedup = |at: usize| rates.speedup(cell, at).with_context(|| label(&spec));
    let summary = Summary::of(passes(cell));
    let plain_summary = plain.map(|at| Summary::of(passes(at)));
    let costs = plain_summary.as_ref().and_then(|plain| Costs::of(plain, &summary));
    let prediction = plain_summary.as_ref().and_then(|plain| {
        let costs = run.row_costs[cell].as_ref()?;
        Prediction::of(&plain.steps, &summary.steps, &summary.acceptance_counts, costs)
    });
    Ok(Arm {
        verdict: verdict(rounds, &run.arms_of(cell)),
        vs_plain: plain.filter(|_| ran).map(speedup).transpose()?.flatten(),
        vs_control: control.filter(|_| ran).map(speedup).transpose()?.flatten(),
        goodput: spec.slo.map(|slo| Goodput::of(passes(cell), &slo)),
        cost: spec.price.and_then(|price| Cost::of(price, summary.throughput.wall_s, summary.counts.output_tokens)),
        cold_ttft_ms: summary.latency.ttft_ms.map(|ttft| run.load_ms(cell) + ttft.p50.value),
        quality: run.quality[cell],
        utilization: Utilization::of(&summary.steps, &run.models[run.targets[cell]], &run.peaks),
        prediction,
        costs,
        summary,
        spec,
    })
}

/// Adjusts the p values of all comparisons for being made in one run. The control and the own plain cell may be one, and
/// what is compared with it is then judged once.
fn judge_together(arms: &mut [Arm]) {
    let mut judged: Vec<Vec<&mut Speedup>> = Vec::new();
    for arm in arms {
        let same = arm.vs_plain == arm.vs_control;
        let both = arm.vs_plain.iter_mut().chain(&mut arm.vs_control);
        if same { judged.push(both.collect()) } else { judged.extend(both.map(|speedup| vec![speedup])) }
    }
    judged.retain(|speedups| speedups.first().is_some_and(|speedup| speedup.decode.p.is_some()));
    let p: Vec<f64> = judged.iter().filter_map(|speedups| speedups[0].decode.p).collect();
    for (speedups, adjusted) in judged.into_iter().zip(holm(&p)) {
        speedups.into_iter().for_each(|speedup| speedup.adjusted_p = Some(adjusted));
    }
}

/// The worst of the rounds' conditions, or their mean for a share.
fn disturbance(rounds: &[Round]) -> Disturbance {
    let seen = || rounds.iter().map(|round| &round.conditions);
    let shares: Option<Vec<f64>> = seen().map(|conditions| conditions.steal_share).collect();
    let rates = || seen().filter_map(|conditions| conditions.mhz);
    let lowest = rates().map(|[low, ..]| low).reduce(f64::min);
    Disturbance {
        steal_share: shares.map(|shares| shares.iter().sum::<f64>() / rounds.len() as f64),
        throttled: seen().map(|conditions| conditions.throttled).sum(),
        major_faults: seen().map(|conditions| conditions.major_faults).sum(),
        mhz: lowest.zip(rates().map(|[.., high]| high).reduce(f64::max)).map(|(low, high)| [low, high]),
        load: seen().filter_map(|conditions| conditions.load).reduce(f64::max),
    }
}

fn trust(log: &Log, rates: &Rates, arms: &[Arm]) -> Result<Trust> {
    let repeat = rates.repeat(REPEAT_LEVEL)?;
    let noisy = repeat.and_then(|repeat| repeat.interval).is_some_and(|interval| !interval.contains(1.0));
    let ratios = arms.iter().flat_map(|arm| [&arm.vs_plain, &arm.vs_control]).flatten().map(|speedup| speedup.decode);
    let compared = ratios.chain(rates.repeat(LEVEL)?);
    let detectable = compared.filter_map(|ratio| ratio.detectable).reduce(f64::max);
    let digests: Vec<String> = log.rounds.iter().map(|round| digest(&log.run, round)).collect::<Result<_>>()?;
    let digest = digests.windows(2).all(|pair| pair[0] == pair[1]).then(|| digests[0].clone());
    Ok(Trust { repeat, noisy, detectable, digest })
}

/// A hash over all that a round did and that no clock decides.
fn digest(run: &Run, round: &Round) -> Result<String> {
    let exact = |(cell, arm): (&RunSpec, &ArmPass)| -> Result<Vec<u8>> {
        // How many rounds there are, and on how many threads they run, decides nothing of what comes out.
        let (rounds, budget) = (None, RunSpec::default());
        let RunSpec { precision, time_budget, threads, quality_chunks, .. } = budget;
        let cell = RunSpec { rounds, precision, time_budget, threads, quality_chunks, ..cell.clone() };
        Ok(serde_json::to_vec(&(&cell, &arm.digests, &arm.pass.acceptance))?)
    };
    let mut hash = Sha256::new();
    for cell in run.cells.iter().zip(&round.passes) {
        hash.update(exact(cell)?);
    }
    Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

/// The worst of a cell's checks; its first one if none is wrong.
fn verdict(rounds: &[Round], arms: &[usize]) -> Verdict {
    let checks =
        || rounds.iter().flat_map(|round| arms.iter().map(move |&arm| (round.number, round.passes[arm].check)));
    let wrong = checks().find_map(|(round, check)| match check {
        Check::Differs { request, token } => Some(Verdict::Differs { round, request, token }),
        _ => None,
    });
    wrong.unwrap_or(match checks().next() {
        Some((_, Check::SameBits)) => Verdict::SameBits,
        Some((_, Check::Sampled)) => Verdict::Sampled,
        _ => Verdict::Reference,
    })
}

impl Costs {
    fn of(plain: &Summary, arm: &Summary) -> Option<Costs> {
        let rates = &arm.acceptance;
        let one: StepMeans = plain.steps.decode.per_sequence()?;
        let drafting: StepMeans = arm.steps.drafting.per_sequence()?;
        let mean_draft = rates.drafted as f64 / rates.drafting_steps as f64;
        Some(Costs {
            draft_token: drafting.draft_ns / mean_draft / one.target_ns,
            verify: drafting.target_ns / one.target_ns,
            mean_draft,
            step: drafting.total_ns / one.total_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::Line;
    use crate::sample::log;

    fn close(got: f64, expected: f64) {
        assert!((got / expected - 1.0).abs() < 1e-3, "{got} instead of {expected}");
    }

    #[test]
    fn ratios_and_costs_are_those_of_the_rounds() {
        let record = Record::derive(&log(3, 15)).unwrap();
        let [plain, drafting, wide] = &record.arms[..] else { panic!("{record:?}") };
        // A plain step yields one token in 10 ms, a drafting step three in 15 ms.
        let speedup = drafting.vs_plain.as_ref().unwrap();
        close(speedup.decode.ratio, 2.0);
        assert_eq!(speedup.decode.n, 3);
        // Thirteen tokens in 50 + 120 ms against 50 + 60 ms.
        close(speedup.end_to_end.ratio, 170.0 / 110.0);
        close(drafting.vs_control.as_ref().unwrap().decode.ratio, 2.0);
        close(wide.vs_control.as_ref().unwrap().decode.ratio, 0.5);
        assert!(
            plain.vs_plain.is_none() && plain.vs_control.is_none() && plain.costs.is_none() && wide.vs_plain.is_none()
        );
        let costs = drafting.costs.unwrap();
        // One draft token takes 1 ms; a plain target forward 9.9 ms, a verifying one 10.9 ms.
        close(costs.draft_token, 1.0 / 9.9);
        close(costs.verify, 10.9 / 9.9);
        close(costs.step, 1.5);
        let prediction = drafting.prediction.unwrap();
        close(prediction.speedup, 2.0);
        close(prediction.measured, 2.0);
        assert!(prediction.residual.total().abs() < 1e-3, "{prediction:?}");
        // Target 30 ms, draft 10 ms and a median of 50 ms.
        close(drafting.cold_ttft_ms.unwrap(), 90.0);
        close(wide.cold_ttft_ms.unwrap(), 90.0);
        assert!(drafting.goodput.is_none() && drafting.cost.is_none());
        close(drafting.summary.acceptance.tau, 3.0);
    }

    #[test]
    fn limits_and_prices_of_the_spec_become_goodput_and_cost() {
        let mut log = log(2, 15);
        for cell in &mut log.run.cells {
            (cell.slo, cell.price) = (Some("ttft:60,e2e:150".parse().unwrap()), Some(3.6));
        }
        let record = Record::derive(&log).unwrap();
        // The plain cell takes 50 + 12 x 10 ms, the drafting one 50 + 4 x 15 ms.
        let met = |arm: &Arm| arm.goodput.unwrap().met;
        assert_eq!(record.arms.iter().map(met).collect::<Vec<_>>(), [0, 2, 0]);
        close(record.arms[1].goodput.unwrap().requests_s.unwrap(), 1.0 / 0.110);
        close(record.arms[1].cost.unwrap().per_1k_tokens, 0.001 * 0.110 / 13.0 * 1000.0);
    }

    #[test]
    fn comparisons_are_judged_together_and_each_once() {
        let record = Record::derive(&log(3, 15)).unwrap();
        let [_, drafting, wide] = &record.arms[..] else { panic!("{record:?}") };
        let (plain, control) = (drafting.vs_plain.as_ref().unwrap(), drafting.vs_control.as_ref().unwrap());
        let wide = wide.vs_control.as_ref().unwrap();
        // Two comparisons, since draft:4 has the control as its plain cell: the clearer one's p counts double.
        let p = [control.decode.p.unwrap(), wide.decode.p.unwrap()];
        let expected =
            if p[0] < p[1] { [2.0 * p[0], p[1].max(2.0 * p[0])] } else { [p[0].max(2.0 * p[1]), 2.0 * p[1]] };
        assert_eq!([plain.adjusted_p, wide.adjusted_p], expected.map(Some));
        assert_eq!(control.adjusted_p, plain.adjusted_p);
    }

    #[test]
    fn the_first_wrong_round_is_the_verdict() {
        let mut log = log(3, 15);
        let verdicts = |log: &Log| {
            let record = Record::derive(log).unwrap();
            (record.has_wrong_output(), record.arms.iter().map(|arm| arm.verdict).collect::<Vec<_>>())
        };
        let right = [Verdict::Reference, Verdict::SameBits, Verdict::Reference];
        assert_eq!(verdicts(&log), (false, right.to_vec()));
        log.rounds[1].passes[1].check = Check::Differs { request: 4, token: 9 };
        log.rounds[2].passes[1].check = Check::Differs { request: 0, token: 0 };
        let wrong = [Verdict::Reference, Verdict::Differs { round: 2, request: 4, token: 9 }, Verdict::Reference];
        assert_eq!(verdicts(&log), (true, wrong.to_vec()));
    }

    #[test]
    fn a_control_that_is_slower_the_second_time_makes_the_run_noisy() {
        let mut log = log(4, 15);
        assert!(!Record::derive(&log).unwrap().trust.noisy);
        for round in &mut log.rounds {
            round.passes[3].pass.steps.decode.times.other += 5_000_000 + 1000 * round.number as u64;
        }
        let trust = Record::derive(&log).unwrap().trust;
        close(trust.repeat.unwrap().ratio, 120.0 / 125.0);
        assert!(trust.noisy);
    }

    #[test]
    fn the_digest_is_of_what_came_out_alone() {
        let digest = |log: &Log| Record::derive(log).unwrap().trust.digest;
        let (one, mut other) = (log(1, 15), log(3, 40));
        assert!(one.rounds.len() != other.rounds.len() && digest(&one).is_some());
        assert_eq!(digest(&one), digest(&other), "neither times nor rounds enter");
        other.rounds[1].passes[1].digests[0].digest = "f".into();
        assert_eq!(digest(&other), None, "rounds differ");
        let mut another = log(1, 15);
        another.rounds[0].passes[2].digests[0].tokens += 1;
        assert_ne!(digest(&one), digest(&another));
    }

    #[test]
    fn every_line_survives_its_json() {
        let log = log(2, 15);
        let ends = [Line::Run(Box::new(log.run)), Line::Resumed("now".into()), Line::Ended(Ended::Precise)];
        for line in log.rounds.into_iter().map(Box::new).map(Line::Round).chain(ends) {
            let text = serde_json::to_string(&line).unwrap();
            assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
        }
    }
}

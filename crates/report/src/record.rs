//! A run's record: what was asked, on what machine, and what each arm achieved, with its verdict of correctness.
//!
//! Derived from rounds by a pure function, so a stored run can be summarized again.

use anyhow::{Context, Result};
use serde::Serialize;
use specquant_core::{ModelInfo, RunSpec, Speculation, WeightFormat};
use specquant_machine::Machine;
use specquant_metrics::{Paired, Pass, StepMeans, Summary, paired, predicted_speedup};

use crate::round::{Check, Round};

/// Version of the record's form; a change that readers must know of counts it up.
pub const SCHEMA: u32 = 1;

/// The confidence level of every interval.
const LEVEL: f64 = 0.95;

/// What is known of a run before its first round.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Run {
    /// Version of the program.
    pub version: String,
    /// When it began, UTC.
    pub began: String,
    /// Where it ran.
    pub machine: Machine,
    /// What computed, such as `cpu avx2, 2 threads`.
    pub device: String,
    /// The target models, then the draft models.
    pub models: Vec<ModelInfo>,
    /// Prompts in each pass.
    pub prompts: usize,
    /// Mean tokens of a prompt.
    pub prompt_tokens: f64,
    /// The cells, in the order of the arms.
    pub cells: Vec<RunSpec>,
    /// For each cell its target's place in `models`.
    pub targets: Vec<usize>,
    /// For each cell its draft model's place in `models`, if it has one.
    pub drafts: Vec<Option<usize>>,
}

/// A run and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Record {
    /// Version of this form.
    pub schema: u32,
    /// What was run.
    #[serde(flatten)]
    pub run: Run,
    /// Rounds that ended.
    pub rounds: usize,
    /// Whether the run was interrupted before its last round.
    pub interrupted: bool,
    /// One for each cell.
    pub arms: Vec<Arm>,
}

/// What one cell achieved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Arm {
    /// The cell.
    pub spec: RunSpec,
    /// Whether its output was right.
    pub verdict: Verdict,
    /// All its metrics over all rounds.
    pub summary: Summary,
    /// Against the same cell without speculation; `None` for that cell itself.
    pub vs_plain: Option<Speedup>,
    /// Against plain f16 decoding of the same target; `None` where the run has no such cell, or this is it.
    pub vs_f16: Option<Speedup>,
    /// What its steps cost; `None` where it drafted nothing.
    pub costs: Option<Costs>,
}

/// Ratios to another arm, paired by round; above 1 this arm is faster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Speedup {
    /// Ratio of decode rates, `decode_tok_s`.
    pub decode: Paired,
    /// Ratio of output rates over wall time, `output_tok_s`, prefill included.
    pub end_to_end: Paired,
}

/// Costs of a speculative arm's steps in units of its control's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Costs {
    /// c: time of one draft token / time of a plain step's target forward.
    pub draft_token: f64,
    /// T(k+1) / T(1): time of a verifying target forward / time of a plain step's.
    pub verify: f64,
    /// Mean draft tokens in a drafting step.
    pub mean_draft: f64,
    /// Whole drafting step / whole plain step. Speculation pays where tau is above this.
    pub step: f64,
    /// tau / `step`: the speed-up that step costs and acceptance predict.
    pub predicted: Option<f64>,
}

/// The worst check of all rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The reference of other arms, equal to itself in every round.
    Reference,
    /// Equal to its control to the bit.
    SameBits,
    /// Sampled, and the same in every round.
    Sampled,
    /// Wrong output, first in this round.
    Differs {
        /// The first round that differs.
        round: usize,
        /// The first request that differs.
        request: u64,
        /// Its first token that differs.
        token: usize,
    },
}

impl Record {
    /// Derives the record from the rounds that ended, at least one.
    pub fn derive(run: &Run, rounds: &[Round], interrupted: bool) -> Result<Record> {
        let passes: Vec<Vec<Pass>> = (0..run.cells.len())
            .map(|arm| rounds.iter().map(|round| round.passes[arm].pass.clone()).collect())
            .collect();
        let arms = (0..run.cells.len()).map(|arm| derive_arm(run, rounds, &passes, arm)).collect::<Result<_>>()?;
        Ok(Record { schema: SCHEMA, run: run.clone(), rounds: rounds.len(), interrupted, arms })
    }

    /// Whether any arm's output was wrong.
    pub fn has_wrong_output(&self) -> bool {
        self.arms.iter().any(|arm| matches!(arm.verdict, Verdict::Differs { .. }))
    }
}

fn derive_arm(run: &Run, rounds: &[Round], passes: &[Vec<Pass>], arm: usize) -> Result<Arm> {
    let spec = run.cells[arm].clone();
    let other = |cell: RunSpec| run.cells.iter().position(|known| *known == cell).filter(|&at| at != arm);
    let plain = other(spec.plain());
    let f16 = other(RunSpec { weights: WeightFormat::F16, ..spec.plain() });
    // An arm that was to draft and never did ran plain: its ratio says nothing of speculation.
    let ran = spec.speculation == Speculation::Off || passes[arm].iter().any(|pass| pass.acceptance.drafted() > 0);
    let speedup = |at: usize| speedup(&passes[arm], &passes[at]).with_context(|| label(&spec));
    let summary = Summary::of(&passes[arm]);
    let costs = plain.and_then(|at| Costs::of(&Summary::of(&passes[at]), &summary));
    Ok(Arm {
        verdict: verdict(rounds, arm),
        vs_plain: plain.filter(|_| ran).map(speedup).transpose()?.flatten(),
        vs_f16: f16.filter(|_| ran).map(speedup).transpose()?.flatten(),
        costs,
        summary,
        spec,
    })
}

/// `None` where a round has no rate to compare, because nothing was decoded.
fn speedup(arm: &[Pass], control: &[Pass]) -> Result<Option<Speedup>> {
    let rates = |passes: &[Pass], rate: fn(&Summary) -> Option<f64>| -> Option<Vec<f64>> {
        passes.iter().map(|pass| rate(&Summary::of(std::slice::from_ref(pass)))).collect()
    };
    let ratio = |rate| match (rates(arm, rate), rates(control, rate)) {
        (Some(arm), Some(control)) => paired(&arm, &control, LEVEL).map(Some),
        _ => Ok(None),
    };
    let decode = ratio(|summary| summary.phases.decode_tok_s)?;
    let end_to_end = ratio(|summary| summary.throughput.output_tok_s)?;
    Ok(decode.zip(end_to_end).map(|(decode, end_to_end)| Speedup { decode, end_to_end }))
}

fn verdict(rounds: &[Round], arm: usize) -> Verdict {
    let mut verdict = Verdict::Reference;
    for round in rounds {
        match round.passes[arm].check {
            Check::Differs { request, token } => return Verdict::Differs { round: round.number, request, token },
            Check::Sampled => verdict = Verdict::Sampled,
            Check::SameBits if round.number == 1 => verdict = Verdict::SameBits,
            Check::SameBits | Check::Reference => {}
        }
    }
    verdict
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
            predicted: predicted_speedup(&plain.steps, &arm.steps, rates.tau),
        })
    }
}

/// How an arm is called in messages.
pub(crate) fn label(spec: &RunSpec) -> String {
    match spec.speculation {
        Speculation::Off => spec.weights.to_string(),
        speculation => format!("{} {speculation}", spec.weights),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::{rounds, run};

    fn close(got: f64, expected: f64) {
        assert!((got / expected - 1.0).abs() < 1e-3, "{got} instead of {expected}");
    }

    #[test]
    fn ratios_and_costs_are_those_of_the_rounds() {
        let record = Record::derive(&run(), &rounds(3, 15), false).unwrap();
        let [plain, drafting, wide] = &record.arms[..] else { panic!("{record:?}") };
        // A plain step yields one token in 10 ms, a drafting step three in 15 ms.
        let speedup = drafting.vs_plain.as_ref().unwrap();
        close(speedup.decode.ratio, 2.0);
        assert_eq!(speedup.decode.n, 3);
        // Thirteen tokens in 50 + 120 ms against 50 + 60 ms.
        close(speedup.end_to_end.ratio, 170.0 / 110.0);
        close(drafting.vs_f16.as_ref().unwrap().decode.ratio, 2.0);
        close(wide.vs_f16.as_ref().unwrap().decode.ratio, 0.5);
        assert!(plain.vs_plain.is_none() && plain.vs_f16.is_none() && plain.costs.is_none() && wide.vs_plain.is_none());
        let costs = drafting.costs.unwrap();
        // One draft token takes 1 ms; a plain target forward 9.9 ms, a verifying one 10.9 ms.
        close(costs.draft_token, 1.0 / 9.9);
        close(costs.verify, 10.9 / 9.9);
        close(costs.step, 1.5);
        close(costs.predicted.unwrap(), 2.0);
        close(drafting.summary.acceptance.tau, 3.0);
    }

    #[test]
    fn the_first_wrong_round_is_the_verdict() {
        let mut rounds = rounds(3, 15);
        let verdicts = |rounds: &[Round]| {
            let record = Record::derive(&run(), rounds, false).unwrap();
            (record.has_wrong_output(), record.arms.iter().map(|arm| arm.verdict).collect::<Vec<_>>())
        };
        let right = [Verdict::Reference, Verdict::SameBits, Verdict::Reference];
        assert_eq!(verdicts(&rounds), (false, right.to_vec()));
        rounds[1].passes[1].check = Check::Differs { request: 4, token: 9 };
        rounds[2].passes[1].check = Check::Differs { request: 0, token: 0 };
        let wrong = [Verdict::Reference, Verdict::Differs { round: 2, request: 4, token: 9 }, Verdict::Reference];
        assert_eq!(verdicts(&rounds), (true, wrong.to_vec()));
    }

    #[test]
    fn a_round_survives_its_line_of_json() {
        for round in rounds(2, 15) {
            let line = serde_json::to_string(&round).unwrap();
            assert_eq!(serde_json::from_str::<Round>(&line).unwrap(), round);
        }
    }
}

//! Rounds until the intervals are narrow enough, or as many as were asked for, or as time allows.
//!
//! Whether a ratio differs from 1 never decides when to stop: only how well it is known does.

use std::time::Duration;

use anyhow::Result;
use specquant_core::{Clock, RunSpec};
use specquant_report::{ArmPass, Check, Digest, Ended, Log, Round, intervals};

use super::bench::Pass;
use super::check::check;
use super::plan::Plan;

/// Rounds below which an interval is too uncertain itself to end a run.
const FEWEST: usize = 10;

/// What makes rounds.
pub(crate) struct Session<'a> {
    /// The cells. The last arm runs one of them again.
    pub(crate) cells: &'a [RunSpec],
    /// Who runs when.
    pub(crate) plan: Plan,
    /// Measures how long rounds take.
    pub(crate) clock: &'a dyn Clock,
    /// Runs a part of an arm's requests; `None` if the user interrupted.
    pub(crate) pass: &'a mut dyn FnMut(usize, usize) -> Result<Option<Pass>>,
}

impl Session<'_> {
    /// Adds rounds to `log` and gives each to `keep` as soon as it has ended. Returns why there are no more.
    pub(crate) fn run(&mut self, log: &mut Log, keep: &mut dyn FnMut(&Log) -> Result<()>) -> Result<Ended> {
        let began = self.clock.now();
        let (mut first, mut longest) = (None, 0);
        loop {
            let now = self.clock.now();
            if let Some(ended) = self.ended(log, now - began + longest)? {
                return Ok(ended);
            }
            let number = log.rounds.len() + 1;
            let Some((order, passes)) = self.round(number)? else { return Ok(Ended::Interrupted) };
            longest = longest.max(self.clock.now() - now);
            let arms = 0..self.plan.arms;
            let checks: Vec<Check> = arms.map(|arm| check(self.cells, arm, &passes, first.as_deref())).collect();
            let passes_of_arms = passes.iter().zip(checks).map(arm_pass).collect();
            log.rounds.push(Round { number, order, passes: passes_of_arms });
            first.get_or_insert(passes);
            keep(log)?;
        }
    }

    /// Why no further round is made, which would end `elapsed` nanoseconds after the first began.
    fn ended(&self, log: &Log, elapsed: u64) -> Result<Option<Ended>> {
        let (spec, made) = (&self.cells[0], log.rounds.len());
        if spec.rounds.is_some_and(|rounds| made >= rounds) {
            return Ok(Some(Ended::Rounds));
        }
        if spec.rounds.is_none() && made >= FEWEST {
            let wide = |interval: &specquant_metrics::Interval| interval.resolution() > spec.precision;
            if !intervals(log)?.iter().any(wide) {
                return Ok(Some(Ended::Precise));
            }
        }
        let late = spec.time_limit().is_some_and(|limit| Duration::from_nanos(elapsed) > limit);
        // A single round has no interval, so there are two whatever the limit.
        Ok((late && made >= 2).then_some(Ended::TimeBudget))
    }

    /// One pass of every arm, with the orders in which parts ran. `None` if the user interrupted.
    fn round(&mut self, number: usize) -> Result<Option<(Vec<Vec<usize>>, Vec<Pass>)>> {
        let mut passes: Vec<Pass> = (0..self.plan.arms).map(|_| Pass::default()).collect();
        let orders: Vec<Vec<usize>> = (0..self.plan.parts).map(|part| self.plan.order(number, part)).collect();
        for (part, order) in orders.iter().enumerate() {
            for &arm in order {
                let Some(pass) = (self.pass)(arm, part)? else { return Ok(None) };
                passes[arm].merge(pass);
            }
        }
        Ok(Some((orders, passes)))
    }
}

fn arm_pass((pass, check): (&Pass, Check)) -> ArmPass {
    let digest = |output: &specquant_engine::Output| Digest {
        request: output.request,
        tokens: output.tokens.len(),
        digest: format!("{:016x}", output.digest),
    };
    ArmPass { pass: pass.measured.clone(), digests: pass.outputs.iter().map(digest).collect(), check }
}

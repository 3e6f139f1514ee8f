//! Rounds until the intervals are narrow enough, or as many as were asked for, or as time allows.
//!
//! Whether a ratio differs from 1 never decides when to stop: only how well it is known does.

use std::time::Duration;

use anyhow::Result;
use specquant_core::{Clock, RunSpec};
use specquant_machine::Moment;
use specquant_report::{ArmPass, Check, Digest, Ended, Log, Round, intervals};

use super::bench::Pass;
use super::check::check;
use super::plan::Plan;

/// Rounds below which an interval is too uncertain itself to end a run.
const FEWEST: usize = 10;

/// For each part of a round the arms in the order in which they ran.
type Orders = Vec<Vec<usize>>;

/// What makes rounds.
pub(crate) struct Session<'a> {
    /// The cells. The last arm runs one of them again.
    pub(crate) cells: &'a [RunSpec],
    /// Who runs when.
    pub(crate) plan: Plan,
    /// Measures how long rounds take.
    pub(crate) clock: &'a dyn Clock,
    /// Nanoseconds of the time budget that are gone before the first round.
    pub(crate) spent: u64,
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
            if let Some(ended) = self.ended(log, self.spent + now - began + longest)? {
                return Ok(ended);
            }
            let number = log.rounds.len() + 1;
            let before = Moment::now();
            let Some((order, passes)) = self.round(number)? else { return Ok(Ended::Interrupted) };
            longest = longest.max(self.clock.now() - now);
            let arms = 0..self.plan.arms;
            let checks: Vec<Check> = arms.map(|arm| check(self.cells, arm, &passes, first.as_deref())).collect();
            let passes_of_arms = passes.iter().zip(checks).map(arm_pass).collect();
            log.rounds.push(Round { number, order, conditions: Moment::now().since(&before), passes: passes_of_arms });
            first.get_or_insert(passes);
            keep(log)?;
        }
    }

    /// Why no further round is made, with which `elapsed` nanoseconds of the time budget would be gone.
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
    fn round(&mut self, number: usize) -> Result<Option<(Orders, Vec<Pass>)>> {
        let mut passes: Vec<Pass> = (0..self.plan.arms).map(|_| Pass::default()).collect();
        let orders: Orders = (0..self.plan.parts).map(|part| self.plan.order(number, part)).collect();
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

#[cfg(test)]
mod tests {
    use specquant_core::{
        Event, EventKind, KvDtype, KvUsage, Memory, ModelInfo, PhaseTimes, Reach, Reason, Rng, Rows, TextSize, Use,
        WeightFormat, Work,
    };
    use specquant_engine::{Output, Virtual};
    use specquant_metrics::Peaks;
    use specquant_report::{Record, Run, SCHEMA};

    use super::*;

    /// Nanoseconds of an undisturbed decode step of each cell, in 64 of which a part's only request gets its tokens.
    struct Machine<'a> {
        clock: &'a Virtual,
        steps: &'a [f64],
        /// Standard deviation of the logarithm of a part's time.
        noise: f64,
        served: usize,
    }

    impl Machine<'_> {
        fn pass(&mut self, cell: usize, part: usize) -> Pass {
            let rng = Rng { seed: 5, request: self.served as u64 };
            self.served += 1;
            // Box and Muller's normal variable.
            let (radius, angle) = (1.0 - rng.uniform(0, Use::Draft), rng.uniform(0, Use::Accept));
            let normal = (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos();
            let ns = (self.steps[cell] * (self.noise * normal).exp()) as u64;
            let request = part as u64;
            let event = |at, kind| Event { at, kind };
            let mut events = vec![
                event(0, EventKind::Arrived { request, prompt: 9 }),
                event(0, EventKind::Admitted { request, cached: 0 }),
            ];
            for step in 1..=64 {
                let tokens = EventKind::Tokens { request, n: 1, drafted: 0, accepted: 0, rejected: false };
                let rows = Rows { decode: 1, ..Rows::default() };
                events.push(event(step * ns, tokens));
                let times = PhaseTimes { target: ns, ..PhaseTimes::default() };
                events.push(event(
                    step * ns,
                    EventKind::Step {
                        rows,
                        reach: Reach::default(),
                        times,
                        kv: KvUsage::default(),
                        draft_kv: KvUsage::default(),
                    },
                ));
            }
            let (reason, text) = (Reason::Length, TextSize::default());
            events.push(event(64 * ns, EventKind::Finished { request, reason, tokens: 64, text }));
            self.clock.advance(64 * ns);
            let output =
                Output { request, tokens: vec![1; 64], text: String::new(), reason: Reason::Length, digest: 1 };
            Pass { measured: specquant_metrics::Pass::of(&events), outputs: vec![output] }
        }
    }

    fn model() -> ModelInfo {
        ModelInfo {
            name: "model".into(),
            parameters: 1,
            vocab: 2,
            context: 99,
            layers: 1,
            hidden: 1,
            eos: vec![0],
            weights: WeightFormat::F16,
            kv_dtype: KvDtype::F16,
            kv_slots: 99,
            device: String::new(),
            memory: Memory::default(),
            work: Work::default(),
        }
    }

    /// Cells that differ in their prompt chunk, of which machines of this kind run 10 parts a round.
    fn session(spec: &RunSpec, steps: &[f64], noise: f64) -> (Log, Ended) {
        let cells: Vec<RunSpec> = (1..=steps.len()).map(|chunk| RunSpec { chunk, ..spec.clone() }).collect();
        let plan = Plan { arms: steps.len() + 1, parts: 10, seed: spec.seed };
        let clock = Virtual::default();
        let mut machine = Machine { clock: &clock, steps, noise, served: 0 };
        let run = Run {
            schema: SCHEMA,
            build: crate::build::build(),
            notes: Vec::new(),
            files: Vec::new(),
            began: String::new(),
            machine: specquant_machine::Machine::read(),
            device: String::new(),
            models: vec![model()],
            prompts: 10,
            prompt_tokens: 9.0,
            parts: 10,
            load_ns: vec![0],
            row_costs: vec![None; cells.len()],
            quality: vec![None; cells.len()],
            peaks: Peaks { read_bytes_s: 1e9, flops_s: 1e9 },
            warm_up: vec![3; cells.len()],
            targets: vec![0; cells.len()],
            drafts: vec![None; cells.len()],
            cells: cells.clone(),
        };
        let mut log = Log { run, rounds: Vec::new(), resumed: Vec::new(), ended: None, invalid: Vec::new() };
        let mut pass = |arm: usize, part| Ok(Some(machine.pass(arm % steps.len(), part)));
        let mut kept = 0;
        let mut keep = |log: &Log| {
            kept += 1;
            assert_eq!(log.rounds.len(), kept, "every round is kept as it ends");
            Ok(())
        };
        let mut session = Session { cells: &cells, plan, clock: &clock, spent: SPENT, pass: &mut pass };
        let ended = session.run(&mut log, &mut keep).unwrap();
        (log, ended)
    }

    /// What warming up took.
    const SPENT: u64 = 300_000_000;

    /// Rounds made and why they ended.
    fn check(spec: &RunSpec, noise: f64, expected: (usize, Ended)) {
        let (log, ended) = session(spec, &[1e6, 1e6], noise);
        assert_eq!((log.rounds.len(), ended), expected, "{spec:?}");
    }

    #[test]
    fn rounds_end_by_number_precision_or_time() {
        let budget = |seconds| Some(Duration::from_millis((1000.0 * seconds) as u64));
        let spec = RunSpec::default();
        // A round of three arms takes 3 x 10 x 64 ms = 1.92 s, and 0.3 s were gone before the first.
        check(&RunSpec { rounds: Some(3), ..spec.clone() }, 0.05, (3, Ended::Rounds));
        check(&RunSpec { rounds: Some(3), time_budget: budget(4.0), ..spec.clone() }, 0.0, (2, Ended::TimeBudget));
        check(&RunSpec { time_budget: budget(10.0), ..spec.clone() }, 0.0, (5, Ended::TimeBudget));
        check(&RunSpec { time_budget: budget(9.8), ..spec.clone() }, 0.0, (4, Ended::TimeBudget));
        check(&RunSpec { time_budget: budget(0.1), ..spec.clone() }, 0.0, (2, Ended::TimeBudget));
        // Without noise every interval is a point, and the fewest rounds are enough.
        check(&RunSpec { time_budget: budget(1000.0), ..spec.clone() }, 0.0, (FEWEST, Ended::Precise));
        check(&spec, 0.0, (FEWEST, Ended::Precise));
    }

    #[test]
    fn a_wide_interval_goes_on_and_where_it_lies_does_not_matter() {
        let spec = RunSpec { time_budget: Some(Duration::from_secs(3600)), ..RunSpec::default() };
        let rounds = |steps: &[f64]| session(&spec, steps, 0.06);
        let (same, ended) = rounds(&[1e6, 1e6]);
        assert_eq!(ended, Ended::Precise);
        assert!(same.rounds.len() > FEWEST, "{}", same.rounds.len());
        let (faster, _) = rounds(&[1e6, 2e6]);
        assert!(
            faster.rounds.len().abs_diff(same.rounds.len()) <= 1,
            "the noise is the same, so is the number of rounds"
        );
        let speedup = |log: &Log| Record::derive(log).unwrap().arms[1].vs_control.clone().unwrap().decode;
        assert!(speedup(&same).interval.unwrap().contains(1.0) && speedup(&faster).interval.unwrap().contains(0.5));
    }
}

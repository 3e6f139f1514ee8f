//! What speculation ought to gain here, from costs that were measured apart from it, and where the rest went.
//!
//! Everything is in units of the control's decode step, so a run in a slower hour predicts the same. A step that verifies j
//! draft tokens ought to cost T(j+1) / T(1) target forwards, j draft forwards, and what a plain step spends outside the
//! forward.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::acceptance::Acceptance;
use crate::steps::{StepCost, StepCosts};

/// T(n): what a target forward costs by the number of rows that it runs for each sequence.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct RowCosts {
    /// Sequences in each of the forwards.
    pub sequences: usize,
    /// Tokens in the cache of each before the new rows.
    pub context: usize,
    /// Median nanoseconds of a target forward of 1, 2, 3 and so on rows for each sequence: of one after another such, of n
    /// after n - 1 draft forwards.
    pub target_ns: Vec<f64>,
    /// Median nanoseconds of those draft forwards, of one row for each sequence.
    pub draft_ns: Option<f64>,
}

/// Parts of a cost per token, in control steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct PhaseCosts {
    /// Proposing draft tokens.
    pub draft: f64,
    /// The target's forward.
    pub target: f64,
    /// Making distributions.
    pub sample: f64,
    /// Deciding which draft tokens stand.
    pub verify: f64,
    /// Giving back slots and catching up the caches.
    pub keep: f64,
    /// Everything else.
    pub other: f64,
}

/// Predicted against measured speed-up of decoding.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Prediction {
    /// Predicted from T(n), the draft's cost and the acceptance counts.
    pub speedup: f64,
    /// Ratio of decode rates over all rounds, sums over sums.
    pub measured: f64,
    /// Predicted cost of a token by phase; sums to 1 / `speedup`.
    pub cost: PhaseCosts,
    /// Measured - predicted cost of a token by phase; sums to 1 / `measured` - 1 / `speedup`.
    pub residual: PhaseCosts,
}

impl RowCosts {
    /// T(n) / T(1); beyond the table along the line through its last two values. `None` for an empty table.
    pub fn relative(&self, n: usize) -> Option<f64> {
        let one = *self.target_ns.first()?;
        let value = match (self.target_ns.get(n.checked_sub(1)?), &self.target_ns[..]) {
            (Some(value), _) => *value,
            (None, [.., before, last]) => last + (last - before) * (n - self.target_ns.len()) as f64,
            (None, _) => return None,
        };
        Some(value / one)
    }

    /// c: a draft forward of one row / T(1).
    pub fn draft_relative(&self) -> Option<f64> {
        Some(self.draft_ns? / self.target_ns.first()?)
    }
}

impl PhaseCosts {
    /// Measured costs of a token, of which `tokens` came out of `steps`, in units of `unit_ns`.
    fn measured(steps: &StepCost, tokens: u64, unit_ns: f64) -> PhaseCosts {
        let cost = |ns: u64| ns as f64 / tokens as f64 / unit_ns;
        let times = &steps.times;
        PhaseCosts {
            draft: cost(times.draft + times.draft_prefill),
            target: cost(times.target),
            sample: cost(times.sample),
            verify: cost(times.verify),
            keep: cost(times.keep),
            other: cost(times.other),
        }
    }

    /// All of it.
    pub fn total(&self) -> f64 {
        self.draft + self.target + self.sample + self.verify + self.keep + self.other
    }

    fn minus(&self, other: &PhaseCosts) -> PhaseCosts {
        PhaseCosts {
            draft: self.draft - other.draft,
            target: self.target - other.target,
            sample: self.sample - other.sample,
            verify: self.verify - other.verify,
            keep: self.keep - other.keep,
            other: self.other - other.other,
        }
    }
}

impl Prediction {
    /// The prediction for an arm with these steps and this acceptance, whose control has those steps. `None` where either
    /// decoded nothing, nothing was drafted, or a cost is unknown.
    pub fn of(control: &StepCosts, arm: &StepCosts, acceptance: &Acceptance, costs: &RowCosts) -> Option<Prediction> {
        let (control, arm) = (&control.decode, &arm.decode);
        if control.tokens == 0 || arm.tokens == 0 || acceptance.by_length.is_empty() {
            return None;
        }
        let unit_ns = control.time_ns() as f64 / control.tokens as f64;
        let plain = PhaseCosts::measured(control, control.tokens, unit_ns);
        // Counts by length are those of all steps; mixed steps verify drafts as well, and have no part in this.
        let share = decode_share(arm, acceptance)?;
        let drafting_steps = share * acceptance.drafting_steps() as f64;
        let undrafted = (arm.rows.decode as f64 - drafting_steps).max(0.0);
        let (mut forwards, mut drafted) = (undrafted, 0.0);
        for each in &acceptance.by_length {
            let drafting = share * each.steps() as f64;
            forwards += drafting * costs.relative(each.length + 1)?;
            drafted += drafting * each.length as f64;
        }
        let tokens = arm.tokens as f64;
        let steps = (undrafted + drafting_steps) / tokens;
        let cost = PhaseCosts {
            draft: drafted * costs.draft_relative()? * plain.target / tokens,
            target: forwards * plain.target / tokens,
            sample: steps * plain.sample,
            verify: steps * plain.verify,
            keep: steps * plain.keep,
            other: steps * (plain.other + plain.draft),
        };
        let measured = PhaseCosts::measured(arm, arm.tokens, unit_ns);
        Some(Prediction {
            speedup: 1.0 / cost.total(),
            measured: 1.0 / measured.total(),
            cost,
            residual: measured.minus(&cost),
        })
    }
}

/// The share of all verified draft tokens that decode steps verified; `None` where nothing was drafted. Unlike what drafts
/// yield it is known whatever became of them, and beside prompts drafts may fare better or worse.
fn decode_share(arm: &StepCost, acceptance: &Acceptance) -> Option<f64> {
    let drafted = acceptance.drafted();
    (drafted > 0).then(|| (arm.rows.verify as f64 / drafted as f64).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::*;
    use specquant_core::{Event, PhaseTimes};

    fn near(what: &str, got: f64, expected: f64) {
        assert!((got - expected).abs() <= 1e-12 * expected.abs().max(1.0), "{what}: {got} instead of {expected}");
    }

    fn costs() -> RowCosts {
        RowCosts { sequences: 1, context: 9, target_ns: vec![80.0, 88.0, 96.0, 120.0], draft_ns: Some(8.0) }
    }

    #[test]
    fn costs_of_rows_are_relative_to_one_and_go_on_in_a_line() {
        for (n, expected) in [(1, 1.0), (2, 1.1), (4, 1.5), (5, 1.8), (7, 2.4)] {
            near("T(n)/T(1)", costs().relative(n).unwrap(), expected);
        }
        near("c", costs().draft_relative().unwrap(), 0.1);
        assert_eq!((costs().relative(0), RowCosts::default().relative(1)), (None, None));
        let single = RowCosts { target_ns: vec![3.0], ..RowCosts::default() };
        assert_eq!((single.relative(1), single.relative(2), single.draft_relative()), (Some(1.0), None, None));
    }

    /// Four plain steps of 100: 80 in the forward, 1 sampling, 2 verifying, 3 keeping, 14 else.
    fn control() -> StepCosts {
        let times = PhaseTimes { target: 80, sample: 1, verify: 2, keep: 3, other: 14, ..PhaseTimes::default() };
        StepCosts::of(&(1..=4).flat_map(|i| [token(100 * i, 0), step(100 * i, [0, 1, 0], times)]).collect::<Vec<_>>())
    }

    fn speculative(draft: u64, verifying: u64, keep: u64) -> Vec<Event> {
        // Two steps of three drafts that yield 3 and 1 tokens, one plain one.
        let times =
            PhaseTimes { draft, target: verifying, sample: 1, verify: 2, keep, other: 14, ..PhaseTimes::default() };
        let plain = PhaseTimes { target: 80, sample: 1, verify: 2, keep: 3, other: 14, ..PhaseTimes::default() };
        vec![
            drafted(200, 0, 3, [3, 2], true),
            step(200, [0, 1, 3], times),
            drafted(400, 0, 1, [3, 0], true),
            step(400, [0, 1, 3], times),
            token(500, 0),
            step(500, [0, 1, 0], plain),
        ]
    }

    fn predict(events: &[Event]) -> Prediction {
        Prediction::of(&control(), &StepCosts::of(events), &Acceptance::of(events), &costs()).unwrap()
    }

    #[test]
    fn steps_that_cost_what_they_ought_to_leave_no_residual() {
        // T(4) is 1.5 forwards of 80, three draft tokens cost 3 x 0.1 x 80.
        let got = predict(&speculative(24, 120, 3));
        // Five tokens for 2 x (24 + 120 + 20) + 100 = 428.
        near("predicted", got.speedup, 500.0 / 428.0);
        near("measured", got.measured, 500.0 / 428.0);
        for part in
            [got.residual.draft, got.residual.target, got.residual.sample, got.residual.keep, got.residual.other]
        {
            near("residual", part, 0.0);
        }
        near("draft", got.cost.draft, 48.0 / 500.0);
        near("target", got.cost.target, 320.0 / 500.0);
    }

    /// Three drafting steps of three drafts beside a prompt, which yield so many tokens each.
    fn check_mixed(mut events: Vec<Event>, yielded: [usize; 3]) {
        let alone = predict(&events);
        for (at, n) in [600, 700, 800].into_iter().zip(yielded) {
            let times = PhaseTimes { draft: 24, target: 300, ..PhaseTimes::default() };
            events.extend([drafted(at, 1, n, [3, n - 1], n < 4), step(at, [40, 1, 3], times)]);
        }
        let mixed = predict(&events);
        near("predicted", mixed.speedup, alone.speedup);
        near("measured", mixed.measured, alone.measured);
    }

    #[test]
    fn drafts_in_mixed_steps_change_nothing() {
        let accepting = || speculative(24, 120, 3);
        // As the ones before did on average, none of them, all of them.
        for yielded in [[2, 2, 2], [1, 1, 1], [4, 4, 4]] {
            check_mixed(accepting(), yielded);
        }
        // A draft model whose tokens are always refused costs decode steps no more for being refused elsewhere too.
        let times = PhaseTimes { draft: 24, target: 120, ..PhaseTimes::default() };
        let refused = [200, 400].map(|at| [drafted(at, 0, 1, [3, 0], true), step(at, [0, 1, 3], times)]);
        let undrafted = [token(500, 0), step(500, [0, 1, 0], plain(80, 20))];
        let events: Vec<Event> = refused.into_iter().flatten().chain(undrafted).collect();
        for yielded in [[1, 1, 1], [4, 1, 1]] {
            check_mixed(events.clone(), yielded);
        }
    }

    #[test]
    fn the_residual_names_the_phase_that_cost_more() {
        let got = predict(&speculative(34, 100, 13));
        near("draft", got.residual.draft, 20.0 / 500.0);
        near("target", got.residual.target, -40.0 / 500.0);
        near("keep", got.residual.keep, 20.0 / 500.0);
        near("sum", got.residual.total(), 1.0 / got.measured - 1.0 / got.speedup);
        let none = Prediction::of(&control(), &control(), &Acceptance::default(), &costs());
        assert_eq!(none, None);
    }
}

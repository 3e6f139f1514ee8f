//! Where the time of steps went, separately for prefill and decode.
//!
//! A step counts as prefill or decode only if all its rows are of that kind, rows under verification being decode;
//! the time of any other step is mixed and is never apportioned.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use specquant_core::{Event, EventKind, PhaseTimes, Reach, Rows};

/// Steps of one kind, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct StepCost {
    /// How many steps.
    pub steps: u64,
    /// Rows that the target ran in them.
    pub rows: Rows,
    /// How far those rows reached.
    pub reach: Reach,
    /// Steps that scored at least one row.
    pub scoring: u64,
    /// Tokens output in them.
    pub tokens: u64,
    /// Nanoseconds spent in them, by phase.
    pub times: PhaseTimes,
}

/// All steps, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct StepCosts {
    /// Steps with prefill rows only.
    pub prefill: StepCost,
    /// Steps with decode and verify rows only.
    pub decode: StepCost,
    /// All other steps.
    pub mixed: StepCost,
    /// Those of the decode steps in which at least one draft token was verified.
    pub drafting: StepCost,
}

/// What all rows of a step have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Every row enters a prompt.
    Prefill,
    /// Every row is a newest token or a draft token.
    Decode,
    /// Rows of both kinds, or no row at all.
    Mixed,
}

/// Mean nanoseconds by phase; the phases are those of `PhaseTimes` and sum to the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepMeans {
    /// All phases together.
    pub total_ns: f64,
    /// The draft model entering prompts.
    pub draft_prefill_ns: f64,
    /// Proposing draft tokens.
    pub draft_ns: f64,
    /// The target's forward.
    pub target_ns: f64,
    /// Making distributions of the target's answers.
    pub sample_ns: f64,
    /// Deciding which draft tokens stand.
    pub verify_ns: f64,
    /// Giving back slots and catching up the caches.
    pub keep_ns: f64,
    /// Everything else.
    pub other_ns: f64,
}

impl StepKind {
    /// The kind of a step with these rows.
    pub fn of(rows: &Rows) -> StepKind {
        match (rows.prefill > 0, rows.decode + rows.verify > 0) {
            (true, false) => StepKind::Prefill,
            (false, true) => StepKind::Decode,
            (true, true) | (false, false) => StepKind::Mixed,
        }
    }
}

impl StepCost {
    /// Time spent in these steps.
    pub fn time_ns(&self) -> u64 {
        self.times.total()
    }

    /// Mean times of a step; `None` without steps.
    pub fn per_step(&self) -> Option<StepMeans> {
        self.means(self.steps)
    }

    /// Mean times of a step of one sequence: of a step, shared by the sequences that decoded in it. `None` if none did.
    pub fn per_sequence(&self) -> Option<StepMeans> {
        self.means(self.rows.decode as u64)
    }

    /// Adds the steps of another round.
    pub fn merge(&mut self, other: &StepCost) {
        self.steps += other.steps;
        self.tokens += other.tokens;
        self.scoring += other.scoring;
        self.reach.merge(&other.reach);
        self.rows.prefill += other.rows.prefill;
        self.rows.decode += other.rows.decode;
        self.rows.verify += other.rows.verify;
        let (into, from) = (&mut self.times, &other.times);
        into.draft_prefill += from.draft_prefill;
        into.draft += from.draft;
        into.target += from.target;
        into.sample += from.sample;
        into.verify += from.verify;
        into.keep += from.keep;
        into.other += from.other;
    }

    fn means(&self, n: u64) -> Option<StepMeans> {
        let mean = |ns: u64| ns as f64 / n as f64;
        let times = &self.times;
        (n > 0).then(|| StepMeans {
            total_ns: mean(times.total()),
            draft_prefill_ns: mean(times.draft_prefill),
            draft_ns: mean(times.draft),
            target_ns: mean(times.target),
            sample_ns: mean(times.sample),
            verify_ns: mean(times.verify),
            keep_ns: mean(times.keep),
            other_ns: mean(times.other),
        })
    }
}

impl StepCosts {
    /// The steps in the log.
    ///
    /// Tokens belong to the first step that ends when they are stamped or later, so a log may hold the tokens of a
    /// step before the step or, with the step's own stamp, after it.
    pub fn of(events: &[Event]) -> StepCosts {
        let mut ends = Vec::new();
        let mut steps = Vec::new();
        for Event { at, kind } in events {
            if let EventKind::Step { rows, reach, times, .. } = *kind {
                ends.push(*at);
                let scoring = u64::from(reach.scored > 0);
                steps.push(StepCost { steps: 1, rows, reach, scoring, tokens: 0, times });
            }
        }
        for Event { at, kind } in events {
            if let EventKind::Tokens { n, .. } = *kind
                && let Some(step) = steps.get_mut(ends.partition_point(|end| end < at))
            {
                step.tokens += n as u64;
            }
        }
        let mut costs = StepCosts::default();
        for step in &steps {
            costs.add(step);
        }
        costs
    }

    /// Time spent in steps of all kinds.
    pub fn time_ns(&self) -> u64 {
        self.prefill.time_ns() + self.decode.time_ns() + self.mixed.time_ns()
    }

    /// Adds the steps of another round.
    pub fn merge(&mut self, other: &StepCosts) {
        self.prefill.merge(&other.prefill);
        self.decode.merge(&other.decode);
        self.mixed.merge(&other.mixed);
        self.drafting.merge(&other.drafting);
    }

    fn add(&mut self, step: &StepCost) {
        match StepKind::of(&step.rows) {
            StepKind::Prefill => self.prefill.merge(step),
            StepKind::Mixed => self.mixed.merge(step),
            StepKind::Decode => {
                self.decode.merge(step);
                if step.rows.verify > 0 {
                    self.drafting.merge(step);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::*;

    /// `expected` is (steps, tokens, nanoseconds) of prefill, decode, mixed and drafting steps.
    fn check(events: &[Event], expected: [(u64, u64, u64); 4]) -> StepCosts {
        let costs = StepCosts::of(events);
        let kinds = [&costs.prefill, &costs.decode, &costs.mixed, &costs.drafting];
        assert_eq!(kinds.map(|cost| (cost.steps, cost.tokens, cost.time_ns())), expected);
        costs
    }

    #[test]
    fn a_step_counts_for_the_kind_that_all_its_rows_have() {
        let all = PhaseTimes { draft_prefill: 1, draft: 2, target: 3, sample: 1, verify: 3, keep: 5, other: 6 };
        let none = (0, 0, 0);
        check(&[], [none; 4]);
        check(&[step(9, [7, 0, 0], all)], [(1, 0, 21), none, none, none]);
        check(&[step(9, [0, 1, 0], all)], [none, (1, 0, 21), none, none]);
        check(&[step(9, [0, 1, 4], all)], [none, (1, 0, 21), none, (1, 0, 21)]);
        check(&[step(9, [7, 1, 0], all)], [none, none, (1, 0, 21), none]);
        check(&[step(9, [7, 0, 4], all)], [none, none, (1, 0, 21), none]);
        check(&[step(9, [0, 0, 0], all)], [none, none, (1, 0, 21), none]);
    }

    #[test]
    fn tokens_go_to_their_step_on_whichever_side_of_it_they_are_logged() {
        let expected = [(1, 1, 10), (2, 5, 16), (0, 0, 0), (1, 4, 11)];
        let (prefill, decode) = (step(10, [8, 0, 0], plain(9, 1)), step(15, [0, 1, 0], plain(4, 1)));
        let verify = step(26, [0, 1, 4], PhaseTimes { draft: 3, ..plain(7, 1) });
        let tokens = [token(10, 0), token(15, 0), drafted(26, 0, 4, [4, 3], true)];
        let [first, second, third] = tokens.clone();
        let costs = check(
            &[first.clone(), prefill.clone(), second.clone(), decode.clone(), third.clone(), verify.clone()],
            expected,
        );
        check(&[prefill.clone(), first, decode.clone(), second, verify.clone(), third], expected);
        // Stamped within the step, before its bookkeeping is done.
        let early = [token(8, 0), prefill, token(14, 0), decode, drafted(25, 0, 4, [4, 3], true), verify];
        check(&early, expected);

        let means = costs.drafting.per_step().unwrap();
        assert_eq!((means.total_ns, means.draft_ns, means.target_ns, means.other_ns), (11.0, 3.0, 7.0, 1.0));
        assert_eq!(costs.decode.per_step().unwrap().total_ns, 8.0);
        assert_eq!(costs.mixed.per_step(), None);
        assert_eq!(costs.prefill.per_sequence(), None);
    }

    #[test]
    fn a_step_of_several_sequences_is_shared_by_them() {
        let mut costs = StepCosts::of(&[step(12, [0, 4, 0], plain(10, 2))]);
        costs.merge(&StepCosts::of(&[step(9, [0, 2, 0], plain(9, 0))]));
        let means = costs.decode.per_sequence().unwrap();
        assert_eq!((means.total_ns, means.target_ns, means.other_ns), (21.0 / 6.0, 19.0 / 6.0, 2.0 / 6.0));
        assert_eq!((costs.decode.steps, costs.decode.rows.decode, costs.time_ns()), (2, 6, 21));
    }
}

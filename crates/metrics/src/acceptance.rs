//! How many draft tokens survive verification, counted in integers.
//!
//! Everything follows from one histogram: steps by (draft length, accepted tokens). The invariants are
//! sum of A\[i\] = accepted and tau = 1 + sum of A\[i\]/N, where A\[i\] counts steps that accepted at least i tokens.
//! Definitions as in Leviathan, Kalman and Matias, arXiv 2211.17192, and in vLLM's metrics.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use specquant_core::{Event, EventKind};

/// Drafting steps: those of one sequence in which at least one draft token was verified.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Acceptance {
    /// The counts for each draft length that occurred, ascending.
    pub by_length: Vec<DraftLength>,
    /// Tokens output by drafting steps. accepted + N unless an output was cut inside a step, by its end or its limit.
    pub emitted: u64,
}

/// The drafting steps with one draft length.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct DraftLength {
    /// Tokens drafted in each of the steps.
    pub length: usize,
    /// `accepted[j]`: steps that accepted exactly j tokens, for j in 0..=length.
    pub accepted: Vec<u64>,
    /// Steps that ended with a rejection. A step whose output was cut first has none.
    pub rejected: u64,
}

/// The figures that are printed of an `Acceptance`. Each is `None` where it would divide by zero.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct AcceptanceRates {
    /// N: steps with at least one draft token.
    pub drafting_steps: u64,
    /// Draft tokens proposed; positions after a rejection are among them.
    pub drafted: u64,
    /// Draft tokens that were output.
    pub accepted: u64,
    /// Draft tokens that were tried and rejected; at most one a step.
    pub rejected: u64,
    /// Tokens output by drafting steps.
    pub emitted: u64,
    /// Draft acceptance rate: accepted / drafted.
    pub draft_acceptance: Option<f64>,
    /// Evaluated-only acceptance rate: accepted / (accepted + rejected). Estimates alpha.
    pub evaluated_acceptance: Option<f64>,
    /// Mean acceptance length, the corrected or bonus token counted: 1 + accepted / N; 1 without drafts.
    pub tau: f64,
    /// Tokens output per drafting step: emitted / N. Less than tau where outputs were cut inside a step.
    pub emitted_per_step: Option<f64>,
    /// `survival_by_position[i - 1]`: of the steps that drafted at least i tokens, the share that accepted so many. A\[i\] / N
    /// where all drafts have one length.
    pub survival_by_position: Vec<f64>,
    /// `conditional_by_position[i - 1]`: of the steps that drafted at least i tokens and accepted i - 1 of them, the share that
    /// accepted one more.
    pub conditional_by_position: Vec<Option<f64>>,
}

impl Acceptance {
    /// The drafting steps in the log.
    pub fn of(events: &[Event]) -> Acceptance {
        let mut all = Acceptance::default();
        for each in Acceptance::by_request(events).values() {
            all.merge(each);
        }
        all
    }

    /// The drafting steps of each request in the log that has any.
    pub fn by_request(events: &[Event]) -> BTreeMap<u64, Acceptance> {
        let mut requests: BTreeMap<u64, Acceptance> = BTreeMap::new();
        for event in events {
            if let EventKind::Tokens { request, n, drafted, accepted, rejected } = event.kind
                && drafted > 0
            {
                let acceptance = requests.entry(request).or_default();
                acceptance.emitted += n as u64;
                let length = acceptance.length(drafted);
                *length.slot(accepted) += 1;
                length.rejected += u64::from(rejected);
            }
        }
        requests
    }

    /// Steps that all drafted `length` tokens, of which `accepted[j]` accepted exactly j; no output was cut.
    pub fn from_histogram(length: usize, accepted: &[u64]) -> Acceptance {
        let mut counts = DraftLength { length, ..DraftLength::default() };
        for (j, &steps) in accepted.iter().enumerate() {
            *counts.slot(j) += steps;
            counts.rejected += if j < length { steps } else { 0 };
        }
        let emitted = (0..).zip(&counts.accepted).map(|(j, steps)| (j + 1) * steps).sum();
        Acceptance { by_length: vec![counts], emitted }
    }

    /// Adds the steps of another request, round or run.
    pub fn merge(&mut self, other: &Acceptance) {
        self.emitted += other.emitted;
        for from in &other.by_length {
            let into = self.length(from.length);
            into.rejected += from.rejected;
            for (j, steps) in from.accepted.iter().enumerate() {
                *into.slot(j) += steps;
            }
        }
    }

    /// N: steps with at least one draft token.
    pub fn drafting_steps(&self) -> u64 {
        self.by_length.iter().map(DraftLength::steps).sum()
    }

    /// Draft tokens proposed.
    pub fn drafted(&self) -> u64 {
        self.by_length.iter().map(|counts| counts.length as u64 * counts.steps()).sum()
    }

    /// Draft tokens that were output.
    pub fn accepted(&self) -> u64 {
        self.survivors().iter().sum()
    }

    /// Draft tokens that were tried and rejected.
    pub fn rejected(&self) -> u64 {
        self.by_length.iter().map(|counts| counts.rejected).sum()
    }

    /// `[i - 1]`: A\[i\], the steps that accepted at least i tokens, for i from 1 to the longest draft.
    pub fn survivors(&self) -> Vec<u64> {
        let longest = self.by_length.iter().map(|counts| counts.accepted.len()).max().unwrap_or(1);
        (1..longest).map(|i| self.by_length.iter().flat_map(|counts| counts.accepted.iter().skip(i)).sum()).collect()
    }

    /// Steps that drafted at least `length` tokens and accepted at least `accepted` of them.
    fn reached(&self, length: usize, accepted: usize) -> u64 {
        let long = self.by_length.iter().filter(|counts| counts.length >= length);
        long.flat_map(|counts| counts.accepted.iter().skip(accepted)).sum()
    }

    /// Mean acceptance length: 1 + accepted / N; 1 without drafts.
    pub fn tau(&self) -> f64 {
        // One division rounds once: 1 + 1696 / 1000 would be 2.6959999999999997.
        ratio(self.drafting_steps() + self.accepted(), self.drafting_steps()).unwrap_or(1.0)
    }

    /// The figures that are printed.
    pub fn rates(&self) -> AcceptanceRates {
        let (steps, survivors) = (self.drafting_steps(), self.survivors());
        let (drafted, accepted, rejected) = (self.drafted(), self.accepted(), self.rejected());
        let positions = 1..=survivors.len();
        let tried = |i: usize| self.reached(i, i - 1);
        AcceptanceRates {
            drafting_steps: steps,
            drafted,
            accepted,
            rejected,
            emitted: self.emitted,
            draft_acceptance: ratio(accepted, drafted),
            evaluated_acceptance: ratio(accepted, accepted + rejected),
            tau: self.tau(),
            emitted_per_step: ratio(self.emitted, steps),
            survival_by_position: positions
                .clone()
                .filter_map(|i| ratio(self.reached(i, i), self.reached(i, 0)))
                .collect(),
            conditional_by_position: positions.map(|i| ratio(self.reached(i, i), tried(i))).collect(),
        }
    }

    /// The counts for one draft length, in their place among the others.
    fn length(&mut self, length: usize) -> &mut DraftLength {
        let at = self.by_length.partition_point(|counts| counts.length < length);
        if self.by_length.get(at).is_none_or(|counts| counts.length != length) {
            self.by_length.insert(at, DraftLength { length, accepted: vec![0; length + 1], rejected: 0 });
        }
        &mut self.by_length[at]
    }
}

impl DraftLength {
    /// Steps with this draft length.
    pub fn steps(&self) -> u64 {
        self.accepted.iter().sum()
    }

    /// A log that claims more accepted than drafted tokens is counted as it stands and does not panic.
    fn slot(&mut self, accepted: usize) -> &mut u64 {
        let places = self.accepted.len().max(self.length.max(accepted) + 1);
        self.accepted.resize(places, 0);
        &mut self.accepted[accepted]
    }
}

/// The upper end of the 95% interval of a share, by Wilson's score; `None` of nothing.
pub fn upper_share(part: u64, whole: u64) -> Option<f64> {
    let share = ratio(part, whole)?;
    let (n, z) = (whole as f64, 1.959_963_984_540_054);
    let spread = z * (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt();
    Some((share + z * z / (2.0 * n) + spread) / (1.0 + z * z / n))
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::*;
    use crate::speculation;

    fn merged(histograms: &[(usize, &[u64])]) -> Acceptance {
        let mut all = Acceptance::default();
        for (length, accepted) in histograms {
            all.merge(&Acceptance::from_histogram(*length, accepted));
        }
        all
    }

    /// Checks (N, drafted, accepted), tau and draft acceptance, and the identities that hold without cut outputs.
    fn check(histograms: &[(usize, &[u64])], counts: [u64; 3], tau: f64, draft_acceptance: f64) -> AcceptanceRates {
        let acceptance = merged(histograms);
        let rates = acceptance.rates();
        assert_eq!([rates.drafting_steps, rates.drafted, rates.accepted], counts, "{histograms:?}");
        assert_eq!(rates.tau, tau, "{histograms:?}");
        assert_eq!(rates.draft_acceptance, Some(draft_acceptance), "{histograms:?}");
        assert_eq!(acceptance.survivors().iter().sum::<u64>(), rates.accepted);
        if let [_] = histograms {
            assert!((1.0 + rates.survival_by_position.iter().sum::<f64>() - rates.tau).abs() < 1e-12);
        }
        assert_eq!(rates.emitted, rates.accepted + rates.drafting_steps);
        assert_eq!(rates.emitted_per_step, Some(rates.emitted as f64 / rates.drafting_steps as f64));
        rates
    }

    fn close(got: &[f64], expected: &[f64], tolerance: f64) {
        assert_eq!(got.len(), expected.len());
        assert!(got.iter().zip(expected).all(|(a, b)| (a - b).abs() <= tolerance), "{got:?} {expected:?}");
    }

    #[test]
    fn published_counters_replay_exactly() {
        // vLLM's documentation of its acceptance metrics.
        let rates = check(&[(3, &[39, 1, 0, 3])], [43, 129, 10], 1.232_558_139_534_883_7, 0.077_519_379_844_961_24);
        assert_eq!(rates.survival_by_position, [4.0 / 43.0, 3.0 / 43.0, 3.0 / 43.0]);
        assert_eq!(rates.conditional_by_position, [Some(4.0 / 43.0), Some(3.0 / 4.0), Some(1.0)]);
        assert_eq!((rates.rejected, rates.evaluated_acceptance), (40, Some(10.0 / 50.0)));
        // llama.cpp#24536: 259 drafted in 87 drafts, so one draft is short by two.
        let short: &[(usize, &[u64])] = &[(3, &[16, 15, 13, 42]), (1, &[1])];
        let rates = check(short, [87, 259, 167], 254.0 / 87.0, 167.0 / 259.0);
        // There the steps that could not get so far count too.
        let of_all: Vec<f64> = merged(short).survivors().iter().map(|&survived| survived as f64 / 87.0).collect();
        close(&of_all, &[0.805, 0.632, 0.483], 5e-4);
        close(&rates.survival_by_position, &[70.0 / 87.0, 55.0 / 86.0, 42.0 / 86.0], 1e-12);
        close(&[rates.tau, 167.0 / 259.0], &[2.92, 0.644_79], 5e-4);
        // vllm#19254: 150 of 387 with k = 3.
        let rates = check(&[(3, &[59, 24, 12, 34])], [129, 387, 150], 279.0 / 129.0, 150.0 / 387.0);
        close(&rates.survival_by_position, &[0.543, 0.357, 0.264], 5e-4);
        close(&[rates.tau, 150.0 / 387.0], &[2.16, 0.388], 5e-3);
        // Conditional rates (.8, .7, .6).
        let rates = check(&[(3, &[200, 240, 224, 336])], [1000, 3000, 1696], 2.696, 1696.0 / 3000.0);
        close(&rates.conditional_by_position.iter().flatten().copied().collect::<Vec<_>>(), &[0.8, 0.7, 0.6], 1e-12);
        close(&[speculation::expected_tokens_conditional(&[0.8, 0.7, 0.6])], &[rates.tau], 1e-12);
        close(&[1696.0 / 3000.0], &[0.5653], 5e-5);
    }

    #[test]
    fn without_drafts_tau_is_one_and_rates_are_absent() {
        for acceptance in [
            Acceptance::default(),
            Acceptance::of(&[]),
            Acceptance::of(&[arrived(0, 0), token(1, 0)]),
            Acceptance::from_histogram(3, &[]),
        ] {
            let rates = acceptance.rates();
            assert_eq!((rates.tau, rates.drafting_steps), (1.0, 0));
            assert_eq!(
                (rates.draft_acceptance, rates.evaluated_acceptance, rates.emitted_per_step),
                (None, None, None)
            );
            assert!(rates.survival_by_position.is_empty() && rates.conditional_by_position.iter().all(Option::is_none));
        }
    }

    #[test]
    fn a_log_with_drafts_of_different_lengths_gives_the_histogram_of_each() {
        let log = [
            token(0, 0),
            drafted(1, 0, 3, [4, 2], true),
            drafted(2, 1, 1, [4, 0], true),
            drafted(3, 0, 3, [2, 2], false),
            drafted(4, 0, 1, [2, 0], true),
            token(5, 0),
        ];
        let acceptance = Acceptance::of(&log);
        let expected = [
            DraftLength { length: 2, accepted: vec![1, 0, 1], rejected: 1 },
            DraftLength { length: 4, accepted: vec![1, 0, 1, 0, 0], rejected: 2 },
        ];
        assert_eq!(acceptance.by_length, expected);
        assert_eq!(acceptance, merged(&[(4, &[1, 0, 1]), (2, &[1, 0, 1])]));
        let rates = acceptance.rates();
        assert_eq!(rates.conditional_by_position, [Some(0.5), Some(1.0), Some(0.0), None]);
        let requests = Acceptance::by_request(&log);
        assert_eq!((requests[&0].drafting_steps(), requests[&1].drafting_steps()), (3, 1));
    }

    #[test]
    fn the_upper_end_of_a_share_is_wilsons() {
        for (part, whole, expected) in [(0, 10, 0.277_53), (1, 10, 0.404_15), (10, 10, 1.0), (50, 1000, 0.065_31)] {
            let got = upper_share(part, whole).unwrap();
            assert!((got - expected).abs() < 2e-4, "{part} of {whole}: {got}");
        }
        assert_eq!(upper_share(0, 0), None);
    }

    #[test]
    fn a_position_is_judged_over_the_steps_that_drafted_it() {
        let log = [drafted(1, 0, 5, [4, 4], false), drafted(2, 0, 2, [4, 1], true), drafted(3, 0, 1, [2, 0], true)];
        let rates = Acceptance::of(&log).rates();
        assert_eq!(rates.survival_by_position, [2.0 / 3.0, 1.0 / 3.0, 0.5, 0.5]);
        assert_eq!(rates.conditional_by_position, [Some(2.0 / 3.0), Some(0.5), Some(1.0), Some(1.0)]);
    }

    #[test]
    fn an_output_that_ends_inside_the_accepted_prefix_counts_only_what_was_kept() {
        // vllm#56101: [d1, d2, EOS, d4, d5, bonus] is an emission of 3, not of 6.
        let acceptance = Acceptance::of(&[drafted(1, 0, 3, [5, 3], false)]);
        let rates = acceptance.rates();
        assert_eq!((rates.drafted, rates.accepted, rates.rejected, rates.emitted), (5, 3, 0, 3));
        assert_eq!((rates.tau, rates.emitted_per_step), (4.0, Some(3.0)));
        assert_eq!((rates.draft_acceptance, rates.evaluated_acceptance), (Some(0.6), Some(1.0)));
    }

    #[test]
    fn a_log_that_claims_more_accepted_than_drafted_tokens_does_not_panic() {
        let mut acceptance = Acceptance::of(&[drafted(1, 0, 4, [2, 3], false)]);
        acceptance.merge(&Acceptance::from_histogram(1, &[0, 0, 2]));
        assert_eq!((acceptance.accepted(), acceptance.drafted()), (7, 4));
    }

    #[test]
    fn acceptance_survives_the_round_trip_through_json() {
        let acceptance = merged(&[(4, &[1, 0, 1]), (2, &[1, 0, 1])]);
        let text = serde_json::to_string(&acceptance).unwrap();
        assert_eq!(serde_json::from_str::<Acceptance>(&text).unwrap(), acceptance);
    }
}

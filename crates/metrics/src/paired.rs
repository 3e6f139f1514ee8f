//! Is an arm faster than its control? The answer from values measured in the same rounds.
//!
//! Each round gives one ratio, so whatever slowed a whole round cancels. The logarithms of the ratios are taken as
//! normal, which makes the interval Student's t on log ratios and the estimate their geometric mean.

use anyhow::{Context, Result, ensure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::bootstrap;

/// The ratio of an arm's values to its control's.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Paired {
    /// Rounds.
    pub n: usize,
    /// Geometric mean of arm / control over rounds. Above 1 the arm has the larger values.
    pub ratio: f64,
    /// Where the true ratio lies; `None` for one round, which says nothing of the noise.
    pub interval: Option<Interval>,
    /// The same by a bootstrap that does not take the logarithms as normal; from 20 rounds on.
    pub bca: Option<Interval>,
    /// Two-sided p value of a t test that the ratio is 1; `None` for one round.
    pub p: Option<f64>,
    /// The smallest true change, relative to the control, of which such rounds would find 80 in 100 at this level; `None`
    /// for one round.
    pub detectable: Option<f64>,
}

/// The share of true changes that `detectable` promises to find.
const POWER: f64 = 0.8;

/// A two-sided confidence interval of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Interval {
    /// Confidence level, such as 0.95.
    pub level: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Whether the ratio may be `value` at this level.
    pub fn contains(&self, value: f64) -> bool {
        (self.low..=self.high).contains(&value)
    }

    /// The smallest relative change that an interval of this width tells from none: sqrt(high / low) - 1.
    pub fn resolution(&self) -> f64 {
        (self.high / self.low).sqrt() - 1.0
    }
}

/// The ratio of `arm[i]` to `control[i]` over rounds i, with an interval at confidence `level` in (0, 1).
pub fn paired(arm: &[f64], control: &[f64], level: f64) -> Result<Paired> {
    let logs = log_ratios(arm, control, level)?;
    let n = logs.len();
    let mean = logs.iter().sum::<f64>() / n as f64;
    let none = Paired { n, ratio: mean.exp(), interval: None, bca: None, p: None, detectable: None };
    if n == 1 {
        return Ok(none);
    }
    let student = StudentsT::new(0.0, 1.0, n as f64 - 1.0).context("Student's t distribution")?;
    let error = standard_error(&logs, mean);
    let t = quantile(&student, level);
    Ok(Paired {
        interval: Some(interval(level, mean - t * error, mean + t * error)),
        p: Some(p_value(&student, mean, error)),
        detectable: Some(((t + student.inverse_cdf(POWER)) * error).exp_m1()),
        ..none
    })
}

/// As `paired`, with the bootstrap's interval too. It takes some milliseconds.
pub fn resampled(arm: &[f64], control: &[f64], level: f64) -> Result<Paired> {
    let bca = bootstrap::bca(&log_ratios(arm, control, level)?, level);
    let bca = bca.map(|(low, high)| interval(level, low, high));
    Ok(Paired { bca, ..paired(arm, control, level)? })
}

fn log_ratios(arm: &[f64], control: &[f64], level: f64) -> Result<Vec<f64>> {
    let n = arm.len();
    ensure!(n == control.len(), "{n} values cannot be paired with {} of the control", control.len());
    ensure!(n > 0, "no round to compare");
    ensure!(level > 0.0 && level < 1.0, "confidence level {level}: must lie between 0 and 1, such as 0.95");
    for (round, (&a, &b)) in arm.iter().zip(control).enumerate() {
        let positive = [a, b].iter().all(|value| value.is_finite() && *value > 0.0);
        ensure!(positive, "round {}: the ratio of {a} to {b} has no logarithm", round + 1);
    }
    Ok(arm.iter().zip(control).map(|(a, b)| (a / b).ln()).collect())
}

/// An interval of ratios from one of their logarithms.
fn interval(level: f64, low: f64, high: f64) -> Interval {
    Interval { level, low: low.exp(), high: high.exp() }
}

/// s / sqrt(n), with s the standard deviation on n - 1 degrees of freedom.
fn standard_error(logs: &[f64], mean: f64) -> f64 {
    let n = logs.len() as f64;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (variance / n).sqrt()
}

/// The t that a Student variable exceeds in size with probability 1 - level.
fn quantile(student: &StudentsT, level: f64) -> f64 {
    student.inverse_cdf((1.0 + level) / 2.0)
}

/// How probable a mean at least this far from 0 is if the truth is 0. Equal values leave no doubt.
fn p_value(student: &StudentsT, mean: f64, error: f64) -> f64 {
    match (mean == 0.0, error == 0.0) {
        (true, _) => 1.0,
        (false, true) => 0.0,
        (false, false) => 2.0 * student.sf((mean / error).abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f64, expected: f64, tolerance: f64) {
        assert!((got - expected).abs() <= tolerance, "{got} instead of {expected}");
    }

    /// `expected` is the ratio and the ends of the interval.
    fn check(arm: &[f64], control: &[f64], level: f64, expected: (f64, f64, f64)) {
        let got = paired(arm, control, level).unwrap();
        let interval = got.interval.unwrap();
        near(got.ratio, expected.0, 1e-6);
        near(interval.low, expected.1, 1e-6);
        near(interval.high, expected.2, 1e-6);
        assert_eq!((got.n, interval.level), (arm.len(), level));
        // The ratio the other way round is the inverse, which a mean of ratios would not give.
        let inverse = paired(control, arm, level).unwrap();
        near(inverse.ratio, 1.0 / got.ratio, 1e-12);
        near(inverse.interval.unwrap().high, 1.0 / interval.low, 1e-9);
    }

    #[test]
    fn the_quantiles_are_those_of_the_printed_table() {
        for (freedom, level, t) in [
            (1.0, 0.95, 12.7062),
            (2.0, 0.95, 4.30265),
            (4.0, 0.95, 2.77645),
            (9.0, 0.95, 2.26216),
            (30.0, 0.95, 2.04227),
            (4.0, 0.99, 4.60409),
            (4.0, 0.999, 8.61030),
            (9.0, 0.999, 4.78091),
        ] {
            near(quantile(&StudentsT::new(0.0, 1.0, freedom).unwrap(), level), t, 6e-5);
        }
    }

    #[test]
    fn ratios_and_intervals_by_hand() {
        // Log ratios 0, ln 2, 2 ln 2: mean ln 2, s = ln 2, half width 4.3026527 x ln 2 / sqrt 3 = 1.7218731.
        check(&[1.0, 2.0, 4.0], &[1.0, 1.0, 1.0], 0.95, (2.0, 0.357_462_1, 11.189_996_7));
        // Log ratios +-ln 1.1: mean 0, s = sqrt 2 ln 1.1, half width 12.7062047 x ln 1.1 = 1.2110307.
        check(&[1.1, 1.0], &[1.0, 1.1], 0.95, (1.0, 0.297_890_1, 3.356_942_7));
        // Equal ratios leave no doubt, however the rounds differ.
        check(&[3.0, 30.0, 0.3], &[2.0, 20.0, 0.2], 0.999, (1.5, 1.5, 1.5));
    }

    #[test]
    fn one_round_has_a_ratio_and_no_interval() {
        let none = Paired { n: 1, ratio: 1.5, interval: None, bca: None, p: None, detectable: None };
        assert_eq!(paired(&[6.0], &[4.0], 0.95).unwrap(), none);
    }

    #[test]
    fn p_values_and_detectable_effects_by_hand() {
        // Log ratios 0.1, 0.2, 0.3: mean 0.2, standard error 0.1 / sqrt 3, t = 3.4641 on 2 degrees, p = 0.0742.
        let arm: Vec<f64> = [0.1, 0.2, 0.3].iter().map(|log: &f64| log.exp()).collect();
        let got = paired(&arm, &[1.0; 3], 0.95).unwrap();
        near(got.p.unwrap(), 0.074_180, 1e-6);
        // (4.302653 + 1.060660) x 0.0577350 = 0.309651.
        near(got.detectable.unwrap(), 0.309_651_f64.exp() - 1.0, 1e-6);
        // The ends of the interval at level 1 - p touch 1.
        near(paired(&arm, &[1.0; 3], 1.0 - got.p.unwrap()).unwrap().interval.unwrap().low, 1.0, 1e-9);
        let sure = |ratio: f64| paired(&[ratio; 4], &[1.0; 4], 0.95).unwrap();
        assert_eq!((sure(1.0).p, sure(2.0).p, sure(2.0).detectable), (Some(1.0), Some(0.0), Some(0.0)));
    }

    #[test]
    fn the_bootstrap_comes_with_twenty_rounds() {
        let rounds = |n: usize| (0..n).map(|i| 1.0 + 0.01 * (i % 5) as f64).collect::<Vec<_>>();
        let of = |n: usize| resampled(&rounds(n), &vec![1.0; n], 0.95).unwrap();
        assert_eq!(of(19).bca, None);
        let (t, bca) = (of(20).interval.unwrap(), of(20).bca.unwrap());
        near(bca.low, t.low, 2e-3);
        near(bca.high, t.high, 2e-3);
    }

    #[test]
    fn an_interval_says_what_it_contains_and_what_it_could_resolve() {
        let interval = Interval { level: 0.95, low: 1.0 / 1.21, high: 1.21 };
        assert!(interval.contains(1.0) && interval.contains(1.21) && !interval.contains(1.22));
        near(interval.resolution(), 0.21, 1e-12);
    }

    #[test]
    fn what_cannot_be_paired_is_refused() {
        for (arm, control, level, expected) in [
            (vec![1.0], vec![1.0, 2.0], 0.95, "1 values cannot be paired with 2"),
            (vec![], vec![], 0.95, "no round to compare"),
            (vec![1.0], vec![1.0], 1.0, "confidence level 1"),
            (vec![1.0], vec![1.0], f64::NAN, "confidence level NaN"),
            (vec![1.0, 0.0], vec![1.0, 1.0], 0.95, "round 2: the ratio of 0 to 1"),
            (vec![f64::INFINITY], vec![1.0], 0.95, "round 1: the ratio of inf to 1"),
        ] {
            let error = paired(&arm, &control, level).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}

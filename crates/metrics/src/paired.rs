//! Is an arm faster than its control? The answer from values measured in the same rounds.
//!
//! Each round gives one ratio, so whatever slowed a whole round cancels. The logarithms of the ratios are taken as
//! normal, which makes the interval Student's t on log ratios and the estimate their geometric mean.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The ratio of an arm's values to its control's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Paired {
    /// Rounds.
    pub n: usize,
    /// Geometric mean of arm / control over rounds. Above 1 the arm has the larger values.
    pub ratio: f64,
    /// Where the true ratio lies; `None` for one round, which says nothing of the noise.
    pub interval: Option<Interval>,
}

/// A two-sided confidence interval of a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
    let n = arm.len();
    ensure!(n == control.len(), "{n} values cannot be paired with {} of the control", control.len());
    ensure!(n > 0, "no round to compare");
    ensure!(level > 0.0 && level < 1.0, "confidence level {level}: must lie between 0 and 1, such as 0.95");
    for (round, (&a, &b)) in arm.iter().zip(control).enumerate() {
        let positive = [a, b].iter().all(|value| value.is_finite() && *value > 0.0);
        ensure!(positive, "round {}: the ratio of {a} to {b} has no logarithm", round + 1);
    }
    let logs: Vec<f64> = arm.iter().zip(control).map(|(a, b)| (a / b).ln()).collect();
    let mean = logs.iter().sum::<f64>() / n as f64;
    let interval = if n > 1 {
        let half = half_width(&logs, mean, level)?;
        Some(Interval { level, low: (mean - half).exp(), high: (mean + half).exp() })
    } else {
        None
    };
    Ok(Paired { n, ratio: mean.exp(), interval })
}

/// t x s / sqrt(n), with s the standard deviation on n - 1 degrees of freedom.
fn half_width(logs: &[f64], mean: f64, level: f64) -> Result<f64> {
    let n = logs.len() as f64;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Ok(quantile(n - 1.0, level)? * (variance / n).sqrt())
}

/// The t that a Student variable with this many degrees of freedom exceeds in size with probability 1 - level.
fn quantile(freedom: f64, level: f64) -> Result<f64> {
    let student = StudentsT::new(0.0, 1.0, freedom).context("Student's t distribution")?;
    Ok(student.inverse_cdf((1.0 + level) / 2.0))
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
            near(quantile(freedom, level).unwrap(), t, 6e-5);
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
        assert_eq!(paired(&[6.0], &[4.0], 0.95).unwrap(), Paired { n: 1, ratio: 1.5, interval: None });
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

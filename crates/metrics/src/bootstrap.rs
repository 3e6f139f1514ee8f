//! The BCa bootstrap: an interval of a mean that takes no distribution for granted.
//!
//! Efron, "Better bootstrap confidence intervals", JASA 82 (1987); Efron and Tibshirani, "An introduction to the bootstrap"
//! (1993), chapter 14. Its resamples are a function of the sample's size alone, so a record is derived alike every time.

use specquant_core::{Rng, Use};
use statrs::distribution::{ContinuousCDF, Normal};

/// A smaller sample says too little of the distribution that it was drawn from.
const FEWEST: usize = 20;

/// Samples drawn from the sample.
const RESAMPLES: usize = 10_000;

/// The interval of the mean of `sample` at confidence `level`; `None` for fewer than 20 values.
pub(crate) fn bca(sample: &[f64], level: f64) -> Option<(f64, f64)> {
    let n = sample.len();
    if n < FEWEST {
        return None;
    }
    let mean = sample.iter().sum::<f64>() / n as f64;
    let means = resampled_means(sample);
    let normal = Normal::standard();
    // How far the median of resampled means lies from the sample's own; ties count half.
    let below = means.partition_point(|value| *value < mean) + means.partition_point(|value| *value <= mean);
    let share = (below as f64 / 2.0).clamp(0.5, RESAMPLES as f64 - 0.5) / RESAMPLES as f64;
    let (bias, acceleration) = (normal.inverse_cdf(share), acceleration(sample, mean));
    let end = |probability: f64| {
        let z = bias + normal.inverse_cdf(probability);
        let corrected = normal.cdf(bias + z / (1.0 - acceleration * z));
        let rank = (corrected * (RESAMPLES + 1) as f64) as usize;
        means[rank.clamp(1, RESAMPLES) - 1]
    };
    Some((end((1.0 - level) / 2.0), end(f64::midpoint(1.0, level))))
}

/// The means of the resamples, ascending.
fn resampled_means(sample: &[f64]) -> Vec<f64> {
    let n = sample.len();
    let mean = |resample: usize| {
        let rng = Rng { seed: n as u64, request: resample as u64 };
        let drawn = (0..n).map(|at| sample[(rng.uniform(at, Use::Draft) * n as f64) as usize]);
        drawn.sum::<f64>() / n as f64
    };
    let mut means: Vec<f64> = (0..RESAMPLES).map(mean).collect();
    means.sort_by(f64::total_cmp);
    means
}

/// How fast the standard error of the mean changes with the mean, from leaving one value out at a time: for a mean, the
/// skewness over 6 sqrt(n).
fn acceleration(sample: &[f64], mean: f64) -> f64 {
    let moment = |power: i32| sample.iter().map(|value| (value - mean).powi(power)).sum::<f64>();
    let square = moment(2);
    if square > 0.0 { moment(3) / (6.0 * square.powf(1.5)) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ends that scipy 1.17.1 gives for the same sample: `scipy.stats.bootstrap((x,), np.mean, method='BCa',
    /// n_resamples=200000)`.
    fn check(sample: &[f64], level: f64, expected: (f64, f64)) {
        let (low, high) = bca(sample, level).unwrap();
        let width = expected.1 - expected.0;
        for (got, expected) in [(low, expected.0), (high, expected.1)] {
            assert!((got - expected).abs() <= 0.03 * width, "{got} instead of {expected}");
        }
    }

    #[test]
    fn ends_are_those_of_another_implementation() {
        let squares: Vec<f64> = (0..20).map(|i| 0.01 * f64::from((i * i) % 23)).collect();
        let skewed: Vec<f64> = (0..25).map(|i| 2f64.powf(-f64::from(i) / 4.0)).collect();
        check(&squares, 0.95, (0.0605, 0.1110));
        check(&skewed, 0.95, (0.158_717_6, 0.380_872_3));
        check(&skewed, 0.99, (0.136_573_6, 0.432_081_7));
    }

    #[test]
    fn equal_values_give_a_point_and_few_values_nothing() {
        assert_eq!(bca(&[0.5; 20], 0.95), Some((0.5, 0.5)));
        assert_eq!(bca(&[0.5; 19], 0.95), None);
    }
}

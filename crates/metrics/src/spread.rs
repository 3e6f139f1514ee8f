//! How a sample is spread: mean, extremes and percentiles.
//!
//! A percentile is a value of the sample, by nearest rank on a sorted copy, and is never interpolated. One that is the
//! maximum only because the sample is too small to hold it is marked as unsupported.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{Binomial, DiscreteCDF};

/// A sample in short. All values carry the unit that the holding field names.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Spread {
    /// Size of the sample, at least 1.
    pub n: usize,
    /// Sum / n.
    pub mean: f64,
    /// The smallest value.
    pub min: f64,
    /// The median.
    pub p50: Percentile,
    /// The 90th percentile.
    pub p90: Percentile,
    /// The 95th percentile.
    pub p95: Percentile,
    /// The 99th percentile.
    pub p99: Percentile,
    /// The largest value.
    pub max: f64,
}

/// The value at rank ceil(p x n) of the sorted sample.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Percentile {
    /// The value.
    pub value: f64,
    /// Whether the sample is large enough: n >= 1 / (1 - p). Otherwise the rank is that of the maximum.
    pub supported: bool,
    /// Where the percentile of the distribution lies with a confidence of 95%, whatever the distribution: two values of the
    /// sample, taken as independent. `None` where the sample is too small to bound it on both sides.
    pub interval: Option<[f64; 2]>,
}

/// The confidence of `Percentile::interval`.
const LEVEL: f64 = 0.95;

impl Spread {
    /// The spread of a sample; `None` if it is empty.
    pub fn of(sample: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = sample.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let [p50, p90, p95, p99] = [500, 900, 950, 990].map(|per_mille| percentile(&sorted, per_mille));
        Some(Spread {
            n: sorted.len(),
            mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
            min,
            p50: p50?,
            p90: p90?,
            p95: p95?,
            p99: p99?,
            max,
        })
    }
}

/// Integers, so that a rank such as 0.95 x 20 is not pushed up by the rounding of 0.95.
fn percentile(sorted: &[f64], per_mille: usize) -> Option<Percentile> {
    let rank = (per_mille * sorted.len()).div_ceil(1000).max(1);
    let value = *sorted.get(rank - 1)?;
    let interval = interval(sorted, per_mille as f64 / 1000.0);
    Some(Percentile { value, supported: sorted.len() * (1000 - per_mille) >= 1000, interval })
}

/// The values at the ranks between which the `p` quantile of the distribution lies. How many of n values lie below it is
/// binomial, which fixes the ranks; David and Nagaraja, "Order statistics" (2003), section 7.1.
fn interval(sorted: &[f64], p: f64) -> Option<[f64; 2]> {
    let below = Binomial::new(p, sorted.len() as u64).ok()?;
    let low = below.inverse_cdf((1.0 - LEVEL) / 2.0) as usize;
    let high = below.inverse_cdf(f64::midpoint(1.0, LEVEL)) as usize + 1;
    Some([*sorted.get(low.checked_sub(1)?)?, *sorted.get(high - 1)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expected` holds the four percentiles as shown: a star marks one that the sample cannot support.
    fn check(n: usize, expected: [&str; 4]) {
        // Descending, so that a percentile of an unsorted sample would be caught.
        let spread = Spread::of((1..=n).rev().map(|value| value as f64)).unwrap();
        let show = |p: Percentile| format!("{}{}", p.value, if p.supported { "" } else { "*" });
        assert_eq!([spread.p50, spread.p90, spread.p95, spread.p99].map(show), expected, "n = {n}");
        assert_eq!((spread.n, spread.min, spread.max), (n, 1.0, n as f64));
        assert_eq!(spread.mean, (n + 1) as f64 / 2.0);
    }

    /// Ranks of the interval's ends for the median, the 90th, 95th and 99th percentile; the values are their own ranks.
    fn check_interval(n: usize, expected: [Option<[usize; 2]>; 4]) {
        let spread = Spread::of((1..=n).map(|value| value as f64)).unwrap();
        let got = [spread.p50, spread.p90, spread.p95, spread.p99]
            .map(|p| p.interval.map(|ends| ends.map(|end| end as usize)));
        assert_eq!(got, expected, "n = {n}");
    }

    #[test]
    fn intervals_are_the_ranks_of_the_binomial_table() {
        check_interval(1, [None; 4]);
        // Five values miss the median on one side with probability 2 / 32 > 5%, six with 2 / 64.
        check_interval(5, [None; 4]);
        check_interval(6, [Some([1, 6]), None, None, None]);
        check_interval(10, [Some([2, 9]), None, None, None]);
        check_interval(20, [Some([6, 15]), None, None, None]);
        check_interval(100, [Some([40, 61]), Some([84, 96]), Some([90, 100]), None]);
        check_interval(1000, [Some([469, 532]), Some([881, 919]), Some([936, 964]), Some([983, 997])]);
    }

    #[test]
    fn percentiles_are_nearest_ranks_and_small_samples_are_marked() {
        check(1, ["1*", "1*", "1*", "1*"]);
        check(2, ["1", "2*", "2*", "2*"]);
        check(9, ["5", "9*", "9*", "9*"]);
        check(10, ["5", "9", "10*", "10*"]);
        check(19, ["10", "18", "19*", "19*"]);
        check(20, ["10", "18", "19", "20*"]);
        check(99, ["50", "90", "95", "99*"]);
        check(100, ["50", "90", "95", "99"]);
        check(1000, ["500", "900", "950", "990"]);
        assert_eq!(Spread::of([]), None);
    }
}

//! When an arm is warm: its passes have stopped getting faster.
//!
//! Where requests take long, a pass is a single batch of them, and one that takes seconds is enough: by then every page has been
//! touched and every clock has risen.

/// Passes without a new best rate after which an arm is warm.
const STALE: usize = 2;

/// Nanoseconds of a pass after which an arm is warm.
const LONG: u64 = 2_000_000_000;

/// Nanoseconds that a pass over all requests that warm an arm up may take; else each batch of them is one.
const SHORT: u64 = 1_000_000_000;

/// Passes after which an arm is taken as warm, however its rate moves.
const MOST: usize = 12;

/// A rate counts as better than another if it is higher by this factor.
const BETTER: f64 = 1.02;

/// The passes that have warmed an arm up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WarmUp {
    /// How many.
    pub(crate) passes: usize,
    best: f64,
    stale: usize,
}

impl WarmUp {
    /// Notes the rate of another pass and what it took. Whether the arm is warm now.
    pub(crate) fn ended(&mut self, rate: f64, ns: u64) -> bool {
        self.passes += 1;
        if rate > self.best * BETTER {
            self.stale = 0;
        } else {
            self.stale += 1;
        }
        self.best = self.best.max(rate);
        self.stale >= STALE || self.passes >= MOST || ns > LONG
    }

    /// Whether a pass is all batches, given what one took.
    pub(crate) fn whole(batches: usize, ns: u64) -> bool {
        ns.saturating_mul(batches as u64) < SHORT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expected` is the number of passes that rates, the last one repeated, take to be warm.
    fn check(rates: &[f64], expected: usize) {
        let mut warm = WarmUp::default();
        for at in 0.. {
            if warm.ended(rates[at.min(rates.len() - 1)], 1) {
                break;
            }
        }
        assert_eq!(warm.passes, expected, "{rates:?}");
    }

    #[test]
    fn what_takes_seconds_is_warm_at_once_and_what_takes_long_goes_batch_by_batch() {
        assert!(WarmUp::default().ended(5.0, 2_000_000_001) && !WarmUp::default().ended(5.0, 2_000_000_000));
        assert!(WarmUp::whole(3, 333_000_000) && !WarmUp::whole(3, 334_000_000) && !WarmUp::whole(2, u64::MAX));
    }

    #[test]
    fn an_arm_is_warm_when_it_gets_no_faster() {
        check(&[100.0], 3);
        check(&[1.0, 50.0, 90.0, 100.0], 6);
        // A slow pass is no sign of warmth by itself, two passes without progress are.
        check(&[50.0, 40.0, 60.0, 60.5, 61.0], 5);
        check(&[0.0], 2);
        // What climbs for ever is given up on.
        check(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0], 12);
    }
}

//! Randomness as a pure function of what it is for, so that neither timing nor batch neighbours can change a sample.
//!
//! Philox2x64-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011): the seed is the key,
//! request, position and use are the counter.

/// What a random number decides. Each use has a stream of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Draws a draft token.
    Draft = 0,
    /// Accepts or rejects a draft token.
    Accept = 1,
    /// Draws the replacement of a rejected draft token.
    Residual = 2,
    /// Draws a token straight from the target, with or without a draft before it.
    Bonus = 3,
}

/// The random numbers of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rng {
    /// Seed of the request.
    pub seed: u64,
    /// Number of the request within its run.
    pub request: u64,
}

impl Rng {
    /// A number in `[0, 1)` for the token at `position`, uniform with 53 bits.
    pub fn uniform(self, position: usize, purpose: Use) -> f64 {
        let counter = [((position as u64) << 2) | purpose as u64, self.request];
        let [bits, _] = philox(counter, self.seed);
        (bits >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Ten rounds of Philox2x64 with the multiplier and key increment of the paper.
fn philox(mut counter: [u64; 2], mut key: u64) -> [u64; 2] {
    for _ in 0..10 {
        let product = u128::from(counter[0]) * 0xD2B7_4407_B1CE_6E93;
        counter = [(product >> 64) as u64 ^ key ^ counter[1], product as u64];
        key = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_known_answers() {
        fn check(counter: [u64; 2], key: u64, expected: [u64; 2]) {
            assert_eq!(philox(counter, key), expected);
        }
        check([0, 0], 0, [0xca00_a045_9843_d731, 0x66c2_4222_c9a8_45b5]);
        check([u64::MAX; 2], u64::MAX, [0x65b0_21d6_0cd8_310f, 0x4d02_f322_2f86_df20]);
        check(
            [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344],
            0xa409_3822_299f_31d0,
            [0x0a5e_742c_2997_341c, 0xb0f8_83d3_8000_de5d],
        );
    }

    #[test]
    fn each_argument_changes_the_number_and_the_mean_is_a_half() {
        let rng = Rng { seed: 7, request: 3 };
        let base = rng.uniform(5, Use::Accept);
        assert_eq!(base, rng.uniform(5, Use::Accept));
        for other in [
            rng.uniform(6, Use::Accept),
            rng.uniform(5, Use::Draft),
            Rng { seed: 8, ..rng }.uniform(5, Use::Accept),
            Rng { request: 4, ..rng }.uniform(5, Use::Accept),
        ] {
            assert_ne!(base, other);
        }
        let n = 100_000;
        let mean = (0..n).map(|i| rng.uniform(i, Use::Bonus)).sum::<f64>() / n as f64;
        // The standard error is 0.29 / sqrt(n) = 0.0009.
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
    }
}

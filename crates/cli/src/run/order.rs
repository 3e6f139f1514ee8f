//! The order of arms in a round: random, and balanced over rounds.
//!
//! In any `arms` consecutive rounds, counted from the first, every arm runs once at every place, so that a machine that
//! drifts within rounds favours none of them.

use specquant_core::{Rng, Use};

/// The arms `0..arms` in the order of this round, counted from 1.
pub(crate) fn order(arms: usize, round: usize, seed: u64) -> Vec<usize> {
    let block = (round - 1) / arms;
    // A fresh shuffle for each block of rounds, rotated by one place from round to round.
    let rng = Rng { seed, request: block as u64 };
    let mut order: Vec<usize> = (0..arms).collect();
    for i in (1..arms).rev() {
        order.swap(i, (rng.uniform(i, Use::Bonus) * (i + 1) as f64) as usize);
    }
    order.rotate_left((round - 1) % arms);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_arm_has_every_place_equally_often() {
        for arms in 1..=5 {
            for block in 0..3 {
                let rounds: Vec<_> = (1..=arms).map(|round| order(arms, block * arms + round, 7)).collect();
                for place in 0..arms {
                    let seen: HashSet<_> = rounds.iter().map(|order| order[place]).collect();
                    assert_eq!(seen.len(), arms, "{rounds:?}");
                }
            }
        }
    }

    #[test]
    fn the_seed_decides_the_order() {
        let orders = |seed| (1..=20).map(|round| order(5, round, seed)).collect::<Vec<_>>();
        assert_eq!(orders(1), orders(1));
        assert_ne!(orders(1), orders(2));
    }
}

//! What a model answers: for each scored row its best token, or all its logits.
//!
//! Ties go to the lowest id, here and wherever else a token is picked. A logit that is not a number is never hidden by the
//! others of its row.

use std::cmp::Ordering;

use crate::dist::{Dist, Sampling, dist};

/// The best token of one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Greedy {
    /// Token with the highest logit, the lowest id of several.
    pub id: u32,
    /// Its logit.
    pub logit: f32,
    /// The second-highest logit; equal to `logit` on an exact tie.
    pub runner_up: f32,
}

/// The answers for one run, one for each row that it asked for, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Scores {
    /// Answers to `Score::Greedy`; empty for `Score::Nothing`.
    Greedy(Vec<Greedy>),
    /// Answers to `Score::Logits`: rows of `vocab` values.
    Logits(Vec<Vec<f32>>),
}

impl Scores {
    /// Rows answered.
    pub fn rows(&self) -> usize {
        match self {
            Scores::Greedy(rows) => rows.len(),
            Scores::Logits(rows) => rows.len(),
        }
    }

    /// What each row draws from. `None` where a logit is not a number or the best of its row is infinite: the model's weights
    /// are damaged, or overflow.
    pub fn dists(&self, sampling: &Sampling) -> Option<Vec<Dist>> {
        match self {
            Scores::Greedy(rows) => {
                rows.iter().map(|row| row.logit.is_finite().then_some(Dist::Point(row.id))).collect()
            }
            Scores::Logits(rows) => {
                let sound = |row: &Vec<f32>| {
                    let dist = dist(row, sampling);
                    (dist.is_finite() && !row.iter().any(|logit| logit.is_nan())).then_some(dist)
                };
                rows.iter().map(sound).collect()
            }
        }
    }
}

/// Reduces one row of logits to its best token; a row with a NaN yields NaN.
pub fn greedy(logits: &[f32]) -> Greedy {
    let (mut id, mut logit, mut runner_up) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (i, &value) in logits.iter().enumerate() {
        match value.partial_cmp(&runner_up) {
            Some(Ordering::Less | Ordering::Equal) => {}
            Some(Ordering::Greater) if value > logit => (id, logit, runner_up) = (i as u32, value, logit),
            Some(Ordering::Greater) => runner_up = value,
            None => return Greedy { id: i as u32, logit: f32::NAN, runner_up: f32::NAN },
        }
    }
    Greedy { id, logit, runner_up }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(logits: &[f32], expected: (u32, f32, f32)) {
        let got = greedy(logits);
        assert_eq!((got.id, got.logit, got.runner_up), expected, "{logits:?}");
    }

    #[test]
    fn the_lowest_id_wins_a_tie_and_the_runner_up_is_kept() {
        check(&[1.0, 3.0, 2.0], (1, 3.0, 2.0));
        check(&[3.0, 1.0, 3.0], (0, 3.0, 3.0));
        check(&[-5.0], (0, -5.0, f32::NEG_INFINITY));
    }

    #[test]
    fn a_logit_that_is_not_finite_shows_wherever_it_is() {
        const INF: f32 = f32::INFINITY;
        let sampled = Sampling { temperature: 1.0, ..Sampling::GREEDY };
        // A row, and whether it is sound. A masked token has minus infinity.
        for (row, sound) in [
            ([1.0, 3.0, 2.0], true),
            ([1.0, -INF, 2.0], true),
            ([f32::NAN, 3.0, 2.0], false),
            ([1.0, f32::NAN, 2.0], false),
            ([3.0, 2.0, f32::NAN], false),
            ([f32::NAN; 3], false),
            ([1.0, INF, 2.0], false),
            ([-INF; 3], false),
        ] {
            let rows = vec![vec![0.0, 1.0], row.to_vec()];
            let best = Scores::Greedy(rows.iter().map(|row| greedy(row)).collect());
            assert_eq!(best.dists(&Sampling::GREEDY).is_some(), sound, "{row:?}");
            assert_eq!(Scores::Logits(rows).dists(&sampled).is_some(), sound, "{row:?}");
        }
        let ids = Scores::Greedy(vec![greedy(&[0.0, 1.0]), greedy(&[2.0, 1.0])]).dists(&Sampling::GREEDY);
        assert_eq!(ids, Some(vec![Dist::Point(1), Dist::Point(0)]));
    }
}

//! What a model answers: for each scored row its best token, or all its logits.
//!
//! Ties go to the lowest id, here and wherever else a token is picked.

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
}

/// Reduces one row of logits to its best token. NaN logits never win; a row of nothing but NaN yields id 0 and NaN.
pub fn greedy(logits: &[f32]) -> Greedy {
    let (mut id, mut logit, mut runner_up) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (i, &value) in logits.iter().enumerate() {
        if value > logit {
            (id, logit, runner_up) = (i as u32, value, logit);
        } else if value > runner_up {
            runner_up = value;
        }
    }
    // No value was above minus infinity: either the row is masked throughout, or it is broken.
    if logit == f32::NEG_INFINITY && logits.iter().all(|value| value.is_nan()) {
        logit = f32::NAN;
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
        check(&[f32::NAN, -5.0, -6.0], (1, -5.0, -6.0));
        assert!(greedy(&[f32::NAN, f32::NAN]).logit.is_nan());
    }
}

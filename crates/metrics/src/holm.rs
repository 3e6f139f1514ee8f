//! Many comparisons, judged together: with twenty of them, one would look like an effect by chance.
//!
//! Holm, "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6 (1979).

/// The p values adjusted for being judged together, in the given order: the chance that any comparison without an effect
/// has an adjusted p value below x is at most x, however the comparisons depend on each other.
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| p[a].total_cmp(&p[b]));
    let mut adjusted = vec![0.0; p.len()];
    let mut largest: f64 = 0.0;
    for (rank, &at) in order.iter().enumerate() {
        largest = largest.max((p.len() - rank) as f64 * p[at]).min(1.0);
        adjusted[at] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(p: &[f64], expected: &[f64]) {
        let got = holm(p);
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-12;
        assert!(got.len() == expected.len() && got.iter().zip(expected).all(near), "{p:?}: {got:?}");
    }

    #[test]
    fn adjusted_values_by_hand() {
        check(&[], &[]);
        check(&[0.03], &[0.03]);
        // Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1, and never below the one before.
        check(&[0.01, 0.04, 0.03, 0.005], &[0.03, 0.06, 0.06, 0.02]);
        check(&[0.5, 0.9], &[1.0, 1.0]);
        check(&[0.0, 0.0, 1.0], &[0.0, 0.0, 1.0]);
    }
}

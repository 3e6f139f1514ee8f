//! What speculation is worth on paper: Leviathan, Kalman and Matias, arXiv 2211.17192, and a model of step costs.
//!
//! alpha is the chance that a draft token is accepted, gamma the tokens drafted in a step, c the time of a draft pass
//! over that of a target pass. The paper's formulas take acceptances as independent and a target pass over gamma + 1
//! rows as costing the same as over one; the step-cost model assumes neither.

/// Expected tokens of a step, the corrected or bonus token included: (1 - alpha^(gamma + 1)) / (1 - alpha), eq. 1.
///
/// Summed as a power series, which is exact in the limits: 1 at alpha = 0 and gamma + 1 at alpha = 1.
pub fn expected_tokens(alpha: f64, gamma: usize) -> f64 {
    (0..gamma).fold(1.0, |sum, _| 1.0 + alpha * sum)
}

/// Expected tokens of a step from conditional acceptance rates by position: 1 + sum over k of a_1 x .. x a_k.
pub fn expected_tokens_conditional(rates: &[f64]) -> f64 {
    rates.iter().rev().fold(1.0, |sum, rate| 1.0 + rate * sum)
}

/// Wall-time factor: expected tokens / (gamma c + 1), theorem 3.8.
pub fn speedup(alpha: f64, gamma: usize, c: f64) -> f64 {
    expected_tokens(alpha, gamma) / (gamma as f64 * c + 1.0)
}

/// Operation factor: (gamma c_ops + gamma + 1) / expected tokens, theorem 3.11, with `c_ops` the draft's arithmetic
/// operations per token over the target's.
pub fn operations(alpha: f64, gamma: usize, c_ops: f64) -> f64 {
    (gamma as f64 * c_ops + gamma as f64 + 1.0) / expected_tokens(alpha, gamma)
}

/// The gamma in 0..=most with the highest wall-time factor, and that factor. The smallest wins a tie.
pub fn optimal_gamma(alpha: f64, c: f64, most: usize) -> (usize, f64) {
    let factors = (0..=most).map(|gamma| (gamma, speedup(alpha, gamma, c)));
    factors.fold((0, 1.0), |best, next| if next.1 > best.1 { next } else { best })
}

/// The alpha at which `gamma` draft tokens give `tau` tokens a step; `None` unless 1 <= tau <= gamma + 1 and gamma > 0.
pub fn alpha_from_tau(tau: f64, gamma: usize) -> Option<f64> {
    if gamma == 0 || !(1.0..=gamma as f64 + 1.0).contains(&tau) {
        return None;
    }
    // Expected tokens rise with alpha, so bisection finds the only root; 60 halvings pass the precision of f64.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if expected_tokens(middle, gamma) < tau { low = middle } else { high = middle }
    }
    Some((low + high) / 2.0)
}

/// Time of one speculative step, in parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeculativeStep {
    /// Proposing the draft.
    pub draft_ns: f64,
    /// The target's pass over the draft.
    pub verify_ns: f64,
    /// Everything else in the step.
    pub rest_ns: f64,
}

/// Wall-time factor from step costs: tau x `plain_ns` / (draft + verify + rest), with `plain_ns` the whole time of a
/// step without a draft. `None` if the speculative step takes no time.
pub fn step_cost_speedup(tau: f64, plain_ns: f64, step: &SpeculativeStep) -> Option<f64> {
    let step_ns = step.draft_ns + step.verify_ns + step.rest_ns;
    (step_ns > 0.0).then(|| tau * plain_ns / step_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use specquant_core::{Rng, Use};

    fn check(what: &str, got: f64, expected: f64, tolerance: f64) {
        assert!((got - expected).abs() <= tolerance, "{what}: {got} instead of {expected}");
    }

    #[test]
    fn operations_and_speed_of_the_papers_table_1() {
        for (alpha, gamma, ops, speed, exact_ops, exact_speed) in [
            (0.6, 2, 1.53, 1.96, 1.5306, 1.9600),
            (0.7, 3, 1.58, 2.53, 1.5792, 2.5330),
            (0.8, 2, 1.23, 2.44, 1.2295, 2.4400),
            (0.8, 5, 1.63, 3.69, 1.6263, 3.6893),
            (0.9, 2, 1.11, 2.71, 1.1070, 2.7100),
            (0.9, 10, 1.60, 6.86, 1.6031, 6.8619),
        ] {
            let name = format!("alpha {alpha}, gamma {gamma}");
            check(&name, operations(alpha, gamma, 0.0), ops, 5e-3);
            check(&name, speedup(alpha, gamma, 0.0), speed, 5e-3);
            check(&name, operations(alpha, gamma, 0.0), exact_ops, 1e-4);
            check(&name, speedup(alpha, gamma, 0.0), exact_speed, 1e-4);
        }
        // The bigram of section 3.6; the paper prints 1.25.
        check("bigram", speedup(0.2, 3, 0.0), 1.248, 1e-12);
    }

    #[test]
    fn expected_tokens_and_speed_of_the_papers_tables_2_and_4() {
        for (name, gamma, alpha, c, tokens, speed, printed) in [
            ("EnDe small, T 0", 7, 0.75, 0.02, 3.5995, 3.1575, 3.2),
            ("EnDe base, T 0", 7, 0.80, 0.04, 4.1611, 3.2509, 3.3),
            ("EnDe large, T 0", 7, 0.82, 0.11, 4.4199, 2.4971, 2.5),
            ("EnDe small, T 1", 7, 0.62, 0.02, 2.5741, 2.2580, 2.3),
            ("EnDe base, T 1", 5, 0.68, 0.04, 2.8160, 2.3467, 2.4),
            ("EnDe large, T 1", 3, 0.71, 0.11, 2.5720, 1.9338, 2.0),
            ("CNNDM small, T 0", 5, 0.65, 0.02, 2.6417, 2.4015, 2.4),
            ("CNNDM base, T 0", 5, 0.73, 0.04, 3.1432, 2.6193, 2.6),
            ("CNNDM large, T 0", 3, 0.74, 0.11, 2.6928, 2.0247, 2.0),
            ("CNNDM small, T 1", 5, 0.53, 0.02, 2.0805, 1.8914, 1.9),
            ("CNNDM base, T 1", 3, 0.55, 0.04, 2.0189, 1.8026, 1.8),
            ("CNNDM large, T 1", 3, 0.56, 0.11, 2.0492, 1.5408, 1.6),
        ] {
            check(name, expected_tokens(alpha, gamma), tokens, 1e-4);
            check(name, speedup(alpha, gamma, c), speed, 1e-4);
            // The paper's alpha and c are rounded, so its own column is only near.
            check(name, speedup(alpha, gamma, c), printed, 0.1);
        }
    }

    #[test]
    fn the_best_gamma_and_its_speed() {
        let cs = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5];
        let rows = [
            (0.5, [(5, 1.875), (4, 1.794), (3, 1.630), (2, 1.458), (1, 1.250), (0, 1.000)]),
            (0.6, [(7, 2.297), (6, 2.170), (4, 1.921), (3, 1.674), (2, 1.400), (1, 1.067)]),
            (0.7, [(9, 2.972), (8, 2.758), (6, 2.353), (4, 1.981), (3, 1.583), (1, 1.133)]),
            (0.8, [(14, 4.232), (11, 3.817), (8, 3.092), (6, 2.470), (4, 1.868), (2, 1.220)]),
            (0.9, [(24, 7.486), (19, 6.365), (13, 4.674), (10, 3.431), (7, 2.373), (3, 1.376)]),
        ];
        for (alpha, cells) in rows {
            for (c, (gamma, speed)) in cs.into_iter().zip(cells) {
                let (best, factor) = optimal_gamma(alpha, c, 64);
                assert_eq!(best, gamma, "alpha {alpha}, c {c}");
                check(&format!("alpha {alpha}, c {c}"), factor, speed, 5.1e-4);
                // Corollary 3.9: some gamma helps whenever alpha > c, and by at least this much.
                assert!(alpha <= c || factor >= (1.0 + alpha) / (1.0 + c), "alpha {alpha}, c {c}");
            }
        }
    }

    #[test]
    fn limits_and_degenerate_inputs() {
        for gamma in [0, 1, 4, 64] {
            assert_eq!(expected_tokens(1.0, gamma), gamma as f64 + 1.0);
            assert_eq!(expected_tokens(0.0, gamma), 1.0);
            check("alpha near 1", expected_tokens(1.0 - 1e-9, gamma), gamma as f64 + 1.0, 1e-5);
            check("alpha near 0", expected_tokens(1e-12, gamma), 1.0, 1e-11);
        }
        assert_eq!(expected_tokens(0.7, 0), 1.0);
        // A free draft is always worth more of it, up to the limit; a useless one is worth nothing.
        assert_eq!(optimal_gamma(0.9, 0.0, 32).0, 32);
        assert_eq!(optimal_gamma(0.0, 0.0, 32), (0, 1.0));
        assert_eq!(optimal_gamma(0.3, 0.6, 32), (0, 1.0));
        check("all rates equal", expected_tokens_conditional(&[0.8; 5]), expected_tokens(0.8, 5), 1e-12);
        assert_eq!(expected_tokens_conditional(&[]), 1.0);
    }

    #[test]
    fn independent_coin_flips_agree_with_the_expectation() {
        for (alpha, gamma, seed) in [(0.3, 2, 1), (0.8, 4, 2), (0.95, 8, 3)] {
            let steps = 20_000;
            let rng = Rng { seed, request: 0 };
            let emitted = |step: usize| {
                let flip = |i: &usize| rng.uniform(step * gamma + i, Use::Accept) < alpha;
                1.0 + (0..gamma).take_while(flip).count() as f64
            };
            let sample: Vec<f64> = (0..steps).map(emitted).collect();
            let mean = sample.iter().sum::<f64>() / steps as f64;
            let variance = sample.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / (steps - 1) as f64;
            let sigma = (variance / steps as f64).sqrt();
            check("mean", mean, expected_tokens(alpha, gamma), 4.0 * sigma);
        }
    }

    #[test]
    fn alpha_is_recovered_from_tau() {
        for gamma in [1, 4, 16] {
            for alpha in [0.0, 0.1, 0.5, 0.9, 1.0] {
                check("round trip", alpha_from_tau(expected_tokens(alpha, gamma), gamma).unwrap(), alpha, 1e-9);
            }
        }
        // Chen et al., arXiv 2302.01318, table 1: milliseconds per token with K = 4 against 14.1 and 1.8 for the draft.
        for (ms, speed, tau, alpha) in
            [(7.52, 1.875, 2.83, 0.711), (7.00, 2.014, 3.04, 0.749), (5.73, 2.461, 3.72, 0.851)]
        {
            let implied = 14.1 / ms * (4.0 * 1.8 / 14.1 + 1.0);
            check("speed", 14.1 / ms, speed, 5.1e-4);
            check("tau", implied, tau, 5.1e-3);
            check("alpha", alpha_from_tau(implied, 4).unwrap(), alpha, 1e-3);
        }
        for (tau, gamma) in [(0.99, 4), (5.01, 4), (1.0, 0), (f64::NAN, 4)] {
            assert_eq!(alpha_from_tau(tau, gamma), None);
        }
    }

    #[test]
    fn the_step_cost_model_is_theorem_3_8_where_that_holds() {
        let step = SpeculativeStep { draft_ns: 4.0 * 0.1, verify_ns: 1.0, rest_ns: 0.0 };
        let factor = step_cost_speedup(expected_tokens(0.8, 4), 1.0, &step).unwrap();
        check("equal costs", factor, speedup(0.8, 4, 0.1), 1e-12);
        // By hand: 3 x 10 / (4 + 12 + 2).
        let step = SpeculativeStep { draft_ns: 4.0, verify_ns: 12.0, rest_ns: 2.0 };
        check("by hand", step_cost_speedup(3.0, 10.0, &step).unwrap(), 30.0 / 18.0, 1e-12);
        let nothing = SpeculativeStep { draft_ns: 0.0, verify_ns: 0.0, rest_ns: 0.0 };
        assert_eq!(step_cost_speedup(3.0, 10.0, &nothing), None);
    }
}

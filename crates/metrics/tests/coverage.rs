//! Do 95% intervals hold the truth 95 times in 100? Sessions are simulated as `run` makes them, woven of parts in balanced
//! random order, under noise of known laws and under noise that was recorded; how often the interval holds a known effect is
//! counted. A session that runs its arms one after the other fails the same test.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use specquant_metrics::{Paired, paired, resampled};

/// Control, control again, arm.
const ARMS: usize = 3;

/// SplitMix64, for speed.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, n: usize) -> usize {
        (self.uniform() * n as f64) as usize
    }

    /// Box and Muller.
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }
}

/// Laws of the logarithm of a part's time. Standard deviations are those that a busy small machine shows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Noise {
    /// Log-normal with 8%, independent.
    White,
    /// One part in ten has five times the deviation.
    Contaminated,
    /// A share of 0.8 stays from part to part.
    Autocorrelated,
    /// 10% faster at the end than at the beginning, and white noise.
    Drifting,
}

const LAWS: [Noise; 4] = [Noise::White, Noise::Contaminated, Noise::Autocorrelated, Noise::Drifting];
const SD: f64 = 0.08;

/// Factors on the times of successive parts.
struct Times {
    noise: Noise,
    chance: Chance,
    state: f64,
    at: usize,
    length: usize,
}

impl Iterator for Times {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        let normal = self.chance.normal();
        self.at += 1;
        let log = match self.noise {
            Noise::White => SD * normal,
            Noise::Contaminated => SD * normal * if self.chance.uniform() < 0.1 { 5.0 } else { 1.0 },
            Noise::Autocorrelated => {
                self.state = 0.8 * self.state + (1.0 - 0.8_f64.powi(2)).sqrt() * SD * normal;
                self.state
            }
            Noise::Drifting => SD * normal - 0.1 * self.at as f64 / self.length as f64,
        };
        Some(log.exp())
    }
}

fn times(noise: Noise, seed: u64, length: usize) -> Times {
    let mut chance = Chance(seed);
    let state = SD * chance.normal();
    Times { noise, chance, state, at: 0, length }
}

/// Rates of each arm in each round.
type Rates = [Vec<f64>; ARMS];

/// Rounds as they are woven: every arm runs a part before any runs the next, in a random order that is then run backwards.
fn woven(rounds: usize, parts: usize, times: &mut dyn Iterator<Item = f64>, seed: u64) -> Rates {
    let mut chance = Chance(!seed);
    let mut order: [usize; ARMS] = std::array::from_fn(|arm| arm);
    let mut rates: Rates = Default::default();
    for round in 0..rounds {
        let mut sums = [0.0; ARMS];
        for part in 0..parts {
            if (round * parts + part).is_multiple_of(2) {
                (1..ARMS).rev().for_each(|i| order.swap(i, chance.below(i + 1)));
            } else {
                order.reverse();
            }
            order.iter().for_each(|&arm| sums[arm] += times.next().unwrap());
        }
        rates.iter_mut().zip(sums).for_each(|(rates, sum)| rates.push(1.0 / sum));
    }
    rates
}

/// All of an arm's rounds, then all of the next one's.
fn in_turn(rounds: usize, parts: usize, times: &mut dyn Iterator<Item = f64>) -> Rates {
    std::array::from_fn(|_| (0..rounds).map(|_| 1.0 / times.take(parts).sum::<f64>()).collect())
}

/// The arm, made faster by `effect`, against both controls.
fn compare(rates: &Rates, effect: f64, how: fn(&[f64], &[f64], f64) -> anyhow::Result<Paired>) -> Paired {
    let control: Vec<f64> = rates[0].iter().zip(&rates[1]).map(|(a, b)| (a * b).sqrt()).collect();
    let arm: Vec<f64> = rates[2].iter().map(|rate| rate * (1.0 + effect)).collect();
    how(&arm, &control, 0.95).unwrap()
}

/// The share of `sessions` for which `holds`.
fn share(sessions: u64, holds: impl Fn(u64) -> bool) -> f64 {
    (0..sessions).filter(|&session| holds(session)).count() as f64 / sessions as f64
}

const PARTS: usize = 4;

fn session(noise: Noise, rounds: usize, seed: u64) -> Rates {
    woven(rounds, PARTS, &mut times(noise, seed, rounds * PARTS * ARMS), seed)
}

/// The share of sessions of `n` rounds whose interval holds the truth.
fn coverage(noise: Noise, n: usize) -> f64 {
    share(4000, |seed| {
        let paired = compare(&session(noise, n, seed), 0.1, paired);
        paired.interval.unwrap().contains(1.1)
    })
}

#[test]
fn intervals_hold_the_truth_under_noise_of_every_law() {
    for noise in LAWS {
        let shares = [5, 10, 20, 40].map(|n| coverage(noise, n));
        println!("{noise:?}: {shares:.3?}");
        assert!(shares.iter().all(|share| (0.93..=0.97).contains(share)), "{noise:?}: {shares:?}");
    }
}

#[test]
fn the_bootstrap_holds_the_truth_too() {
    for noise in LAWS {
        let held = share(200, |seed| compare(&session(noise, 20, seed), 0.1, resampled).bca.unwrap().contains(1.1));
        println!("BCa {noise:?}: {held:.3}");
        // 200 sessions tell 95% to 3% (two standard errors), and at 20 rounds the bootstrap is known to be a little short.
        assert!((0.88..=0.99).contains(&held), "{noise:?}: {held}");
    }
}

/// Rounds until the interval is narrow, at least `fewest`: the rule by which `run` ends.
fn stopped(rates: &Rates, fewest: usize, precision: f64) -> Paired {
    let until = |n: usize| compare(&rates.each_ref().map(|rates| rates[..n].to_vec()), 0.1, paired);
    let narrow = |paired: &Paired| paired.interval.unwrap().resolution() <= precision;
    let most = rates[0].len();
    (fewest..=most).map(until).find(narrow).unwrap_or_else(|| until(most))
}

#[test]
fn ending_when_the_interval_is_narrow_costs_little_coverage() {
    for noise in LAWS {
        // Widths that are reached within tens of rounds.
        let shares = [0.03, 0.02].map(|precision| {
            share(2000, |seed| stopped(&session(noise, 40, seed), 10, precision).interval.unwrap().contains(1.1))
        });
        println!("stopped {noise:?}: {shares:.3?}");
        assert!(shares.iter().all(|share| (0.93..=0.97).contains(share)), "{noise:?}: {shares:?}");
    }
}

#[test]
fn arms_that_run_one_after_the_other_are_not_comparable() {
    for noise in [Noise::Autocorrelated, Noise::Drifting] {
        let held = share(500, |seed| {
            let rates = in_turn(20, PARTS, &mut times(noise, seed, 20 * PARTS * ARMS));
            compare(&rates, 0.1, paired).interval.unwrap().contains(1.1)
        });
        println!("in turn {noise:?}: {held:.3}");
        assert!(held < 0.9, "{noise:?}: {held}");
    }
}

/// Decode times per token of 24 requests (columns), served over and over (lines) by one plain arm on a busy machine, divided
/// by their column's mean.
fn recorded() -> Vec<f64> {
    let lines: Vec<Vec<f64>> = include_str!("data/requests.csv")
        .lines()
        .map(|line| line.split(',').map(|time| time.parse().unwrap()).collect())
        .collect();
    let mean = |column: usize| lines.iter().map(|line| line[column]).sum::<f64>() / lines.len() as f64;
    let means: Vec<f64> = (0..lines[0].len()).map(mean).collect();
    lines.iter().flat_map(|line| line.iter().zip(&means).map(|(time, mean)| time / mean)).collect()
}

/// A session on a stretch of recorded times, with 8 parts a round.
fn replayed(recorded: &[f64], rounds: usize, seed: u64) -> Rates {
    let (parts, length) = (8, rounds * 8 * ARMS);
    let start = Chance(seed).below(recorded.len() - length);
    woven(rounds, parts, &mut recorded[start..start + length].iter().copied(), seed)
}

#[test]
fn intervals_hold_known_effects_under_recorded_noise() {
    let recorded = recorded();
    for effect in [0.0, 0.03, 0.1] {
        let shares = [5, 10, 20, 40].map(|n| {
            share(2000, |seed| {
                let paired = compare(&replayed(&recorded, n, seed), effect, paired);
                paired.interval.unwrap().contains(1.0 + effect)
            })
        });
        println!("recorded, {effect}: {shares:.3?}");
        assert!(shares.iter().all(|share| (0.92..=0.98).contains(share)), "{effect}: {shares:?}");
    }
}

#[test]
fn a_control_is_seldom_taken_for_different_from_itself() {
    let recorded = recorded();
    let missed = |rates: &Rates| !paired(&rates[1], &rates[0], 0.999).unwrap().interval.unwrap().contains(1.0);
    for n in [5, 10, 20, 40] {
        let replayed = share(2000, |seed| missed(&replayed(&recorded, n, seed)));
        let simulated = LAWS.map(|noise| share(2000, |seed| missed(&session(noise, n, seed))));
        println!("A/A misses at n = {n}: recorded {replayed:.4}, simulated {simulated:.4?}");
        assert!(replayed <= 0.01 && simulated.iter().all(|share| *share <= 0.01), "n = {n}");
    }
}

//! How a round is woven of its arms: requests are cut in parts, and every arm runs a part before any runs the next.
//!
//! Machines drift within seconds, so arms are compared over stretches of time that lie as close together as can be. The
//! order of arms is random and balanced from part to part, on and on through all rounds.

use std::ops::Range;

use specquant_core::{Request, Rng, RunSpec, Use};

/// Requests for each place in a batch that a part holds at least, so that most of its steps run a full batch.
const FILLS: usize = 4;

/// The order in which arms and requests take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Arms of a round.
    pub(crate) arms: usize,
    /// Parts of the requests of every arm.
    pub(crate) parts: usize,
    /// Seed of the order.
    pub(crate) seed: u64,
}

impl Plan {
    /// A plan for cells with these requests each, and one arm more than cells.
    ///
    /// Where one request runs at a time, it is a part: between two of them nothing is left that one could hand to the
    /// other. A batch is only cut where it would have run dry for a small part of the time.
    pub(crate) fn of(cells: &[RunSpec], requests: &[&[Request]]) -> Plan {
        let parts = cells.iter().zip(requests).map(|(cell, requests)| match cell.batching.limit() {
            1 => requests.len(),
            limit => requests.len() / (FILLS * limit),
        });
        Plan {
            arms: cells.len() + 1,
            parts: parts.min().unwrap_or(1).max(1),
            seed: cells.first().map_or(0, |cell| cell.seed),
        }
    }

    /// The place of a part, counted from 0, among `requests` requests.
    pub(crate) fn range(&self, part: usize, requests: usize) -> Range<usize> {
        part * requests / self.parts..(part + 1) * requests / self.parts
    }

    /// The arms in their order, for a part counted from 0 of a round counted from 1.
    ///
    /// Every second order is the one before it backwards, so that what drifts steadily favours no arm over two of them;
    /// over twice as many as there are arms each arm has every place twice.
    pub(crate) fn order(&self, round: usize, part: usize) -> Vec<usize> {
        let turn = (round - 1) * self.parts + part;
        let (pair, block) = (turn / 2, turn / (2 * self.arms));
        // A fresh shuffle for each block, rotated by one place from pair to pair.
        let rng = Rng { seed: self.seed, request: block as u64 };
        let mut order: Vec<usize> = (0..self.arms).collect();
        for i in (1..self.arms).rev() {
            order.swap(i, (rng.uniform(i, Use::Bonus) * (i + 1) as f64) as usize);
        }
        order.rotate_left(pair % self.arms);
        if turn % 2 == 1 {
            order.reverse();
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use specquant_core::{Batching, Sampling};

    use super::*;

    fn plan(arms: usize, parts: usize, seed: u64) -> Plan {
        Plan { arms, parts, seed }
    }

    #[test]
    fn every_arm_has_every_place_equally_often_and_drift_cancels() {
        for (arms, parts) in [(2, 1), (3, 1), (4, 2), (5, 3), (4, 24)] {
            let plan = plan(arms, parts, 7);
            let orders: Vec<Vec<usize>> =
                (1..=2 * arms).flat_map(|round| (0..parts).map(move |part| plan.order(round, part))).collect();
            for arm in 0..arms {
                let places: Vec<usize> =
                    orders.iter().map(|order| order.iter().position(|at| *at == arm).unwrap()).collect();
                for place in 0..arms {
                    assert_eq!(places.iter().filter(|at| **at == place).count(), 2 * parts, "{orders:?}");
                }
                assert!(places.chunks(2).all(|pair| pair[0] + pair[1] == arms - 1), "{orders:?}");
            }
        }
    }

    #[test]
    fn the_seed_decides_the_order() {
        let orders = |seed| (1..=20).map(|round| plan(5, 1, seed).order(round, 0)).collect::<Vec<_>>();
        assert_eq!(orders(1), orders(1));
        assert_ne!(orders(1), orders(2));
    }

    /// Batch limits and numbers of requests, one for each cell.
    fn check(cells: &[(usize, usize)], parts: usize) {
        let request = Request {
            id: 0,
            arrival: 0,
            prompt: vec![1],
            max_new_tokens: 1,
            ignore_eos: false,
            stop: vec![],
            sampling: Sampling::GREEDY,
            seed: 0,
        };
        let requests: Vec<Vec<Request>> = cells.iter().map(|&(_, n)| vec![request.clone(); n]).collect();
        let specs: Vec<RunSpec> = cells
            .iter()
            .map(|&(limit, _)| RunSpec { batching: Batching::Continuous { limit }, ..RunSpec::default() })
            .collect();
        let plan = Plan::of(&specs, &requests.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert_eq!((plan.arms, plan.parts), (cells.len() + 1, parts), "{cells:?}");
        for &(_, n) in cells {
            let ranges: Vec<Range<usize>> = (0..parts).map(|part| plan.range(part, n)).collect();
            assert!(ranges.iter().cloned().flatten().eq(0..n), "{ranges:?}");
        }
    }

    #[test]
    fn parts_are_small_and_hold_full_batches() {
        check(&[(1, 24)], 24);
        check(&[(1, 24), (1, 7)], 7);
        check(&[(8, 24)], 1);
        check(&[(1, 96), (2, 96), (8, 96)], 3);
        check(&[(3, 1)], 1);
    }
}

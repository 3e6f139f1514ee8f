//! Reservation in blocks of a power of two, as Orca does (Yu et al., OSDI 2022) in the comparison of Kwon et al. (SOSP 2023).
//!
//! Every block lies at a multiple of its size. Two free halves of a block never stay apart, so that free blocks are as large as
//! they can be.

use std::collections::BTreeSet;

use specquant_core::{Reserve, SeqId, SlotCopy};

use crate::pieces::{Piece, Pieces};
use crate::{Allocator, Full, Grant, Holding, Keep, Limit, Moved, Usage};

/// A block for each sequence, as long as the policy asks for and rounded up.
pub struct Buddy {
    reserve: Reserve,
    /// First slots of the free blocks, by the logarithm of their size.
    free: Vec<BTreeSet<usize>>,
    pieces: Pieces,
    /// Blocks that operations have looked at or changed.
    touched: u64,
}

impl Buddy {
    /// All `slots` as blocks of powers of two, the largest first.
    pub fn new(slots: usize, reserve: Reserve) -> Buddy {
        let orders = (usize::BITS - slots.leading_zeros()) as usize;
        let mut free = vec![BTreeSet::new(); orders];
        let mut first = 0;
        for order in (0..orders).rev().filter(|order| slots >> order & 1 == 1) {
            free[order].insert(first);
            first += 1 << order;
        }
        Buddy { reserve, free, pieces: Pieces::new(slots), touched: 0 }
    }

    /// Blocks that operations have looked at or changed so far.
    pub fn touched(&self) -> u64 {
        self.touched
    }

    /// The slots that the policy reserves for a sequence.
    fn length(&self, prompt: usize, limit: Limit) -> usize {
        let known = limit.oracle_len.unwrap_or(limit.max_len);
        match self.reserve {
            Reserve::Max => limit.max_len,
            Reserve::Pow2 => limit.max_len.min(prompt + known.saturating_sub(prompt).next_power_of_two()),
            Reserve::Oracle => known,
        }
    }

    /// The lowest of the smallest free blocks that have `1 << order` slots, cut down to them.
    fn take(&mut self, order: usize) -> Option<usize> {
        let mut from = (order..self.free.len()).find(|&order| !self.free[order].is_empty())?;
        let first = self.free[from].pop_first()?;
        self.touched += 1;
        while from > order {
            from -= 1;
            self.free[from].insert(first + (1 << from));
            self.touched += 1;
        }
        Some(first)
    }

    /// Joins a block with its other half as often as that is free.
    fn give_back(&mut self, mut first: usize, mut order: usize) {
        while self.free[order].remove(&(first ^ 1 << order)) {
            first &= !(1 << order);
            order += 1;
            self.touched += 1;
        }
        self.free[order].insert(first);
        self.touched += 1;
    }
}

/// The logarithm of the size of a block for so many slots; its other slots are lost.
fn order(len: usize) -> usize {
    len.next_power_of_two().trailing_zeros() as usize
}

impl Allocator for Buddy {
    fn open(&mut self, seq: SeqId, prompt: &[u32], limit: Limit) -> Result<Grant, Full> {
        let len = self.length(prompt.len(), limit).max(1);
        let first = self.take(order(len)).ok_or(Full)?;
        self.pieces.open(seq, first, len);
        self.pieces.usage.rounding += len.next_power_of_two() - len;
        Ok(Grant::default())
    }

    fn extend(&mut self, seq: SeqId, n: usize) -> Result<Grant, Full> {
        self.pieces.extend(seq, n)
    }

    fn commit(&mut self, seq: SeqId, ids: &[u32]) -> Vec<Moved> {
        self.pieces.commit(seq, ids.len());
        Vec::new()
    }

    fn keep(&mut self, seq: SeqId, Keep::Len(len): Keep) -> Vec<SlotCopy> {
        self.pieces.keep(seq, len);
        Vec::new()
    }

    fn free(&mut self, seq: SeqId) {
        if let Some(Piece { first, len, .. }) = self.pieces.free(seq) {
            self.pieces.usage.rounding -= len.next_power_of_two() - len;
            self.give_back(first, order(len));
        }
    }

    fn usage(&self) -> Usage {
        self.pieces.usage
    }

    fn largest(&self) -> usize {
        self.pieces.usage.capacity.checked_ilog2().map_or(0, |order| 1 << order)
    }

    fn holding(&self, seq: SeqId) -> Holding {
        self.pieces.holding(seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(max_len: usize, oracle_len: usize) -> Limit {
        Limit { max_len, oracle_len: Some(oracle_len) }
    }

    #[test]
    fn blocks_are_cut_in_halves_and_joined_again() {
        // Blocks of 8, 4 and 1.
        let mut kv = Buddy::new(13, Reserve::Oracle);
        let check = |kv: &Buddy, live, reserved, rounding| {
            let expected = Usage { capacity: 13, live, reserved, rounding, ..Usage::default() };
            assert_eq!(kv.usage(), expected);
        };
        kv.open(1, &[0; 2], limit(8, 3)).unwrap();
        check(&kv, 0, 3, 1);
        assert_eq!(kv.extend(1, 2).unwrap().slots, [8, 9]);
        kv.open(2, &[0], limit(8, 2)).unwrap();
        assert_eq!(kv.extend(2, 2).unwrap().slots, [0, 1]);
        assert_eq!(kv.extend(2, 1), Err(Full));
        kv.open(3, &[0], limit(8, 1)).unwrap();
        assert_eq!(kv.extend(3, 1).unwrap().slots, [12]);
        kv.open(4, &[0], limit(8, 1)).unwrap();
        assert_eq!(kv.extend(4, 1).unwrap().slots, [2]);
        // Five slots are free, in blocks of four and one.
        assert_eq!(kv.open(5, &[0], limit(8, 5)), Err(Full));
        kv.commit(2, &[7]);
        check(&kv, 1, 6, 1);
        [1, 2, 3, 4].into_iter().for_each(|seq| kv.free(seq));
        check(&kv, 0, 0, 0);
        kv.open(5, &[0], limit(8, 8)).unwrap();
        assert_eq!(kv.extend(5, 8).unwrap().slots, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn policies_reserve_by_what_they_know() {
        // A prompt of 3 and an output of 5, of at most 20 tokens together.
        for (reserve, expected) in [(Reserve::Max, 20), (Reserve::Pow2, 3 + 8), (Reserve::Oracle, 8)] {
            let mut kv = Buddy::new(64, reserve);
            kv.open(1, &[0; 3], limit(20, 8)).unwrap();
            assert_eq!(kv.holding(1), Holding { slots: expected, room: expected }, "{reserve:?}");
        }
        let mut kv = Buddy::new(64, Reserve::Pow2);
        kv.open(1, &[0; 3], limit(9, 8)).unwrap();
        assert_eq!(kv.holding(1).slots, 9);
    }

    #[test]
    fn no_operation_touches_more_blocks_than_there_are_sizes() {
        let slots = 1 << 20;
        let mut kv = Buddy::new(slots, Reserve::Oracle);
        let (mut open, mut state) = (Vec::new(), 1u64);
        for seq in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let before = kv.touched();
            if state >> 63 == 0 || open.is_empty() {
                if kv.open(seq, &[0], limit(2048, 1 + (state >> 33) as usize % 2048)).is_ok() {
                    open.push(seq);
                }
            } else {
                kv.free(open.swap_remove((state >> 33) as usize % open.len()));
            }
            assert!(kv.touched() - before <= 2 * 20, "{}", kv.touched() - before);
        }
    }
}

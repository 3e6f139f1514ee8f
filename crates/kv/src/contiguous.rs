//! Reservation of each sequence's maximum length in one piece, as FasterTransformer did; the smallest hole that fits.
//!
//! The holes between the pieces are disjoint, never adjacent, and together with the pieces cover every slot.

use std::collections::{BTreeMap, BTreeSet};

use specquant_core::{SeqId, SlotCopy};

use crate::pieces::{Piece, Pieces};
use crate::{Allocator, Full, Grant, Holding, Keep, Limit, Moved, Usage};

/// One piece of slots for each sequence.
pub struct Contiguous {
    /// First slot of each hole, and its length.
    holes: BTreeMap<usize, usize>,
    /// The same holes as length and first slot.
    by_len: BTreeSet<(usize, usize)>,
    pieces: Pieces,
}

impl Contiguous {
    /// All `slots` in one hole.
    pub fn new(slots: usize) -> Contiguous {
        let (holes, by_len) = (BTreeMap::from([(0, slots)]), BTreeSet::from([(slots, 0)]));
        Contiguous { holes, by_len, pieces: Pieces::new(slots) }
    }

    fn insert_hole(&mut self, first: usize, len: usize) {
        self.holes.insert(first, len);
        self.by_len.insert((len, first));
    }

    fn remove_hole(&mut self, first: usize) -> Option<usize> {
        let len = self.holes.remove(&first)?;
        self.by_len.remove(&(len, first));
        Some(len)
    }

    /// Makes a hole and joins it with the holes that it touches.
    fn return_hole(&mut self, mut first: usize, mut len: usize) {
        if let Some(after) = self.remove_hole(first + len) {
            len += after;
        }
        if let Some((&before, &before_len)) = self.holes.range(..first).next_back()
            && before + before_len == first
        {
            self.remove_hole(before);
            first = before;
            len += before_len;
        }
        self.insert_hole(first, len);
    }
}

impl Allocator for Contiguous {
    fn open(&mut self, seq: SeqId, _prompt: &[u32], limit: Limit) -> Result<Grant, Full> {
        let len = limit.max_len;
        let &(hole, first) = self.by_len.range((len, 0)..).next().ok_or(Full)?;
        self.remove_hole(first);
        if hole > len {
            self.insert_hole(first + len, hole - len);
        }
        self.pieces.open(seq, first, len);
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
            self.return_hole(first, len);
        }
    }

    fn usage(&self) -> Usage {
        self.pieces.usage
    }

    fn largest(&self) -> usize {
        self.pieces.usage.capacity
    }

    fn holding(&self, seq: SeqId) -> Holding {
        self.pieces.holding(seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_joined_and_the_smallest_that_fits_is_taken() {
        let mut kv = Contiguous::new(10);
        let limit = |max_len| Limit { max_len, oracle_len: None };
        for (seq, len) in [(1, 3), (2, 3), (3, 4)] {
            assert_eq!(kv.open(seq, &[], limit(len)), Ok(Grant::default()));
        }
        assert_eq!(kv.open(4, &[], limit(1)), Err(Full));
        kv.free(1);
        kv.free(3);
        // Seven slots are free, in holes of three and four.
        assert_eq!(kv.open(4, &[], limit(5)), Err(Full));
        kv.free(2);
        assert_eq!(kv.open(4, &[], limit(10)), Ok(Grant::default()));
        assert_eq!(kv.extend(4, 2).unwrap().slots, [0, 1]);
        assert_eq!(kv.keep(4, Keep::Len(1)), []);
        assert_eq!(kv.extend(4, 9).unwrap().slots, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(kv.extend(4, 1), Err(Full));
        kv.commit(4, &[5, 6]);
        assert_eq!(kv.usage(), Usage { capacity: 10, live: 2, reserved: 8, ..Usage::default() });
    }
}

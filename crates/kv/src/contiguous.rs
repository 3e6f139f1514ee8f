//! Reservation of each sequence's maximum length in one piece, as FasterTransformer did; first fit.
//!
//! The holes between the pieces are disjoint, never adjacent, and together with the pieces cover every slot.

use std::collections::{BTreeMap, HashMap};

use specquant_core::{SeqId, SlotCopy};

use crate::{Allocator, Cached, Full, Grant, Keep, Limit, Usage};

/// One piece of slots for each sequence.
pub struct Contiguous {
    capacity: usize,
    /// First slot of each hole, and its length.
    holes: BTreeMap<usize, usize>,
    pieces: HashMap<SeqId, Piece>,
}

struct Piece {
    first: usize,
    len: usize,
    granted: usize,
    committed: usize,
}

impl Contiguous {
    /// All `slots` in one hole.
    pub fn new(slots: usize) -> Contiguous {
        Contiguous { capacity: slots, holes: BTreeMap::from([(0, slots)]), pieces: HashMap::new() }
    }

    fn piece(&mut self, seq: SeqId) -> &mut Piece {
        self.pieces.get_mut(&seq).expect("the engine names open sequences only")
    }

    /// Makes a hole and joins it with the holes that it touches.
    fn return_hole(&mut self, mut first: usize, mut len: usize) {
        if let Some(after) = self.holes.remove(&(first + len)) {
            len += after;
        }
        if let Some((&before, &before_len)) = self.holes.range(..first).next_back()
            && before + before_len == first
        {
            first = before;
            len += before_len;
        }
        self.holes.insert(first, len);
    }
}

impl Allocator for Contiguous {
    fn open(&mut self, seq: SeqId, _prompt: &[u32], limit: Limit) -> Result<Cached, Full> {
        let len = limit.max_len;
        let (&first, &hole) = self.holes.iter().find(|&(_, &hole)| hole >= len).ok_or(Full)?;
        self.holes.remove(&first);
        if hole > len {
            self.holes.insert(first + len, hole - len);
        }
        self.pieces.insert(seq, Piece { first, len, granted: 0, committed: 0 });
        Ok(Cached(0))
    }

    fn extend(&mut self, seq: SeqId, n: usize) -> Result<Grant, Full> {
        let piece = self.piece(seq);
        if piece.granted + n > piece.len {
            return Err(Full);
        }
        let start = piece.first + piece.granted;
        piece.granted += n;
        Ok(Grant { slots: (start..start + n).map(|slot| slot as u32).collect(), copies: Vec::new() })
    }

    fn commit(&mut self, seq: SeqId, ids: &[u32]) {
        let piece = self.piece(seq);
        piece.committed += ids.len();
        debug_assert!(piece.committed <= piece.granted, "only granted slots hold tokens");
    }

    fn keep(&mut self, seq: SeqId, Keep::Len(len): Keep) -> Vec<SlotCopy> {
        let piece = self.piece(seq);
        debug_assert!(piece.committed <= len && len <= piece.granted, "committed tokens stay");
        piece.granted = len;
        Vec::new()
    }

    fn free(&mut self, seq: SeqId) {
        if let Some(piece) = self.pieces.remove(&seq) {
            self.return_hole(piece.first, piece.len);
        }
    }

    fn usage(&self) -> Usage {
        let live = self.pieces.values().map(|piece| piece.committed).sum();
        let taken: usize = self.pieces.values().map(|piece| piece.len).sum();
        Usage { capacity: self.capacity, live, reserved: taken - live }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_joined_and_the_first_that_fits_is_taken() {
        let mut kv = Contiguous::new(10);
        let limit = |max_len| Limit { max_len };
        for (seq, len) in [(1, 3), (2, 3), (3, 4)] {
            assert_eq!(kv.open(seq, &[], limit(len)), Ok(Cached(0)));
        }
        assert_eq!(kv.open(4, &[], limit(1)), Err(Full));
        kv.free(1);
        kv.free(3);
        // Seven slots are free, in holes of three and four.
        assert_eq!(kv.open(4, &[], limit(5)), Err(Full));
        kv.free(2);
        assert_eq!(kv.open(4, &[], limit(10)), Ok(Cached(0)));
        assert_eq!(kv.extend(4, 2).unwrap().slots, [0, 1]);
        assert_eq!(kv.keep(4, Keep::Len(1)), []);
        assert_eq!(kv.extend(4, 9).unwrap().slots, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(kv.extend(4, 1), Err(Full));
        kv.commit(4, &[5, 6]);
        assert_eq!(kv.usage(), Usage { capacity: 10, live: 2, reserved: 8 });
    }
}

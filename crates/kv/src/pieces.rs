//! Reservations: one piece of neighbouring slots for each sequence, all of it asked for when the sequence is opened.
//!
//! A sequence's tokens lie in its piece in order; slots of the piece beyond them are reserved.

use std::collections::HashMap;

use specquant_core::SeqId;

use crate::{Full, Grant, Holding, Usage};

/// The pieces of all open sequences, and what their slots do.
pub(crate) struct Pieces {
    pieces: HashMap<SeqId, Piece>,
    pub(crate) usage: Usage,
}

/// The slots of one sequence.
pub(crate) struct Piece {
    pub(crate) first: usize,
    pub(crate) len: usize,
    granted: usize,
    committed: usize,
}

impl Pieces {
    /// None yet, of so many slots.
    pub(crate) fn new(slots: usize) -> Pieces {
        Pieces { pieces: HashMap::new(), usage: Usage { capacity: slots, ..Usage::default() } }
    }

    /// A piece for a sequence.
    pub(crate) fn open(&mut self, seq: SeqId, first: usize, len: usize) {
        self.pieces.insert(seq, Piece { first, len, granted: 0, committed: 0 });
        self.usage.reserved += len;
    }

    pub(crate) fn extend(&mut self, seq: SeqId, n: usize) -> Result<Grant, Full> {
        let piece = self.piece(seq);
        if piece.granted + n > piece.len {
            return Err(Full);
        }
        let start = piece.first + piece.granted;
        piece.granted += n;
        Ok(Grant { slots: (start..start + n).map(|slot| slot as u32).collect(), copies: Vec::new() })
    }

    pub(crate) fn commit(&mut self, seq: SeqId, n: usize) {
        let piece = self.piece(seq);
        piece.committed += n;
        debug_assert!(piece.committed <= piece.granted, "only granted slots hold tokens");
        self.usage.live += n;
        self.usage.reserved -= n;
    }

    pub(crate) fn keep(&mut self, seq: SeqId, len: usize) {
        let piece = self.piece(seq);
        debug_assert!(piece.committed <= len && len <= piece.granted, "committed tokens stay");
        piece.granted = len;
    }

    /// Takes a sequence's piece back.
    pub(crate) fn free(&mut self, seq: SeqId) -> Option<Piece> {
        let piece = self.pieces.remove(&seq)?;
        self.usage.live -= piece.committed;
        self.usage.reserved -= piece.len - piece.committed;
        Some(piece)
    }

    pub(crate) fn holding(&self, seq: SeqId) -> Holding {
        self.pieces.get(&seq).map_or(Holding::default(), |p| Holding { slots: p.len, room: p.len - p.granted })
    }

    fn piece(&mut self, seq: SeqId) -> &mut Piece {
        self.pieces.get_mut(&seq).expect("the engine names open sequences only")
    }
}

//! Blocks of slots taken as a sequence grows, after Kwon et al., "Efficient memory management for large language model
//! serving with PagedAttention" (SOSP 2023).
//!
//! A sequence owns exactly the blocks that its granted tokens touch, so less than one block of it is ever unused.

use std::collections::HashMap;

use specquant_core::{SeqId, SlotCopy};

use crate::{Allocator, Full, Grant, Holding, Keep, Limit, Moved, Usage};

/// Fixed-size blocks, any of which may follow any other.
pub struct Paged {
    block: usize,
    blocks: usize,
    /// Free blocks, used from the end.
    free: Vec<u32>,
    /// Free blocks that are promised to open sequences for the rest of their prompts.
    promised: usize,
    tables: HashMap<SeqId, Table>,
    /// Committed tokens of all sequences.
    live: usize,
}

#[derive(Default)]
struct Table {
    blocks: Vec<u32>,
    /// Blocks still to come of those that its prompt needs.
    promised: usize,
    granted: usize,
    committed: usize,
}

impl Paged {
    /// `slots / block` whole blocks; a rest of slots smaller than a block stays unused.
    pub fn new(slots: usize, block: usize) -> Paged {
        let blocks = slots / block;
        // Popping from the end hands the lowest block out first.
        let free = (0..blocks as u32).rev().collect();
        Paged { block, blocks, free, promised: 0, tables: HashMap::new(), live: 0 }
    }

    fn table(&mut self, seq: SeqId) -> &mut Table {
        self.tables.get_mut(&seq).expect("the engine names open sequences only")
    }
}

impl Allocator for Paged {
    fn open(&mut self, seq: SeqId, prompt: &[u32], _limit: Limit) -> Result<Grant, Full> {
        // Without a promise, sequences opened together would all count the same free blocks, and the last ones would
        // lose theirs in their first steps.
        let promised = prompt.len().div_ceil(self.block);
        if promised + self.promised > self.free.len() {
            return Err(Full);
        }
        self.promised += promised;
        self.tables.insert(seq, Table { promised, ..Table::default() });
        Ok(Grant::default())
    }

    fn extend(&mut self, seq: SeqId, n: usize) -> Result<Grant, Full> {
        let (block, free, promised) = (self.block, self.free.len(), self.promised);
        let table = self.table(seq);
        let (start, end) = (table.granted, table.granted + n);
        let missing = end.div_ceil(block) - table.blocks.len();
        let promised_to_others = promised - table.promised;
        if missing + promised_to_others > free {
            return Err(Full);
        }
        let kept_promise = missing.min(table.promised);
        self.promised -= kept_promise;
        let taken = self.free.split_off(free - missing);
        let table = self.table(seq);
        table.promised -= kept_promise;
        table.blocks.extend(taken.into_iter().rev());
        table.granted = end;
        let slot = |position: usize| table.blocks[position / block] * block as u32 + (position % block) as u32;
        Ok(Grant { slots: (start..end).map(slot).collect(), copies: Vec::new() })
    }

    fn commit(&mut self, seq: SeqId, ids: &[u32]) -> Vec<Moved> {
        let table = self.table(seq);
        table.committed += ids.len();
        debug_assert!(table.committed <= table.granted, "only granted slots hold tokens");
        self.live += ids.len();
        Vec::new()
    }

    fn keep(&mut self, seq: SeqId, Keep::Len(len): Keep) -> Vec<SlotCopy> {
        let block = self.block;
        let table = self.table(seq);
        debug_assert!(table.committed <= len && len <= table.granted, "committed tokens stay");
        table.granted = len;
        let spare = table.blocks.split_off(len.div_ceil(block));
        self.free.extend(spare.into_iter().rev());
        Vec::new()
    }

    fn free(&mut self, seq: SeqId) {
        if let Some(table) = self.tables.remove(&seq) {
            self.promised -= table.promised;
            self.live -= table.committed;
            self.free.extend(table.blocks.into_iter().rev());
        }
    }

    fn usage(&self) -> Usage {
        let taken = (self.blocks - self.free.len() + self.promised) * self.block;
        let (capacity, live) = (self.blocks * self.block, self.live);
        Usage { capacity, live, reserved: taken - live, ..Usage::default() }
    }

    fn largest(&self) -> usize {
        self.blocks * self.block
    }

    fn holding(&self, seq: SeqId) -> Holding {
        self.tables.get(&seq).map_or(Holding::default(), |table| Holding {
            slots: (table.blocks.len() + table.promised) * self.block,
            room: (table.blocks.len() + table.promised) * self.block - table.granted,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_come_one_by_one_and_go_back_across_a_boundary() {
        let mut kv = Paged::new(13, 4);
        let any = Limit { max_len: 100, oracle_len: None };
        assert_eq!(kv.usage().capacity, 12);
        kv.open(1, &[0; 5], any).unwrap();
        assert_eq!(kv.usage(), Usage { capacity: 12, live: 0, reserved: 8, ..Usage::default() });
        assert_eq!(kv.open(2, &[0; 5], any), Err(Full));
        kv.open(2, &[0; 1], any).unwrap();
        assert_eq!(kv.extend(1, 5).unwrap().slots, [0, 1, 2, 3, 4]);
        assert_eq!(kv.extend(2, 1).unwrap().slots, [8]);
        assert_eq!(kv.open(3, &[0; 1], any), Err(Full));
        assert_eq!(kv.extend(1, 4), Err(Full));
        kv.commit(1, &[7; 3]);
        assert_eq!(kv.usage(), Usage { capacity: 12, live: 3, reserved: 9, ..Usage::default() });
        // Back over the boundary at four: the second block is free for the other sequence.
        kv.keep(1, Keep::Len(4));
        assert_eq!(kv.extend(2, 5).unwrap().slots, [9, 10, 11, 4, 5]);
        kv.free(1);
        kv.free(2);
        assert_eq!(kv.usage(), Usage { capacity: 12, live: 0, reserved: 0, ..Usage::default() });
    }
}

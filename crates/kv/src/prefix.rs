//! Paged allocation whose full blocks stay in the cache as a radix tree and are shared by sequences that begin alike, after
//! SGLang's RadixAttention (Zheng et al., 2024); what nobody reads is evicted, least recently used first.
//!
//! A node of the tree is a block of committed tokens, and its path from the root is what stands before them. A sequence reads
//! every node of its path, so a node that nobody reads has only such nodes below it, and all of them can be evicted. No two
//! nodes hold the same tokens after the same path: a sequence that computed them again gives its block back.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use specquant_core::{SeqId, SlotCopy};

use crate::{Allocator, Full, Grant, Holding, Keep, Limit, Moved, Usage};

/// The path above the first block of a sequence.
const ROOT: u32 = u32::MAX;

/// Blocks in a tree of tokens.
pub struct Prefix {
    block: usize,
    blocks: usize,
    /// Blocks with nothing in them, used from the end.
    free: Vec<u32>,
    /// Blocks that are promised to open sequences for the rest of their prompts.
    promised: usize,
    /// The node in each block.
    nodes: Vec<Option<Node>>,
    /// Nodes by the one above them and their tokens: those that begin alike are neighbours.
    children: BTreeMap<(u32, Box<[u32]>), u32>,
    /// Nodes that nobody reads and that have none below them, by when they were last read.
    evictable: BTreeSet<(u64, u32)>,
    /// Nodes that nobody reads.
    idle: usize,
    /// Nodes that more than one sequence reads.
    shared: usize,
    /// Committed tokens outside the tree.
    loose: usize,
    tables: HashMap<SeqId, Table>,
    now: u64,
    counts: Counts,
}

/// What a prefix cache has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Tokens of opened prompts.
    pub asked: u64,
    /// Of those, tokens that were in the cache.
    pub hit: u64,
    /// Blocks whose tokens were given up to make room.
    pub evicted: u64,
    /// Nodes that operations have looked at or changed.
    pub touched: u64,
}

struct Node {
    above: u32,
    tokens: Box<[u32]>,
    /// Nodes right below it.
    below: usize,
    /// Sequences on whose path it lies.
    readers: usize,
    /// When it was last read, if nobody reads it.
    read: u64,
}

#[derive(Default)]
struct Table {
    /// The blocks of its tokens, in order; those that committed tokens fill are nodes.
    blocks: Vec<u32>,
    /// Blocks that are nodes.
    nodes: usize,
    /// Blocks still to come of those that its prompt needs.
    promised: usize,
    granted: usize,
    /// Committed tokens that are in no node yet.
    tail: Vec<u32>,
}

impl Prefix {
    /// `slots / block` whole blocks; a rest of slots smaller than a block stays unused.
    pub fn new(slots: usize, block: usize) -> Prefix {
        let blocks = slots / block;
        Prefix {
            block,
            blocks,
            free: (0..blocks as u32).rev().collect(),
            promised: 0,
            nodes: (0..blocks).map(|_| None).collect(),
            children: BTreeMap::new(),
            evictable: BTreeSet::new(),
            idle: 0,
            shared: 0,
            loose: 0,
            tables: HashMap::new(),
            now: 0,
            counts: Counts::default(),
        }
    }

    /// What the cache has done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn table(&mut self, seq: SeqId) -> &mut Table {
        self.tables.get_mut(&seq).expect("the engine names open sequences only")
    }

    fn node(&mut self, block: u32) -> &mut Node {
        self.counts.touched += 1;
        self.nodes[block as usize].as_mut().expect("paths and children name nodes only")
    }

    /// The nodes that hold the first whole blocks of `tokens`.
    fn matched(&mut self, tokens: &[u32]) -> Vec<u32> {
        let (mut path, mut above) = (Vec::new(), ROOT);
        for tokens in tokens.chunks_exact(self.block) {
            self.counts.touched += 1;
            let Some(&node) = self.children.get(&(above, Box::from(tokens))) else { break };
            path.push(node);
            above = node;
        }
        path
    }

    /// The node below `above` that begins with the most of `tokens`, and how many those are. Neighbours in order share the
    /// longest beginnings.
    fn begins(&mut self, above: u32, tokens: &[u32]) -> Option<(u32, usize)> {
        self.counts.touched += 2;
        let key = (above, Box::from(tokens));
        let alike = |(at, have): &(u32, Box<[u32]>)| {
            if *at == above { have.iter().zip(tokens).take_while(|(a, b)| a == b).count() } else { 0 }
        };
        let after = self.children.range(&key..).next().map(|(key, &node)| (node, alike(key)));
        let before = self.children.range(..&key).next_back().map(|(key, &node)| (node, alike(key)));
        after.into_iter().chain(before).filter(|(_, n)| *n > 0).max_by_key(|(_, n)| *n)
    }

    /// One more sequence reads a node.
    fn acquire(&mut self, block: u32) {
        let node = self.node(block);
        node.readers += 1;
        let (readers, read) = (node.readers, node.read);
        if readers == 1 {
            self.idle -= 1;
            self.evictable.remove(&(read, block));
        }
        self.shared += usize::from(readers == 2);
    }

    /// One sequence less reads a node.
    fn release(&mut self, block: u32) {
        let now = self.now;
        let node = self.node(block);
        node.readers -= 1;
        node.read = now;
        let (readers, below) = (node.readers, node.below);
        self.shared -= usize::from(readers == 1);
        if readers == 0 {
            self.idle += 1;
            if below == 0 {
                self.evictable.insert((now, block));
            }
        }
    }

    /// A block with nothing in it, at the cost of the tokens that were read longest ago. There must be one.
    fn take(&mut self) -> u32 {
        if let Some(block) = self.free.pop() {
            return block;
        }
        let (_, block) = self.evictable.pop_first().expect("idle nodes were counted before");
        let node = self.nodes[block as usize].take().expect("evictable blocks are nodes");
        self.counts.evicted += 1;
        self.counts.touched += 1;
        self.idle -= 1;
        self.children.remove(&(node.above, node.tokens));
        if node.above != ROOT {
            let above = self.node(node.above);
            above.below -= 1;
            let (readers, below, read) = (above.readers, above.below, above.read);
            if readers == 0 && below == 0 {
                self.evictable.insert((read, node.above));
            }
        }
        block
    }

    /// Blocks that can be had and are not promised.
    fn available(&self) -> usize {
        self.free.len() + self.idle - self.promised
    }

    /// Makes a node of the first full block that is none yet. Where there is one of the same tokens, that one takes its place,
    /// and the block is free.
    fn grow(&mut self, seq: SeqId) -> Option<u32> {
        let size = self.block;
        self.loose -= size;
        let table = self.table(seq);
        let tokens: Box<[u32]> = table.tail.drain(..size).collect();
        let at = table.nodes;
        let (block, above) = (table.blocks[at], at.checked_sub(1).map_or(ROOT, |above| table.blocks[above]));
        table.nodes += 1;
        self.counts.touched += 1;
        if let Some(&other) = self.children.get(&(above, tokens.clone())) {
            self.acquire(other);
            self.free.push(block);
            self.table(seq).blocks[at] = other;
            return Some(other);
        }
        if above != ROOT {
            self.node(above).below += 1;
        }
        self.children.insert((above, tokens.clone()), block);
        self.nodes[block as usize] = Some(Node { above, tokens, below: 0, readers: 1, read: 0 });
        None
    }

    /// The slots of a sequence's tokens at these positions.
    fn slots(&self, seq: SeqId, positions: std::ops::Range<usize>) -> Vec<u32> {
        let (size, blocks) = (self.block, &self.tables[&seq].blocks);
        positions.map(|at| blocks[at / size] * size as u32 + (at % size) as u32).collect()
    }
}

impl Allocator for Prefix {
    fn open(&mut self, seq: SeqId, prompt: &[u32], _limit: Limit) -> Result<Grant, Full> {
        let size = self.block;
        // The last token is always run, for its answer.
        let known = &prompt[..prompt.len().saturating_sub(1)];
        let path = self.matched(known);
        let unread = |&&block: &&u32| self.nodes[block as usize].as_ref().is_some_and(|node| node.readers == 0);
        let idle = path.iter().filter(unread).count();
        let promised = prompt.len().div_ceil(size) - path.len();
        if promised + idle > self.available() {
            return Err(Full);
        }
        self.now += 1;
        self.promised += promised;
        path.iter().for_each(|&block| self.acquire(block));
        let (nodes, granted) = (path.len(), path.len() * size);
        let part = self.begins(path.last().copied().unwrap_or(ROOT), &known[granted..]);
        self.tables.insert(seq, Table { blocks: path, nodes, promised, granted, tail: Vec::new() });
        let mut copies = Vec::new();
        if let Some((from, n)) = part {
            // The sequence writes into this block from its first other token on, so it gets a copy. The block may be the one
            // that was copied from, if that was the next to be evicted.
            let fresh = self.extend(seq, n)?;
            copies = fresh.slots.iter().zip(from * size as u32..).map(|(&to, from)| SlotCopy { from, to }).collect();
            self.commit(seq, &known[granted..granted + n]);
        }
        let slots = self.slots(seq, 0..self.tables[&seq].granted);
        self.counts.asked += prompt.len() as u64;
        self.counts.hit += slots.len() as u64;
        Ok(Grant { slots, copies })
    }

    fn extend(&mut self, seq: SeqId, n: usize) -> Result<Grant, Full> {
        let (size, available) = (self.block, self.available());
        let table = self.table(seq);
        let (start, end) = (table.granted, table.granted + n);
        let missing = end.div_ceil(size) - table.blocks.len();
        let kept_promise = missing.min(table.promised);
        if missing > available + kept_promise {
            return Err(Full);
        }
        table.promised -= kept_promise;
        table.granted = end;
        self.promised -= kept_promise;
        for _ in 0..missing {
            let block = self.take();
            self.table(seq).blocks.push(block);
        }
        Ok(Grant { slots: self.slots(seq, start..end), copies: Vec::new() })
    }

    fn commit(&mut self, seq: SeqId, ids: &[u32]) -> Vec<Moved> {
        let size = self.block;
        self.loose += ids.len();
        let table = self.table(seq);
        table.tail.extend_from_slice(ids);
        debug_assert!(table.nodes * size + table.tail.len() <= table.granted, "only granted slots hold tokens");
        let mut moved = Vec::new();
        while self.table(seq).tail.len() >= size {
            let start = self.table(seq).nodes * size;
            if let Some(block) = self.grow(seq) {
                let to = |at| Moved { at: start + at, slot: block * size as u32 + at as u32 };
                moved.extend((0..size).map(to));
            }
        }
        moved
    }

    fn keep(&mut self, seq: SeqId, Keep::Len(len): Keep) -> Vec<SlotCopy> {
        let size = self.block;
        let table = self.table(seq);
        debug_assert!(table.nodes * size + table.tail.len() <= len && len <= table.granted, "committed tokens stay");
        table.granted = len;
        let spare = table.blocks.split_off(len.div_ceil(size));
        self.free.extend(spare.into_iter().rev());
        Vec::new()
    }

    fn free(&mut self, seq: SeqId) {
        let Some(table) = self.tables.remove(&seq) else { return };
        self.now += 1;
        self.promised -= table.promised;
        self.loose -= table.tail.len();
        let (nodes, own) = table.blocks.split_at(table.nodes);
        self.free.extend(own.iter().rev());
        // The deepest first: of nodes that were read at the same time, the ones below go before the one above.
        nodes.iter().rev().for_each(|&block| self.release(block));
    }

    fn usage(&self) -> Usage {
        let size = self.block;
        let live = (self.children.len() - self.idle) * size + self.loose;
        let taken = (self.blocks - self.free.len() - self.idle + self.promised) * size;
        Usage {
            capacity: self.blocks * size,
            live,
            shared: self.shared * size,
            reserved: taken - live,
            // Promised blocks may have to come from here.
            cached: self.idle.min(self.available()) * size,
            ..Usage::default()
        }
    }

    fn largest(&self) -> usize {
        self.blocks * self.block
    }

    fn holding(&self, seq: SeqId) -> Holding {
        self.tables.get(&seq).map_or(Holding::default(), |table| {
            let slots = (table.blocks.len() + table.promised) * self.block;
            Holding { slots, room: slots - table.granted }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Limit = Limit { max_len: 100, oracle_len: None };

    /// Opens a sequence and runs its whole prompt; returns how many of its tokens were in the cache.
    fn run(kv: &mut Prefix, seq: SeqId, prompt: &[u32]) -> usize {
        let cached = kv.open(seq, prompt, ANY).unwrap().slots.len();
        kv.extend(seq, prompt.len() - cached).unwrap();
        kv.commit(seq, &prompt[cached..]);
        cached
    }

    #[test]
    fn full_blocks_are_shared_and_a_part_of_one_is_copied() {
        let mut kv = Prefix::new(32, 4);
        assert_eq!(run(&mut kv, 1, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), 0);
        let grant = kv.open(2, &[1, 2, 3, 4, 5, 6, 70, 80, 90], ANY).unwrap();
        assert_eq!(grant.slots, [0, 1, 2, 3, 12, 13]);
        assert_eq!(grant.copies, [SlotCopy { from: 4, to: 12 }, SlotCopy { from: 5, to: 13 }]);
        // Ten tokens of the first; of the second four are the same slots, two a copy, and room for three is promised.
        assert_eq!(kv.usage(), Usage { capacity: 32, live: 12, shared: 4, reserved: 8, ..Usage::default() });
        // The last token of a prompt is run although the cache has it.
        assert_eq!(kv.open(3, &[1, 2, 3, 4], ANY).unwrap().slots.len(), 3);
        let Counts { asked, hit, evicted, .. } = kv.counts();
        assert_eq!((asked, hit, evicted), (10 + 9 + 4, 6 + 3, 0));
        (1..=3).for_each(|seq| kv.free(seq));
        // The two full blocks of the first stay.
        assert_eq!(kv.usage(), Usage { capacity: 32, cached: 8, ..Usage::default() });
    }

    #[test]
    fn the_same_tokens_computed_twice_are_kept_once() {
        let mut kv = Prefix::new(32, 4);
        let prompt = [1, 2, 3, 4, 5];
        for seq in [1, 2] {
            kv.open(seq, &prompt, ANY).unwrap();
            kv.extend(seq, 5).unwrap();
        }
        assert_eq!(kv.commit(1, &prompt), []);
        let moved: Vec<Moved> = (0..4).map(|at| Moved { at, slot: at as u32 }).collect();
        assert_eq!(kv.commit(2, &prompt), moved);
        assert_eq!(kv.usage(), Usage { capacity: 32, live: 6, shared: 4, reserved: 6, ..Usage::default() });
        assert_eq!(kv.extend(2, 1).unwrap().slots, [13]);
    }

    #[test]
    fn what_was_read_longest_ago_is_evicted_first_and_the_deepest_of_it() {
        let mut kv = Prefix::new(16, 2);
        run(&mut kv, 1, &[1, 1, 1, 1]);
        run(&mut kv, 2, &[2, 2, 2, 2]);
        kv.free(1);
        kv.free(2);
        // Two blocks of each are in the cache, and four are free; the first is read again.
        assert_eq!(run(&mut kv, 3, &[1, 1, 1, 1, 3]), 4);
        kv.free(3);
        assert_eq!(run(&mut kv, 4, &[9; 7]), 0);
        assert_eq!(kv.counts().evicted, 0);
        assert_eq!(run(&mut kv, 5, &[8; 2]), 0);
        assert_eq!(kv.counts().evicted, 1);
        kv.free(5);
        assert_eq!(run(&mut kv, 6, &[2, 2, 2, 2, 3]), 2);
    }

    #[test]
    fn no_operation_touches_more_nodes_than_the_path_has() {
        let mut kv = Prefix::new(1 << 12, 16);
        let mut state = 1u64;
        for seq in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let prompt: Vec<u32> = (0..64).map(|at| (state >> (33 + at / 16)) as u32 % 256).collect();
            let before = kv.counts().touched;
            run(&mut kv, seq, &prompt);
            if seq >= 20 {
                kv.free(seq - 20);
            }
            // Four nodes are looked up, two looked at, and four made, taken with the ones above them, and let go.
            let touched = kv.counts().touched - before;
            assert!(touched <= 4 + 2 + 4 * 2 + 4 * 2 + 4, "{touched}");
        }
        assert!(kv.counts().evicted > 10_000);
    }
}

//! What must hold of every allocator after any sequence of operations.
//!
//! A cache remembers which token at which position each slot holds, so that a sequence that was given a wrong slot, or lost
//! one to another, cannot read its own tokens back.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use specquant_core::{Kv, Reserve, SeqId, SlotCopy};

use crate::{Allocator, Keep, Limit, allocator};

/// One random operation on sequence `seq % 6`.
type Op = (u8, SeqId, usize);

/// What a sequence holds.
#[derive(Default)]
struct Held {
    tokens: Vec<u32>,
    slots: Vec<u32>,
    committed: usize,
    /// Tokens of its prompt; 0 once it has given slots back.
    promised: usize,
}

/// Runs operations and keeps what they write.
struct Rig {
    kv: Box<dyn Allocator>,
    cache: Vec<Option<(u32, usize)>>,
    all: HashMap<SeqId, Held>,
    opened: SeqId,
}

/// Runs the operations and checks after each that every sequence reads its own tokens, that usage adds up, and that the slots
/// for a prompt are there when they are asked for.
fn check(kv: Kv, slots: usize, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut rig = Rig { kv: allocator(kv, slots), cache: vec![None; slots], all: HashMap::new(), opened: 0 };
    for &op in ops {
        rig.apply(op)?;
        rig.adds_up(kv)?;
    }
    for seq in rig.all.into_keys() {
        rig.kv.free(seq);
    }
    let usage = rig.kv.usage();
    prop_assert_eq!(usage.free() + usage.cached, usage.capacity);
    Ok(())
}

/// Tokens of which many sequences have the same.
fn token(seq: SeqId, at: usize) -> u32 {
    if at < 9 { (seq % 2) as u32 } else { (seq % 3) as u32 + at as u32 / 8 }
}

impl Rig {
    fn copy(&mut self, copies: &[SlotCopy]) {
        copies.iter().for_each(|copy| self.cache[copy.to as usize] = self.cache[copy.from as usize]);
    }

    fn apply(&mut self, (op, seq, n): Op) -> Result<(), TestCaseError> {
        let seq = *self.all.keys().find(|open| **open % 6 == seq).unwrap_or(&(self.opened * 6 + seq));
        if !self.all.contains_key(&seq) {
            return self.open(seq, n);
        }
        match op {
            0..=4 => self.extend(seq, n)?,
            5..=6 => {
                let held = self.all.get_mut(&seq).unwrap();
                let more = n.min(held.slots.len() - held.committed);
                for moved in self.kv.commit(seq, &held.tokens[held.committed..][..more]) {
                    held.slots[moved.at] = moved.slot;
                }
                held.committed += more;
            }
            7..=8 => {
                let held = self.all.get_mut(&seq).unwrap();
                let len = (held.committed + n).min(held.slots.len());
                held.promised = if len < held.slots.len() { 0 } else { held.promised };
                held.slots.truncate(len);
                held.tokens.truncate(len);
                let copies = self.kv.keep(seq, Keep::Len(len));
                self.copy(&copies);
            }
            _ => {
                self.kv.free(seq);
                self.all.remove(&seq);
            }
        }
        Ok(())
    }

    fn open(&mut self, seq: SeqId, n: usize) -> Result<(), TestCaseError> {
        self.opened += 1;
        let prompt: Vec<u32> = (0..n).map(|at| token(seq, at)).collect();
        let before = self.kv.usage();
        let Ok(grant) = self.kv.open(seq, &prompt, Limit { max_len: 4 * n, oracle_len: Some(3 * n) }) else {
            prop_assert_eq!(self.kv.usage(), before);
            return Ok(());
        };
        self.copy(&grant.copies);
        let known = grant.slots.len();
        prop_assert!(known < n.max(1), "the last token of a prompt is run");
        let held = Held { tokens: prompt[..known].to_vec(), slots: grant.slots, committed: known, promised: n };
        self.all.insert(seq, held);
        Ok(())
    }

    fn extend(&mut self, seq: SeqId, n: usize) -> Result<(), TestCaseError> {
        let before = self.kv.usage();
        let room = self.kv.holding(seq).room;
        let held = self.all.get_mut(&seq).unwrap();
        let Ok(grant) = self.kv.extend(seq, n) else {
            prop_assert_eq!(self.kv.usage(), before);
            prop_assert!(held.slots.len() + n > held.promised, "a prompt was promised its slots");
            prop_assert!(n > room, "{} of a room of {}", n, room);
            return Ok(());
        };
        prop_assert_eq!(grant.slots.len(), n);
        if n <= room {
            prop_assert_eq!(self.kv.usage().free(), before.free());
        }
        for slot in grant.slots {
            let at = held.slots.len();
            // Drafts differ from what is committed in the end.
            held.tokens.push(token(seq, at));
            held.slots.push(slot);
            self.cache[slot as usize] = Some((token(seq, at), at));
        }
        Ok(())
    }

    /// No slot is written by two sequences, none lies outside, and usage counts them all.
    fn adds_up(&self, kv: Kv) -> Result<(), TestCaseError> {
        let usage = self.kv.usage();
        let mut own = HashSet::new();
        let mut committed = HashSet::new();
        let mut held = 0;
        for (seq, sequence) in &self.all {
            held += sequence.slots.len();
            for (at, &slot) in sequence.slots.iter().enumerate() {
                prop_assert!((slot as usize) < usage.capacity);
                prop_assert_eq!(self.cache[slot as usize], Some((sequence.tokens[at], at)), "{} of {}", at, seq);
                if at < sequence.committed {
                    committed.insert(slot);
                } else {
                    prop_assert!(own.insert(slot), "slot {} is written twice", slot);
                }
            }
        }
        prop_assert!(own.is_disjoint(&committed));
        prop_assert!(
            usage.live + usage.reserved + usage.rounding + usage.cached <= usage.capacity,
            "{} {:?}",
            kv,
            usage
        );
        prop_assert!(own.len() + committed.len() <= usage.live + usage.reserved);
        prop_assert_eq!(usage.live, committed.len());
        if !matches!(kv, Kv::Prefix { .. }) {
            prop_assert_eq!(own.len() + committed.len(), held);
            prop_assert_eq!((usage.shared, usage.cached), (0, 0));
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn sequences_read_their_own_tokens_and_all_slots_come_back(
        slots in 1usize..200,
        block in 1u32..20,
        ops in proptest::collection::vec((0u8..10, 0u64..6, 0usize..30), 0..120),
    ) {
        let reserved = [Reserve::Max, Reserve::Pow2, Reserve::Oracle].map(|reserve| Kv::Buddy { reserve });
        for kv in [Kv::Contiguous, Kv::Paged { block }, Kv::Prefix { block }].into_iter().chain(reserved) {
            check(kv, slots, &ops)?;
        }
    }
}

//! What must hold of every allocator after any sequence of operations.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use specquant_core::{Kv, SeqId};

use crate::{Allocator, Keep, Limit, allocator};

/// One random operation on sequence `seq % 6`.
type Op = (u8, SeqId, usize);

/// What a sequence holds.
#[derive(Default)]
struct Held {
    slots: Vec<u32>,
    committed: usize,
    /// Tokens of its prompt; 0 once it has given slots back.
    promised: usize,
}

/// Runs the operations and checks after each that no slot is held twice, that usage adds up, and that the slots for a
/// prompt are there when they are asked for.
fn check(mut kv: Box<dyn Allocator>, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut all: HashMap<SeqId, Held> = HashMap::new();
    for &op in ops {
        apply(&mut *kv, op, &mut all)?;
        adds_up(&*kv, &all)?;
    }
    for seq in 0..6 {
        kv.free(seq);
    }
    prop_assert_eq!(kv.usage().live + kv.usage().reserved, 0);
    Ok(())
}

fn apply(kv: &mut dyn Allocator, (op, seq, n): Op, all: &mut HashMap<SeqId, Held>) -> Result<(), TestCaseError> {
    let Some(Held { slots, committed, promised }) = all.get_mut(&seq) else {
        if kv.open(seq, &vec![0; n], Limit { max_len: 4 * n }).is_ok() {
            all.insert(seq, Held { promised: n, ..Held::default() });
        }
        return Ok(());
    };
    match op {
        0..=4 => {
            let before = kv.usage();
            if let Ok(grant) = kv.extend(seq, n) {
                prop_assert_eq!(grant.slots.len(), n);
                slots.extend(grant.slots);
            } else {
                prop_assert_eq!(kv.usage(), before);
                prop_assert!(slots.len() + n > *promised, "a prompt was promised its slots");
            }
        }
        5..=6 => {
            let more = n.min(slots.len() - *committed);
            kv.commit(seq, &vec![0; more]);
            *committed += more;
        }
        7..=8 => {
            let len = (*committed + n).min(slots.len());
            *promised = if len < slots.len() { 0 } else { *promised };
            kv.keep(seq, Keep::Len(len));
            slots.truncate(len);
        }
        _ => {
            kv.free(seq);
            all.remove(&seq);
        }
    }
    Ok(())
}

/// No slot is held twice, none lies outside, and usage counts them all.
fn adds_up(kv: &dyn Allocator, all: &HashMap<SeqId, Held>) -> Result<(), TestCaseError> {
    let usage = kv.usage();
    let slots: Vec<u32> = all.values().flat_map(|held| &held.slots).copied().collect();
    prop_assert!(slots.iter().all(|&slot| (slot as usize) < usage.capacity));
    prop_assert_eq!(slots.iter().collect::<HashSet<_>>().len(), slots.len());
    prop_assert_eq!(usage.live, all.values().map(|held| held.committed).sum::<usize>());
    prop_assert!(usage.live + usage.reserved <= usage.capacity && slots.len() <= usage.live + usage.reserved);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn slots_are_held_once_and_all_come_back(
        slots in 1usize..200,
        block in 1u32..20,
        ops in proptest::collection::vec((0u8..10, 0u64..6, 0usize..30), 0..80),
    ) {
        for kv in [Kv::Contiguous, Kv::Paged { block }] {
            check(allocator(kv, slots), &ops)?;
        }
    }
}

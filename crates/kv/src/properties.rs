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
    let capacity = kv.usage().capacity;
    let mut held: HashMap<SeqId, Held> = HashMap::new();
    for &(op, seq, n) in ops {
        match (op, held.contains_key(&seq)) {
            (_, false) => {
                if kv.open(seq, &vec![0; n], Limit { max_len: 4 * n }).is_ok() {
                    held.insert(seq, Held { promised: n, ..Held::default() });
                }
            }
            (0..=4, true) => {
                let Held { slots, promised, .. } = held.get_mut(&seq).unwrap();
                let before = kv.usage();
                match kv.extend(seq, n) {
                    Ok(grant) => {
                        prop_assert_eq!(grant.slots.len(), n);
                        slots.extend(grant.slots);
                    }
                    Err(_) => {
                        prop_assert_eq!(kv.usage(), before);
                        prop_assert!(slots.len() + n > *promised, "a prompt was promised its slots");
                    }
                }
            }
            (5..=6, true) => {
                let Held { slots, committed, .. } = held.get_mut(&seq).unwrap();
                let more = n.min(slots.len() - *committed);
                kv.commit(seq, &vec![0; more]);
                *committed += more;
            }
            (7..=8, true) => {
                let Held { slots, committed, promised } = held.get_mut(&seq).unwrap();
                let len = (*committed + n).min(slots.len());
                *promised = if len < slots.len() { 0 } else { *promised };
                kv.keep(seq, Keep::Len(len));
                slots.truncate(len);
            }
            (_, true) => {
                kv.free(seq);
                held.remove(&seq);
            }
        }
        let all: Vec<u32> = held.values().flat_map(|held| &held.slots).copied().collect();
        prop_assert!(all.iter().all(|&slot| (slot as usize) < capacity));
        prop_assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        let usage = kv.usage();
        prop_assert_eq!(usage.live, held.values().map(|held| held.committed).sum::<usize>());
        prop_assert!(usage.live + usage.reserved <= capacity && all.len() <= usage.live + usage.reserved);
    }
    for seq in 0..6 {
        kv.free(seq);
    }
    prop_assert_eq!(kv.usage().live + kv.usage().reserved, 0);
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

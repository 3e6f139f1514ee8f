//! Which slots of the KV cache hold the tokens of a sequence, as pure integers: nothing here knows of tensors.
//!
//! An allocator never lets two sequences write one slot, and every slot comes back when its sequences are freed.

mod buddy;
mod contiguous;
mod paged;
mod pieces;
mod prefix;
#[cfg(test)]
mod properties;

use specquant_core::{Kv, SeqId, SlotCopy};

pub use buddy::Buddy;
pub use contiguous::Contiguous;
pub use paged::Paged;
pub use prefix::Prefix;
pub use specquant_core::KvUsage as Usage;

/// Hands out the slots of one model's KV cache.
pub trait Allocator: Send {
    /// Starts a sequence with this prompt. Grants the slots of those of its first tokens that are in the cache already, fewer
    /// than the prompt has, and counts them as committed.
    fn open(&mut self, seq: SeqId, prompt: &[u32], limit: Limit) -> Result<Grant, Full>;

    /// Grants slots for the next `n` tokens. On `Full` nothing has changed.
    fn extend(&mut self, seq: SeqId, n: usize) -> Result<Grant, Full>;

    /// Notes that the next granted slots hold these verified tokens for good. Where the cache had them already, they are read
    /// from there from now on.
    fn commit(&mut self, seq: SeqId, ids: &[u32]) -> Vec<Moved>;

    /// Takes back what was granted beyond the tokens to keep, which must cover the committed ones. The copies are to
    /// be run before the slots are used again.
    fn keep(&mut self, seq: SeqId, keep: Keep) -> Vec<SlotCopy>;

    /// Ends a sequence and takes all its slots back.
    fn free(&mut self, seq: SeqId);

    /// How the slots are used right now.
    fn usage(&self) -> Usage;

    /// The most tokens that a sequence can hold when it is alone.
    fn largest(&self) -> usize;

    /// What a sequence holds.
    fn holding(&self, seq: SeqId) -> Holding;
}

/// What is known of a sequence's length when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The most tokens that the sequence can come to hold, lookahead included.
    pub max_len: usize,
    /// The tokens that it will hold in the end, if that is known.
    pub oracle_len: Option<usize>,
}

/// What one sequence holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Slots that no other sequence can take while it lives, shared ones included.
    pub slots: usize,
    /// Tokens that it can still be granted without more of them.
    pub room: usize,
}

/// There is no room now; there may be once another sequence has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Slots for tokens, in the order of their positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// One slot for each token.
    pub slots: Vec<u32>,
    /// To be run, in order, before the slots are written or read.
    pub copies: Vec<SlotCopy>,
}

/// A token of a sequence that lies in another slot from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its position.
    pub at: usize,
    /// The slot.
    pub slot: u32,
}

/// Which granted tokens stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The first tokens, this many.
    Len(usize),
}

/// Makes the allocator that `kv` names, over `slots` slots.
pub fn allocator(kv: Kv, slots: usize) -> Box<dyn Allocator> {
    match kv {
        Kv::Contiguous => Box::new(Contiguous::new(slots)),
        Kv::Buddy { reserve } => Box::new(Buddy::new(slots, reserve)),
        Kv::Paged { block } => Box::new(Paged::new(slots, block as usize)),
        Kv::Prefix { block } => Box::new(Prefix::new(slots, block as usize)),
    }
}

//! Which slots of the KV cache hold the tokens of a sequence, as pure integers: nothing here knows of tensors.
//!
//! An allocator never hands one slot to two sequences, and every slot comes back when its sequence is freed.

mod contiguous;
mod paged;
#[cfg(test)]
mod properties;

use specquant_core::{Kv, SeqId, SlotCopy};

pub use contiguous::Contiguous;
pub use paged::Paged;

/// Hands out the slots of one model's KV cache.
pub trait Allocator: Send {
    /// Starts a sequence with this prompt. Returns how many of the prompt's first tokens are in the cache already.
    fn open(&mut self, seq: SeqId, prompt: &[u32], limit: Limit) -> Result<Cached, Full>;

    /// Grants slots for the next `n` tokens. On `Full` nothing has changed.
    fn extend(&mut self, seq: SeqId, n: usize) -> Result<Grant, Full>;

    /// Notes that the next granted slots hold these verified tokens for good.
    fn commit(&mut self, seq: SeqId, ids: &[u32]);

    /// Takes back what was granted beyond the tokens to keep, which must cover the committed ones. The copies are to
    /// be run before the slots are used again.
    fn keep(&mut self, seq: SeqId, keep: Keep) -> Vec<SlotCopy>;

    /// Ends a sequence and takes all its slots back.
    fn free(&mut self, seq: SeqId);

    /// How the slots are used right now.
    fn usage(&self) -> Usage;
}

/// What is known of a sequence's length when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The most tokens that the sequence can come to hold, lookahead included.
    pub max_len: usize,
}

/// Tokens of a prompt that need not be computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached(pub usize);

/// There is no room now; there may be once another sequence has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Slots for new tokens, in the order of their positions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// One slot for each token.
    pub slots: Vec<u32>,
    /// To be run before the slots are written.
    pub copies: Vec<SlotCopy>,
}

/// Which granted tokens stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The first tokens, this many.
    Len(usize),
}

/// Slots by state; `live + reserved <= capacity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// All slots.
    pub capacity: usize,
    /// Slots of committed tokens.
    pub live: usize,
    /// Slots that no other sequence can take, less the live ones.
    pub reserved: usize,
}

/// Makes the allocator that `kv` names, over `slots` slots.
pub fn allocator(kv: Kv, slots: usize) -> Box<dyn Allocator> {
    match kv {
        Kv::Contiguous => Box::new(Contiguous::new(slots)),
        Kv::Paged { block } => Box::new(Paged::new(slots, block as usize)),
    }
}

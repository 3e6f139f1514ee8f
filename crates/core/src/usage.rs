//! The slots of a KV cache by what they are doing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Slots by state. What is left of `capacity` after all but `shared` is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct KvUsage {
    /// All slots.
    pub capacity: usize,
    /// Slots of committed tokens of open sequences; one that several sequences read counts once.
    pub live: usize,
    /// Of the live ones, those that more than one sequence reads.
    pub shared: usize,
    /// Slots that open sequences hold or were promised, less the live ones.
    pub reserved: usize,
    /// Slots that went with a reservation because blocks have certain sizes, and that nobody asked for.
    pub rounding: usize,
    /// Slots that ended sequences keep until the batch that they were in has ended.
    pub ended: usize,
    /// Slots of tokens that no open sequence reads, kept for those to come; given away when room is needed.
    pub cached: usize,
}

impl KvUsage {
    /// Slots that nobody holds.
    pub fn free(&self) -> usize {
        self.capacity - self.live - self.reserved - self.rounding - self.ended - self.cached
    }
}

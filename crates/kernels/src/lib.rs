//! The numeric kernels of specquant: packed matrices, the KV store, attention and the row-wise operations of a
//! Llama-shaped decoder, for burn's Flex backend.
//!
//! One invariant holds everywhere: per output element one fixed order of operations on a given instruction set
//! ([`Isa`]), so that the bits of a row do not depend on what else is in the call or on the thread count.

// Vector intrinsics, threads that share a borrowed job and memory maps cannot be had without `unsafe`; the workspace
// denies it everywhere else.
#![allow(unsafe_code)]
// A kernel and what launches it name every operand, and blocks of registers are arrays that loops index.
#![allow(clippy::too_many_arguments, clippy::too_many_lines, clippy::needless_range_loop)]

mod attention;
mod backend;
pub mod bare;
mod buffer;
mod codec;
mod exp;
mod flex;
mod isa;
mod kv_store;
mod linear;
mod mapped;
mod norm;
mod packed;
mod probe;
mod quantize;
mod rope;
mod silu;
mod simd;
mod team;
#[cfg(test)]
mod testing;

pub use backend::{Backend, DenseMatrix, Dtype, Heads, KvShape};
pub use isa::Isa;
pub use kv_store::KvStore;
pub use mapped::Mapped;
pub use packed::PackedMatrix;
pub use probe::{Reading, multiply_adds};
pub use rope::RopeTable;
pub use team::Team;

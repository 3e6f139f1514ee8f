//! The two models of a cell, by what they are for, and the room that a cell needs in their caches.

use specquant_core::{Kv, Request, RunSpec, WeightFormat};

/// What a model is for.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    Target,
    Draft,
}

impl Role {
    /// As messages call it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Target => "target",
            Role::Draft => "draft",
        }
    }

    /// Its weight format in a cell.
    pub(crate) fn weights(self, cell: &RunSpec) -> WeightFormat {
        match self {
            Role::Target => cell.weights,
            Role::Draft => cell.draft_weights(),
        }
    }

    /// The name under which the model of a cell is opened: `bundled` is the bundled model of this role.
    pub(crate) fn source(self, cell: &RunSpec) -> String {
        let name = match self {
            Role::Target => &cell.target,
            Role::Draft => &cell.draft,
        };
        if name == "bundled" { format!("bundled:{}", self.name()) } else { name.clone() }
    }
}

/// KV slots of a cell: as many as it asks for, or such that all sequences that run together can reach their full length, in
/// whole blocks.
pub(crate) fn slots_of(cell: &RunSpec, requests: &[Request], context: usize) -> usize {
    if let Some(slots) = cell.kv_pool {
        return slots;
    }
    let longest = requests.iter().map(|request| request.prompt.len() + request.max_new_tokens).max().unwrap_or(1);
    let longest = longest.min(context);
    let each = match cell.kv {
        Kv::Contiguous => longest,
        Kv::Buddy { .. } => longest.next_power_of_two(),
        Kv::Paged { block } | Kv::Prefix { block } => longest.next_multiple_of(block as usize),
    };
    cell.batching.limit().min(requests.len()) * each
}

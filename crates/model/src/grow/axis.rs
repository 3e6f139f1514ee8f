//! Where the rows and columns of an enlarged tensor come from.
//!
//! An axis lists for every new index the old one that stands there; `None` is filler.

use anyhow::{Result, ensure};

use super::Shape;
use crate::config::Config;

/// For every new index the old one, or `None` for filler.
pub(super) type Axis = Vec<Option<usize>>;

/// The axes of all tensors of a layer.
pub(super) struct Axes {
    /// Columns of the residual stream: the old ones first.
    pub(super) residual: Axis,
    /// Columns of the feed-forward layer: the old ones first.
    pub(super) inner: Axis,
    /// Rows of the query projection, by element of a head as the rotary embedding pairs them.
    pub(super) query: Axis,
    /// Rows of the key projection, paired likewise.
    pub(super) key: Axis,
    /// Rows of the value projection: the elements of a head in their order.
    pub(super) value: Axis,
    /// Columns of the output projection: the values of the query heads.
    pub(super) mixed: Axis,
}

impl Axes {
    /// # Errors
    /// When the new key heads cannot serve the old query heads.
    pub(super) fn new(old: &Config, new: &Shape) -> Result<Axes> {
        let (query, kv) = heads(old, new)?;
        let paired = |dim: usize| pair(dim, old.head_dim, new.head_dim);
        let plain = |dim: usize| (dim < old.head_dim).then_some(dim);
        Ok(Axes {
            residual: first(old.hidden_size, new.hidden),
            inner: first(old.intermediate_size, new.intermediate),
            query: elements(&query, old.head_dim, new.head_dim, &paired),
            key: elements(&kv, old.head_dim, new.head_dim, &paired),
            value: elements(&kv, old.head_dim, new.head_dim, &plain),
            mixed: elements(&query, old.head_dim, new.head_dim, &plain),
        })
    }
}

/// The old indices, then filler.
fn first(old: usize, new: usize) -> Axis {
    (0..new).map(|at| (at < old).then_some(at)).collect()
}

/// The old query heads and key heads in their new places. A key head goes with as many of its query heads as a new one
/// serves; those that are left get a copy of it.
fn heads(old: &Config, new: &Shape) -> Result<(Axis, Axis)> {
    let (old_group, group) = (old.num_attention_heads / old.num_key_value_heads, new.heads / new.kv_heads);
    let (mut query, mut kv) = (vec![None; new.heads], vec![None; new.kv_heads]);
    let copies = old_group.div_ceil(group);
    let needed = old.num_key_value_heads * copies;
    ensure!(
        needed <= new.kv_heads,
        "kv_heads {}: {} query heads to a key head leave the old {} without their keys; give at least {needed}",
        new.kv_heads,
        group,
        old.num_attention_heads
    );
    for head in 0..old.num_attention_heads {
        let (key, at) = (head / old_group, head % old_group);
        let place = key * copies + at / group;
        kv[place] = Some(key);
        query[place * group + at % group] = Some(head);
    }
    Ok((query, kv))
}

/// The rows of heads, element by element; `at` gives the old element for a new one.
fn elements(heads: &Axis, old: usize, new: usize, at: &dyn Fn(usize) -> Option<usize>) -> Axis {
    heads.iter().flat_map(|head| (0..new).map(move |dim| Some((*head)? * old + at(dim)?))).collect()
}

/// The old element of a head at a new one. An old pair goes where the new head turns at the same frequency.
fn pair(dim: usize, old: usize, new: usize) -> Option<usize> {
    let (step, half) = (new / old, dim / (new / 2));
    let at = dim % (new / 2);
    at.is_multiple_of(step).then_some(half * (old / 2) + at / step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_pair_keeps_its_frequency() {
        let frequency = |dim: usize, width: usize| 1e4f64.powf(-2.0 * (dim % (width / 2)) as f64 / width as f64);
        for (old, new) in [(32, 32), (32, 64), (16, 64), (32, 128)] {
            let places: Vec<(usize, usize)> = (0..new).filter_map(|dim| Some((dim, pair(dim, old, new)?))).collect();
            assert_eq!(places.iter().map(|(_, old)| *old).collect::<Vec<_>>(), (0..old).collect::<Vec<_>>());
            for (dim, from) in places {
                assert_eq!(dim >= new / 2, from >= old / 2, "{dim} of {new} from {from} of {old}: the half of a pair");
                assert!((frequency(dim, new) / frequency(from, old) - 1.0).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn a_query_head_finds_the_keys_that_it_had() {
        let mut old: Config = Config::parse(include_bytes!("../../../../models/target/config.json"), None).unwrap();
        // Query heads, key heads; then new ones, and whether they can serve.
        for (heads_of, new, serves) in [
            ((8, 4), (8, 4), true),
            ((8, 4), (32, 4), true),
            ((8, 4), (12, 12), true),
            ((8, 4), (7, 7), false),
            ((8, 2), (16, 8), true),
            ((6, 2), (8, 4), true),
            ((6, 2), (6, 3), false),
        ] {
            (old.num_attention_heads, old.num_key_value_heads) = heads_of;
            let shape = Shape { heads: new.0, kv_heads: new.1, ..Shape::of(&old) };
            let found = heads(&old, &shape);
            assert_eq!(found.is_ok(), serves, "{heads_of:?} in {new:?}");
            let Ok((query, kv)) = found else { continue };
            let mut seen: Vec<usize> = query.iter().copied().flatten().collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..heads_of.0).collect::<Vec<_>>(), "{heads_of:?} in {new:?}");
            for (at, head) in query.iter().enumerate() {
                if let Some(head) = head {
                    assert_eq!(kv[at / (new.0 / new.1)], Some(head / (heads_of.0 / heads_of.1)));
                }
            }
        }
    }
}

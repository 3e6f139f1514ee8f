//! Attention of each row's queries to the keys of its own slots, with an online softmax (Milakov and Gimelshein, 2018).
//!
//! A row walks its keys in blocks cut at absolute positions and adds them in order; no other row, chunk or thread takes
//! part in its sums. Keys past the row's end weigh an exact zero.

use half::f16;
use specquant_core::KvDtype;

use crate::backend::Heads;
use crate::exp::exp;
use crate::kv_store::KvStore;
use crate::simd::{KvElement, MAX_LANES, Simd, for_isa, load_up_to, store_up_to};
use crate::team::{Output, Team};

/// Positions of one block; its keys and values of one head stay in the nearest cache.
const BLOCK: usize = 64;

/// Query heads of a group that one part takes on; a larger group is cut.
const HEADS: usize = 8;

/// Vectors of an output row that stay in registers while the values of a block are added.
const SPAN: usize = 4;

/// One row's view of one key and value head.
struct Job<'a, E> {
    /// `[heads, dim]`, the query heads that share this key and value head.
    q: *const f32,
    /// `[heads, dim]`
    y: *mut f32,
    /// At most [`HEADS`].
    heads: usize,
    dim: usize,
    scale: f32,
    /// The slots of the row's positions, in order.
    slots: &'a [u32],
    /// `[slot, stride]`
    keys: *const E,
    /// `[slot, stride]`
    values: *const E,
    stride: usize,
}

/// Attention of the rows of `qkv` to `y` `[rows, query * dim]`, all of which is written; row `r` sees `rows[r]`.
///
/// # Safety
/// `y` must be valid for writes of `rows.len() * query * dim` elements.
pub(crate) unsafe fn attend(
    qkv: &[f32],
    heads: &Heads,
    (store, layer): (&KvStore, usize),
    rows: &[&[u32]],
    team: &Team,
    y: *mut f32,
) {
    store.check(heads, layer);
    assert_eq!(qkv.len(), rows.len() * heads.width(), "one row for each list of slots");
    assert_eq!(heads.query % heads.kv, 0, "query heads share key heads evenly");
    let mut checked: &[u32] = &[];
    for slots in rows {
        assert!(!slots.is_empty(), "a row sees at least its own key");
        // The rows of a sequence are prefixes of one list: what the row before has checked need not be read again.
        let known = if slots.as_ptr() == checked.as_ptr() { checked.len().min(slots.len()) } else { 0 };
        let limit = store.shape().slots;
        assert!(slots[known..].iter().all(|slot| (*slot as usize) < limit), "a slot beyond {limit}");
        checked = slots;
    }
    // SAFETY: the caller keeps the contract, and the shapes and slots were checked.
    unsafe {
        match store.shape().dtype {
            KvDtype::F32 => attend_as::<f32>(qkv, heads, (store, layer), rows, team, y),
            KvDtype::F16 => attend_as::<f16>(qkv, heads, (store, layer), rows, team, y),
        }
    }
}

/// # Safety
/// As for [`attend`], after its checks, and `E` is the element type of the store.
unsafe fn attend_as<E: KvElement>(
    qkv: &[f32],
    heads: &Heads,
    (store, layer): (&KvStore, usize),
    rows: &[&[u32]],
    team: &Team,
    y: *mut f32,
) {
    let (isa, y) = (team.isa(), Output::new(y));
    let cuts = heads.group().div_ceil(HEADS);
    let work = 2 * heads.query * heads.dim * rows.iter().map(|slots| slots.len()).sum::<usize>();
    // Neighbouring parts are rows of one head, which find its keys in the cache.
    team.run(work, heads.kv * cuts * rows.len(), &|part| {
        let (head, row) = (part / rows.len(), part % rows.len());
        let (kv, first) = (head / cuts, head % cuts * HEADS);
        let query = kv * heads.group() + first;
        let keys = store.plane(layer, 0, kv);
        let values = store.plane(layer, 1, kv);
        // SAFETY: the row, the head and the layer lie within `qkv`, `y` and the store; every part writes its own
        // heads of its own row.
        unsafe {
            let job = Job {
                q: qkv.as_ptr().add(row * heads.width() + query * heads.dim),
                y: y.get().add((row * heads.query + query) * heads.dim),
                heads: HEADS.min(heads.group() - first),
                dim: heads.dim,
                scale: 1.0 / (heads.dim as f32).sqrt(),
                slots: rows[row],
                keys: store.elements::<E>().add(keys),
                values: store.elements::<E>().add(values),
                stride: store.stride(),
            };
            row_on::<E>(isa, &job);
        }
    });
}

for_isa!(fn row_on[E: KvElement](job: &Job<'_, E>) = row);

/// # Safety
/// The pointers of `job` cover its shapes and slots, and nobody else writes its `y`.
#[inline(always)]
unsafe fn row<S: Simd, E: KvElement>(job: &Job<'_, E>) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let mut most = [f32::NEG_INFINITY; HEADS];
        let mut total = [S::splat(0.0); HEADS];
        for (index, slots) in job.slots.chunks(BLOCK).enumerate() {
            let mut head = 0;
            while head < job.heads {
                // Two heads read each key and value once.
                if job.heads - head >= 2 {
                    block::<S, E, 2>(job, head, slots, index == 0, &mut most, &mut total);
                    head += 2;
                } else {
                    block::<S, E, 1>(job, head, slots, index == 0, &mut most, &mut total);
                    head += 1;
                }
            }
        }
        for head in 0..job.heads {
            let whole = S::splat(S::sum(total[head]));
            let mut d = 0;
            while d < job.dim {
                let y = job.y.add(head * job.dim + d);
                let left = job.dim - d;
                store_up_to::<S>(y, left, S::div(load_up_to::<S>(y, left), whole));
                d += S::LANES;
            }
        }
    }
}

/// Adds one block of keys and values to `H` heads from `head`; `most` and `total` are the softmax's running maximum and
/// sum, `y` its running output.
///
/// # Safety
/// As for [`row`]; `slots` is at most [`BLOCK`] long.
#[inline(always)]
unsafe fn block<S: Simd, E: KvElement, const H: usize>(
    job: &Job<'_, E>,
    head: usize,
    slots: &[u32],
    first: bool,
    most: &mut [f32; HEADS],
    total: &mut [S::F; HEADS],
) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let mut weights = [[0f32; BLOCK]; H];
        scores::<S, E, H>(job, head, slots, &mut weights);
        let mut shrink = [S::splat(0.0); H];
        let padded = slots.len().next_multiple_of(S::LANES);
        for h in 0..H {
            let mut peak = S::splat(most[head + h]);
            for j in (0..padded).step_by(S::LANES) {
                peak = S::max(S::load(weights[h].as_ptr().add(j)), peak);
            }
            let peak = S::largest(peak);
            shrink[h] = exp::<S>(S::splat(most[head + h] - peak));
            most[head + h] = peak;
            let mut sum = S::mul(total[head + h], shrink[h]);
            for j in (0..padded).step_by(S::LANES) {
                let at = weights[h].as_mut_ptr().add(j);
                let weight = exp::<S>(S::sub(S::load(at), S::splat(peak)));
                S::store(at, weight);
                sum = S::add(sum, weight);
            }
            total[head + h] = sum;
        }
        let vectors = job.dim.div_ceil(S::LANES);
        let mut v = 0;
        while v < vectors {
            if vectors - v >= SPAN {
                add_values::<S, E, H, SPAN>(job, head, slots, first, (v, &weights, &shrink));
                v += SPAN;
            } else {
                add_values::<S, E, H, 1>(job, head, slots, first, (v, &weights, &shrink));
                v += 1;
            }
        }
    }
}

/// The scaled products of `H` queries with the keys of `slots`, minus infinity up to the next full vector.
///
/// # Safety
/// As for [`block`].
#[inline(always)]
unsafe fn scores<S: Simd, E: KvElement, const H: usize>(
    job: &Job<'_, E>,
    head: usize,
    slots: &[u32],
    weights: &mut [[f32; BLOCK]; H],
) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let zero = S::splat(0.0);
        let vectors = job.dim.div_ceil(S::LANES);
        let mut start = 0;
        while start < slots.len() {
            let count = S::LANES.min(slots.len() - start);
            let mut partial = [[zero; MAX_LANES]; H];
            for j in 0..count {
                let key = job.keys.add(*slots.get_unchecked(start + j) as usize * job.stride);
                let mut acc = [zero; H];
                for v in 0..vectors {
                    let d = v * S::LANES;
                    let k = E::load::<S>(key.add(d));
                    for h in 0..H {
                        let q = load_up_to::<S>(job.q.add((head + h) * job.dim + d), job.dim - d);
                        acc[h] = S::fma(q, k, acc[h]);
                    }
                }
                for h in 0..H {
                    partial[h][j] = acc[h];
                }
            }
            for h in 0..H {
                let at = weights[h].as_mut_ptr().add(start);
                S::store(at, S::mul(S::sums(&partial[h]), S::splat(job.scale)));
                for j in count..S::LANES {
                    *at.add(j) = f32::NEG_INFINITY;
                }
            }
            start += S::LANES;
        }
    }
}

/// Adds the weighted values of `slots` to `C` vectors of `H` output rows, from vector `v`, after shrinking them.
///
/// # Safety
/// As for [`block`]; the vectors exist.
#[inline(always)]
unsafe fn add_values<S: Simd, E: KvElement, const H: usize, const C: usize>(
    job: &Job<'_, E>,
    head: usize,
    slots: &[u32],
    first: bool,
    (v, weights, shrink): (usize, &[[f32; BLOCK]; H], &[S::F; H]),
) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let mut acc = [[S::splat(0.0); C]; H];
        if !first {
            for h in 0..H {
                for c in 0..C {
                    let d = (v + c) * S::LANES;
                    let y = load_up_to::<S>(job.y.add((head + h) * job.dim + d), job.dim - d);
                    acc[h][c] = S::mul(y, shrink[h]);
                }
            }
        }
        for (j, slot) in slots.iter().enumerate() {
            let value = job.values.add(*slot as usize * job.stride + v * S::LANES);
            for c in 0..C {
                let x = E::load::<S>(value.add(c * S::LANES));
                for h in 0..H {
                    acc[h][c] = S::fma(S::splat(weights[h][j]), x, acc[h][c]);
                }
            }
        }
        for h in 0..H {
            for c in 0..C {
                let d = (v + c) * S::LANES;
                store_up_to::<S>(job.y.add((head + h) * job.dim + d), job.dim - d, acc[h][c]);
            }
        }
    }
}

//! Attention of each row's queries to the keys of its own slots, with an online softmax (Milakov and Gimelshein, 2018).
//!
//! A row walks its keys in blocks cut at absolute positions and adds them in order; no other row, chunk or thread takes
//! part in its sums. Keys past the row's end weigh an exact zero.

use half::f16;
use specquant_core::KvDtype;

use crate::backend::Heads;
use crate::exp::exp;
use crate::kv_store::KvStore;
use crate::simd::{KvElement, Simd, for_isa, load_up_to, store_up_to};
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
    store: &KvStore,
    layer: usize,
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
            KvDtype::F32 => attend_as::<f32>(qkv, heads, store, layer, rows, team, y),
            KvDtype::F16 => attend_as::<f16>(qkv, heads, store, layer, rows, team, y),
        }
    }
}

/// # Safety
/// As for [`attend`], after its checks, and `E` is the element type of the store.
unsafe fn attend_as<E: KvElement>(
    qkv: &[f32],
    heads: &Heads,
    store: &KvStore,
    layer: usize,
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
    // SAFETY: the caller keeps the contract; the groups of four and the full vectors end within the block.
    unsafe {
        let q = job.q.add(head * job.dim);
        let whole = job.dim / S::LANES * S::LANES;
        let mut start = 0;
        while start < slots.len() {
            // Where fewer than four keys are left, the last one stands in for the others.
            let mut keys = [job.keys; 4];
            for j in 0..4 {
                let slot = *slots.get_unchecked((start + j).min(slots.len() - 1));
                keys[j] = job.keys.add(slot as usize * job.stride);
            }
            let mut acc = [[S::splat(0.0); 4]; H];
            let mut d = 0;
            while d < whole {
                for j in 0..4 {
                    let k = E::load::<S>(keys[j].add(d));
                    for h in 0..H {
                        acc[h][j] = S::fma(S::load(q.add(h * job.dim + d)), k, acc[h][j]);
                    }
                }
                d += S::LANES;
            }
            if whole < job.dim {
                for j in 0..4 {
                    let k = E::load::<S>(keys[j].add(d));
                    for h in 0..H {
                        let q = S::load_first(q.add(h * job.dim + d), job.dim - d);
                        acc[h][j] = S::fma(q, k, acc[h][j]);
                    }
                }
            }
            for h in 0..H {
                S::sums(&acc[h], weights[h].as_mut_ptr().add(start));
            }
            start += 4;
        }
        let padded = slots.len().next_multiple_of(S::LANES);
        for h in 0..H {
            let weights = weights[h].as_mut_ptr();
            for j in (0..padded).step_by(S::LANES) {
                S::store(weights.add(j), S::mul(S::load(weights.add(j)), S::splat(job.scale)));
            }
            for j in slots.len()..padded {
                *weights.add(j) = f32::NEG_INFINITY;
            }
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
                    acc[h][c] = S::fma(S::splat(*weights[h].get_unchecked(j)), x, acc[h][c]);
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

#[cfg(test)]
mod tests {
    use burn::backend::Flex;
    use half::f16;
    use proptest::prelude::*;
    use specquant_core::{KvDtype, SlotCopy};

    use crate::testing::{bits, close, host, numbers, teams, tensor};
    use crate::{Backend, Heads, KvShape, KvStore, Team};

    const HEADS: Heads = Heads { query: 4, kv: 2, dim: 32 };

    /// One sequence's rows, `[length, width]`.
    fn sequence(seed: u64, heads: &Heads, length: usize) -> Vec<f32> {
        numbers(seed, length * heads.width())
    }

    fn store(heads: &Heads, slots: usize, dtype: KvDtype, team: &Team) -> KvStore {
        let shape = KvShape { layers: 3, slots, kv_heads: heads.kv, head_dim: heads.dim, dtype };
        Flex::kv_store(shape, team).unwrap()
    }

    /// Writes and attends a sequence in chunks, as a model does in layer 1, with position `p` in `slots[p]`.
    fn run(qkv: &[f32], heads: &Heads, chunks: &[usize], slots: &[u32], (dtype, team): (KvDtype, &Team)) -> Vec<f32> {
        let mut store = store(heads, 1 + *slots.iter().max().unwrap() as usize, dtype, team);
        let (mut out, mut start) = (Vec::new(), 0);
        for chunk in chunks {
            let rows = tensor(&qkv[start * heads.width()..][..chunk * heads.width()], heads.width());
            Flex::kv_write(&rows, heads, &mut store, 1, &slots[start..start + chunk], team);
            let lists: Vec<&[u32]> = (0..*chunk).map(|row| &slots[..=start + row]).collect();
            out.extend(host(Flex::attend(&rows, heads, &store, 1, &lists, team)));
            start += chunk;
        }
        assert_eq!(start * heads.width(), qkv.len(), "the chunks make up the sequence");
        out
    }

    /// Softmax attention in f64, with keys and values as the store holds them.
    fn expected(qkv: &[f32], heads: &Heads, dtype: KvDtype) -> Vec<f64> {
        let stored = |x: &f32| match dtype {
            KvDtype::F32 => f64::from(*x),
            KvDtype::F16 => f16::from_f32(*x).to_f64(),
        };
        let rows: Vec<&[f32]> = qkv.chunks_exact(heads.width()).collect();
        let mut out = Vec::new();
        for (position, row) in rows.iter().enumerate() {
            for (h, q) in row.chunks_exact(heads.dim).take(heads.query).enumerate() {
                let kv = h / (heads.query / heads.kv);
                let head = |row: &[f32], part: usize| -> Vec<f64> {
                    row[(heads.query + part) * heads.dim..][..heads.dim].iter().map(stored).collect()
                };
                let seen = &rows[..=position];
                let score = |row: &&[f32]| {
                    let key = head(row, kv);
                    let dot: f64 = q.iter().zip(&key).map(|(q, k)| f64::from(*q) * k).sum();
                    dot / (heads.dim as f64).sqrt()
                };
                let scores: Vec<f64> = seen.iter().map(score).collect();
                let peak = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - peak).exp()).collect();
                let total: f64 = weights.iter().sum();
                let values: Vec<Vec<f64>> = seen.iter().map(|row| head(row, heads.kv + kv)).collect();
                out.extend(
                    (0..heads.dim).map(|d| weights.iter().zip(&values).map(|(w, v)| w * v[d]).sum::<f64>() / total),
                );
            }
        }
        out
    }

    fn in_order(length: usize) -> Vec<u32> {
        (0..length as u32).collect()
    }

    #[test]
    fn attention_is_softmax_attention_for_every_head_shape() {
        for team in teams(&[1, 3]) {
            for (query, kv, dim) in [
                (1, 1, 32),
                (4, 2, 32),
                (3, 1, 6),
                (6, 2, 20),
                (9, 1, 16),
                (20, 2, 8),
                (4, 4, 64),
                (2, 1, 128),
                (2, 1, 80),
            ] {
                let heads = Heads { query, kv, dim };
                for length in [1, 7, 63, 64, 65, 150] {
                    let qkv = sequence(1, &heads, length);
                    for dtype in [KvDtype::F32, KvDtype::F16] {
                        let what = format!("{team:?} {heads:?} {length} {dtype}");
                        let out = run(&qkv, &heads, &[length], &in_order(length), (dtype, &team));
                        close(&what, &out, &expected(&qkv, &heads, dtype), 5e-6);
                    }
                }
            }
        }
    }

    #[test]
    fn keys_and_values_are_read_back_in_the_stores_dtype() {
        let qkv = sequence(1, &HEADS, 40);
        for team in teams(&[1]) {
            let out = run(&qkv, &HEADS, &[40], &in_order(40), (KvDtype::F16, &team));
            let unrounded = expected(&qkv, &HEADS, KvDtype::F32);
            let far = out.iter().zip(&unrounded).any(|(y, exact)| (f64::from(*y) - exact).abs() > 2e-5);
            assert!(far, "{team:?}: f16 keys and values left no trace, also not within the chunk that wrote them");
        }
    }

    #[test]
    fn bits_do_not_depend_on_chunks_slots_threads_or_other_rows() {
        let length = 150;
        for heads in [HEADS, Heads { query: 9, kv: 1, dim: 20 }] {
            let qkv = sequence(1, &heads, length);
            let scattered: Vec<u32> = (0..length as u32).map(|p| p * 67 % 151).collect();
            let backwards: Vec<u32> = (0..length as u32).rev().map(|p| p + 5).collect();
            let sevens: Vec<usize> = [vec![7; 21], vec![3]].concat();
            for dtype in [KvDtype::F32, KvDtype::F16] {
                for one in teams(&[1]) {
                    let whole = bits(&run(&qkv, &heads, &[length], &in_order(length), (dtype, &one)));
                    for threads in [1, 2, 3] {
                        let team = Team::new(threads, one.isa()).unwrap();
                        let plans =
                            [(vec![length], &backwards), (vec![1; length], &scattered), (sevens.clone(), &backwards)];
                        for (chunks, slots) in plans {
                            let out = bits(&run(&qkv, &heads, &chunks, slots, (dtype, &team)));
                            assert!(out == whole, "{team:?} {heads:?} {dtype}, {} chunks", chunks.len());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn two_sequences_in_one_call_do_not_meet() {
        let (length, slots) = (70u32, 140);
        let (a, b) = (sequence(1, &HEADS, 70), sequence(2, &HEADS, 70));
        let (even, odd): (Vec<u32>, Vec<u32>) =
            ((0..length).map(|p| 2 * p).collect(), (0..length).map(|p| 2 * p + 1).collect());
        for team in teams(&[1, 2]) {
            let target = (KvDtype::F16, &team);
            let expected =
                [run(&a, &HEADS, &[70], &in_order(70), target), run(&b, &HEADS, &[70], &in_order(70), target)];
            let both = tensor(&[a.clone(), b.clone()].concat(), HEADS.width());
            let mut store = store(&HEADS, slots, KvDtype::F16, &team);
            Flex::kv_write(&both, &HEADS, &mut store, 2, &[even.clone(), odd.clone()].concat(), &team);
            let lists: Vec<&[u32]> = [&even, &odd].iter().flat_map(|own| (1..=70).map(|n| &own[..n])).collect();
            let out = host(Flex::attend(&both, &HEADS, &store, 2, &lists, &team));
            assert!(bits(&out) == bits(&expected.concat()), "{team:?}");
        }
    }

    #[test]
    fn another_order_of_the_keys_has_other_bits() {
        // The same keys and values in the other order: the same softmax, added up differently.
        let qkv = sequence(1, &HEADS, 100);
        let (forth, back): (Vec<u32>, Vec<u32>) = (in_order(100), (0..100).rev().collect());
        for team in teams(&[1]) {
            let rows = tensor(&qkv, HEADS.width());
            let mut store = store(&HEADS, 100, KvDtype::F32, &team);
            Flex::kv_write(&rows, &HEADS, &mut store, 0, &forth, &team);
            let last = tensor(&qkv[99 * HEADS.width()..], HEADS.width());
            let attend = |slots: &[u32]| host(Flex::attend(&last, &HEADS, &store, 0, &[slots], &team));
            let (a, b) = (attend(&forth), attend(&back));
            close("reordered keys", &a, &b.iter().map(|y| f64::from(*y)).collect::<Vec<_>>(), 1e-5);
            assert_ne!(bits(&a), bits(&b), "{team:?}");
        }
    }

    #[test]
    fn copied_slots_serve_as_the_ones_they_came_from() {
        let qkv = sequence(1, &HEADS, 20);
        let (from, to): (Vec<u32>, Vec<u32>) = (in_order(20), (20..40).rev().collect());
        for team in teams(&[2]) {
            for dtype in [KvDtype::F32, KvDtype::F16] {
                let rows = tensor(&qkv, HEADS.width());
                let mut store = store(&HEADS, 40, dtype, &team);
                for layer in 0..3 {
                    Flex::kv_write(&rows, &HEADS, &mut store, layer, &from, &team);
                }
                let copies: Vec<SlotCopy> =
                    from.iter().zip(&to).map(|(from, to)| SlotCopy { from: *from, to: *to }).collect();
                Flex::copy_kv(&mut store, &copies);
                for layer in 0..3 {
                    let attend = |slots: &[u32]| {
                        let lists: Vec<&[u32]> = (1..=20).map(|n| &slots[..n]).collect();
                        bits(&host(Flex::attend(&rows, &HEADS, &store, layer, &lists, &team)))
                    };
                    assert!(attend(&from) == attend(&to), "{team:?} {dtype} layer {layer}");
                }
            }
        }
    }

    #[test]
    fn paths_agree_to_rounding() {
        let qkv = sequence(1, &HEADS, 150);
        let results: Vec<Vec<f32>> =
            teams(&[2]).iter().map(|team| run(&qkv, &HEADS, &[150], &in_order(150), (KvDtype::F16, team))).collect();
        for other in &results[1..] {
            let expected: Vec<f64> = other.iter().map(|y| f64::from(*y)).collect();
            close("scalar against a vector path", &results[0], &expected, 5e-6);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn bits_never_depend_on_how_a_sequence_was_cut_and_placed(
            cuts in proptest::collection::vec(1usize..40, 1..6), place in Just((0..200u32).collect::<Vec<_>>()).prop_shuffle()
        ) {
            let length = cuts.iter().sum();
            let qkv = sequence(3, &HEADS, length);
            for team in teams(&[2]) {
                let whole = run(&qkv, &HEADS, &[length], &in_order(length), (KvDtype::F16, &team));
                let cut = run(&qkv, &HEADS, &cuts, &place[..length], (KvDtype::F16, &team));
                prop_assert!(bits(&whole) == bits(&cut), "{team:?}");
            }
        }
    }
}

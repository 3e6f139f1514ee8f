//! Rotary position embedding (Su et al., 2021), in the "rotate half" pairing of Hugging Face's Llama: element `i` of a
//! head turns with element `i + dim / 2`.
//!
//! Angles are f32 products as there, so that positions far out round alike; their cosine and sine are exact to f32.

use crate::backend::Heads;
use crate::simd::{Simd, for_isa, load_up_to, store_up_to};
use crate::team::{Output, Team};

/// The cosines and sines of every position that a model may see.
#[derive(Clone, Debug)]
pub struct RopeTable {
    half: usize,
    /// `[position, half]`
    cos: Vec<f32>,
    /// `[position, half]`
    sin: Vec<f32>,
}

impl RopeTable {
    /// The table for these inverse frequencies, one for each pair, and positions `0..positions`.
    pub fn new(inv_freq: &[f32], positions: usize) -> RopeTable {
        let angles = || (0..positions).flat_map(|p| inv_freq.iter().map(move |f| f64::from(p as f32 * f)));
        RopeTable {
            half: inv_freq.len(),
            cos: angles().map(|angle| angle.cos() as f32).collect(),
            sin: angles().map(|angle| angle.sin() as f32).collect(),
        }
    }

    /// `1 / theta^(2 i / dim)` for each of the `dim / 2` pairs, each step rounded to f32.
    pub fn inv_freq(theta: f64, dim: usize) -> Vec<f32> {
        (0..dim / 2)
            .map(|i| {
                let exponent = (2 * i) as f32 / dim as f32;
                1.0 / theta.powf(f64::from(exponent)) as f32
            })
            .collect()
    }

    /// Positions that the table covers.
    pub fn positions(&self) -> usize {
        self.cos.len() / self.half.max(1)
    }
}

/// Rotates the queries and keys of `qkv` `[rows, (query + 2 kv) * dim]` in place.
pub(crate) fn rope(qkv: &mut [f32], heads: &Heads, table: &RopeTable, positions: &[u32], team: &Team) {
    let (width, half) = (heads.width(), table.half);
    assert_eq!(heads.dim, 2 * half, "the table is for heads of another size");
    assert_eq!(qkv.len(), positions.len() * width, "one row for each position");
    let (isa, qkv) = (team.isa(), Output::new(qkv.as_mut_ptr()));
    let turned = heads.query + heads.kv;
    team.split(positions.len(), turned * heads.dim, &|rows| {
        for row in rows {
            let at = positions[row] as usize * half;
            let (cos, sin) = (&table.cos[at..at + half], &table.sin[at..at + half]);
            // SAFETY: the row's first `turned` heads lie within `qkv`; each part changes its own rows.
            unsafe { row_on(isa, qkv.get().add(row * width), turned, cos, sin) }
        }
    });
}

for_isa!(fn row_on[](x: *mut f32, heads: usize, cos: &[f32], sin: &[f32]) = row);

/// # Safety
/// `x` covers `heads` heads of twice the length of `cos`, and `sin` is as long as `cos`.
#[inline(always)]
unsafe fn row<S: Simd>(x: *mut f32, heads: usize, cos: &[f32], sin: &[f32]) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let half = cos.len();
        for head in 0..heads {
            let (low, high) = (x.add(head * 2 * half), x.add((head * 2 + 1) * half));
            let mut i = 0;
            while i < half {
                let left = half - i;
                let (a, b) = (load_up_to::<S>(low.add(i), left), load_up_to::<S>(high.add(i), left));
                let c = load_up_to::<S>(cos.as_ptr().add(i), left);
                let s = load_up_to::<S>(sin.as_ptr().add(i), left);
                store_up_to::<S>(low.add(i), left, S::sub(S::mul(a, c), S::mul(b, s)));
                store_up_to::<S>(high.add(i), left, S::add(S::mul(b, c), S::mul(a, s)));
                i += S::LANES;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;

    use super::RopeTable;
    use crate::testing::{bits, close, host, numbers, teams, tensor};
    use crate::{Backend, Heads};

    /// Row by row in f64; only the angle is the f32 product that the table documents.
    fn expected(qkv: &[f32], heads: &Heads, positions: &[u32]) -> Vec<f64> {
        let mut out: Vec<f64> = qkv.iter().map(|x| f64::from(*x)).collect();
        let half = heads.dim / 2;
        for (row, position) in out.chunks_exact_mut(heads.width()).zip(positions) {
            for head in row.chunks_exact_mut(heads.dim).take(heads.query + heads.kv) {
                for i in 0..half {
                    let freq = 1e4f64.powf(-((2 * i) as f64) / heads.dim as f64);
                    let (sin, cos) = (f64::from(*position) * freq).sin_cos();
                    let (a, b) = (head[i], head[i + half]);
                    (head[i], head[i + half]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
        out
    }

    #[test]
    fn queries_and_keys_turn_in_pairs_and_values_do_not() {
        for team in teams(&[1, 2, 3]) {
            for heads in [Heads { query: 3, kv: 1, dim: 32 }, Heads { query: 4, kv: 2, dim: 10 }] {
                let positions = [0, 1, 5, 300, 7, 511];
                let table = RopeTable::new(&RopeTable::inv_freq(1e4, heads.dim), 512);
                let qkv = numbers(1, positions.len() * heads.width());
                let given = tensor(&qkv, heads.width());
                let turned = host(Flex::rope(given.clone(), &heads, &table, &positions, &team));
                // An f32 angle near 511 is off by up to 3e-5 of a radian.
                close(&format!("{team:?} {heads:?}"), &turned, &expected(&qkv, &heads, &positions), 2e-4);
                assert_eq!(bits(&host(given)), bits(&qkv), "a tensor that someone else holds must not change");
                assert_eq!(bits(&turned[..heads.width()]), bits(&qkv[..heads.width()]), "position 0 turns nothing");
                for (row, position) in positions.iter().enumerate() {
                    let own = row * heads.width()..(row + 1) * heads.width();
                    let alone = tensor(&qkv[own.clone()], heads.width());
                    let alone = host(Flex::rope(alone, &heads, &table, &[*position], &team));
                    assert_eq!(bits(&alone), bits(&turned[own]), "{team:?}, row {row} alone");
                }
            }
        }
    }

    #[test]
    fn the_table_is_what_hugging_face_computes() {
        // torch: inv = 1.0 / (10000.0 ** (torch.arange(0, 32, 2).float() / 32)), angle = 511.0 * inv
        let inv = RopeTable::inv_freq(1e4, 32);
        assert_eq!(inv[0], 1.0);
        assert_eq!(inv[8], 0.01);
        assert!((inv[1] - 0.562_341_33).abs() < 1e-7, "{}", inv[1]);
        let table = RopeTable::new(&inv, 512);
        assert_eq!(table.positions(), 512);
        assert_eq!(table.cos[511 * 16 + 8], f64::from(511.0f32 * inv[8]).cos() as f32);
        assert_eq!(table.sin[511 * 16 + 8], f64::from(511.0f32 * inv[8]).sin() as f32);
    }
}

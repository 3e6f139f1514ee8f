//! Activations as the products read them: in tiles of a few rows, within a tile input by input, so that what one step needs
//! of all rows lies together.

use std::borrow::Cow;
use std::ops::Range;

use crate::team::{Output, Team};

/// Rows of a tile whose sums stay in registers together: 5 rows of two vectors, which leaves six of 16 registers. With a
/// sixth row compilers run out of them, and the product takes twice as long.
pub(super) const TILE: usize = 5;

/// Tiles of at most `most` rows and of nearly equal size: a lone last row would run at a fraction of the speed.
pub(super) fn tiles(rows: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let tiles = rows.div_ceil(most);
    (0..tiles).map(move |tile| tile * rows / tiles..(tile + 1) * rows / tiles)
}

/// The rows `x`, `[rows, inputs]`, as `[tile][input][row of the tile]`: a tile begins where its rows began. All values are
/// multiplied with `factor`.
pub(super) fn tiled<'a>(x: &'a [f32], inputs: usize, factor: f32, team: &Team) -> Cow<'a, [f32]> {
    let rows = x.len() / inputs;
    if rows == 1 && factor == 1.0 {
        return Cow::Borrowed(x);
    }
    let tiles: Vec<Range<usize>> = tiles(rows, TILE).collect();
    let mut values: Vec<f32> = Vec::with_capacity(x.len());
    let to = Output::new(values.as_mut_ptr());
    team.split(tiles.len(), TILE * inputs, &|part| {
        for tile in &tiles[part] {
            let (from, wide) = (&x[tile.start * inputs..tile.end * inputs], tile.len());
            for (row, x) in from.chunks_exact(inputs).enumerate() {
                // SAFETY: the tile's rows have so many values in `values`, which belong to this part.
                let to = unsafe { to.get().add(tile.start * inputs + row) };
                for (k, x) in x.iter().enumerate() {
                    // SAFETY: as above.
                    unsafe { to.add(k * wide).write(x * factor) }
                }
            }
        }
    });
    // SAFETY: the tiles are all rows, and every value of each was written.
    unsafe { values.set_len(x.len()) };
    Cow::Owned(values)
}

#[cfg(test)]
mod tests {
    use super::{TILE, tiled, tiles};
    use crate::testing::{numbers, teams};

    #[test]
    fn tiles_are_all_rows_in_order_and_nearly_equal() {
        for rows in 1..40 {
            let tiles: Vec<_> = tiles(rows, TILE).collect();
            assert_eq!(tiles.iter().flat_map(Clone::clone).collect::<Vec<_>>(), (0..rows).collect::<Vec<_>>());
            let sizes = || tiles.iter().map(ExactSizeIterator::len);
            assert!(sizes().max() <= Some(TILE) && sizes().max().unwrap() - sizes().min().unwrap() < 2, "{rows}");
        }
    }

    #[test]
    fn a_tile_has_its_rows_side_by_side() {
        let inputs = 5;
        for team in teams(&[1, 2]) {
            for rows in [1, 2, 6, 7, 20] {
                let x = numbers(1, rows * inputs);
                let got = tiled(&x, inputs, 4.0, &team);
                for tile in tiles(rows, TILE) {
                    for (row, k) in tile.clone().flat_map(|row| (0..inputs).map(move |k| (row, k))) {
                        let at = tile.start * inputs + k * tile.len() + row - tile.start;
                        assert_eq!(got[at], x[row * inputs + k] * 4.0, "{rows} rows, row {row}, input {k}");
                    }
                }
            }
        }
    }
}

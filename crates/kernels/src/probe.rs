//! What this machine can do at most: reading memory, and multiply-adds. What kernels reach is judged against this.
//!
//! Nothing here reads a clock: a probe does a known amount of work, and whoever calls it takes the time.

use std::hint::black_box;

use anyhow::Result;

use crate::buffer::Buffer;
use crate::simd::{Simd, for_isa};
use crate::team::{Output, Team};

/// Parts into which each thread's share of a buffer is cut, so that a thread that was held up leaves its rest to others.
const PIECES: usize = 8;

/// Places from which a thread reads at once: memory answers several streams sooner than one, and products have several.
const STREAMS: usize = 4;

/// Bytes of which a piece is a multiple: on every path each stream then ends with a whole turn of the reading loop.
const STRIDE: usize = 1024;

/// A block of memory to be read from its beginning to its end by all threads of a team.
pub struct Reading {
    buffer: Buffer,
    piece: usize,
    pieces: usize,
}

impl Reading {
    /// A block of at least `bytes`, every page of which has been written.
    ///
    /// # Errors
    /// When the system has no such block.
    pub fn new(bytes: usize, team: &Team) -> Result<Reading> {
        let pieces = team.threads() * PIECES;
        let piece = bytes.div_ceil(pieces).next_multiple_of(STRIDE);
        let mut buffer = Buffer::zeroed(piece * pieces)?;
        let start = Output::new(buffer.start_mut().cast::<f32>());
        team.run(usize::MAX, pieces, &|part| {
            for at in 0..piece / 4 {
                // SAFETY: the piece lies in the buffer, and each part writes its own.
                unsafe { start.get().add(part * piece / 4 + at).write(1.0) }
            }
        });
        Ok(Reading { buffer, piece, pieces })
    }

    /// Bytes that one pass reads.
    pub fn bytes(&self) -> usize {
        self.buffer.bytes()
    }

    /// Reads the block once. Every value is used: the sum of the block's floats, all of them 1, comes back.
    pub fn pass(&self, team: &Team) -> f64 {
        let mut sums = vec![0.0_f32; self.pieces];
        let (isa, to) = (team.isa(), Output::new(sums.as_mut_ptr()));
        let start = self.buffer.start() as usize;
        team.run(usize::MAX, self.pieces, &|part| {
            let piece = (start + part * self.piece) as *const f32;
            // SAFETY: the piece lies in the buffer and is a multiple of the stride; each part writes its own sum.
            unsafe { sum_on(isa, piece, self.piece / 4, to.get().add(part)) }
        });
        black_box(&sums).iter().map(|sum| f64::from(*sum)).sum()
    }
}

/// Runs `turns` turns of independent multiply-adds in registers on every thread of the team. Returns the floating-point
/// operations done, a multiply-add being two.
pub fn multiply_adds(turns: usize, team: &Team) -> f64 {
    let threads = team.threads();
    let mut sums = vec![0.0_f32; threads];
    let (isa, to) = (team.isa(), Output::new(sums.as_mut_ptr()));
    let mut lanes = 0;
    // SAFETY: the function writes one number.
    unsafe { lanes_on(isa, &raw mut lanes) };
    team.run(usize::MAX, threads, &|part| {
        // SAFETY: each part writes its own sum.
        unsafe { fma_on(isa, turns, to.get().add(part)) }
    });
    black_box(&sums);
    2.0 * (turns * threads * CHAINS * lanes) as f64
}

/// Multiply-adds in flight: more than latency times throughput of any processor, and fewer than there are registers.
const CHAINS: usize = 12;

/// Vectors of a stream that are summed apart: with all streams, no addition waits for the one before it.
const SUMS: usize = 2;

for_isa!(fn sum_on[](p: *const f32, n: usize, to: *mut f32) = sum);
for_isa!(fn fma_on[](turns: usize, to: *mut f32) = fma);
for_isa!(fn lanes_on[](to: *mut usize) = lanes);

/// # Safety
/// `p` covers `n` elements, a multiple of the stride's; `to` covers one.
#[inline(always)]
unsafe fn sum<S: Simd>(p: *const f32, n: usize, to: *mut f32) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        let mut sums = [[S::splat(0.0); SUMS]; STREAMS];
        let stream = n / STREAMS;
        for at in (0..stream).step_by(SUMS * S::LANES) {
            for (from, sums) in sums.iter_mut().enumerate() {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = S::add(*sum, S::load(p.add(from * stream + at + i * S::LANES)));
                }
            }
        }
        *to = sums.iter().flatten().map(|sum| S::sum(*sum)).sum();
    }
}

/// # Safety
/// `to` covers one element.
#[inline(always)]
unsafe fn fma<S: Simd>(turns: usize, to: *mut f32) {
    // SAFETY: the caller keeps the contract.
    unsafe {
        // Values that neither overflow nor become subnormal, and that the compiler cannot foresee.
        let (factor, step) = (S::splat(black_box(0.999)), S::splat(black_box(0.001)));
        let mut chains = [S::splat(1.0); CHAINS];
        for _ in 0..turns {
            for chain in &mut chains {
                *chain = S::fma(*chain, factor, step);
            }
        }
        *to = chains.iter().map(|chain| S::sum(*chain)).sum();
    }
}

/// # Safety
/// `to` covers one element.
#[inline(always)]
unsafe fn lanes<S: Simd>(to: *mut usize) {
    // SAFETY: the caller keeps the contract.
    unsafe { *to = S::LANES }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::teams;

    #[test]
    fn a_pass_reads_every_element_once() {
        for team in teams(&[1, 2, 3]) {
            for bytes in [1, 5000, 1 << 20] {
                let reading = Reading::new(bytes, &team).unwrap();
                assert!(reading.bytes() >= bytes && reading.bytes() < bytes + 3 * PIECES * STRIDE);
                assert_eq!(reading.pass(&team), (reading.bytes() / 4) as f64);
            }
        }
    }

    #[test]
    fn multiply_adds_are_counted_for_every_thread_and_lane() {
        for team in teams(&[1, 3]) {
            let one = multiply_adds(1, &team);
            assert!(one >= (2 * CHAINS * team.threads()) as f64);
            assert_eq!(multiply_adds(1000, &team), 1000.0 * one);
        }
    }
}

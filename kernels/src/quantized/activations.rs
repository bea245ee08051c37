//! Rounding activations to 8 bit, 32 at a time (ggml's Q8_1, with f32 scales).

use super::{BLOCK, BlockDot};
use crate::simd::{Simd, SimdOp};

/// Of one block of 32 activations: the scale `d`, `d * sum(q)`, and then either the integer `sum(q)` in the bits of the
/// third value, or `d * sum(q)` of both half blocks.
pub(crate) type Meta = [f32; 4];

/// Rows of activations in 8 bit.
#[derive(Default)]
pub(crate) struct Activations {
    /// `[M, K]`.
    pub(crate) codes: Vec<i8>,
    /// `[M, K / 32]`.
    pub(crate) metas: Vec<Meta>,
}

impl Activations {
    /// Makes room for `m` rows of `k`; what was there before is of no use any more.
    pub(crate) fn resize(&mut self, m: usize, k: usize) {
        self.codes.resize(m * k, 0);
        self.metas.resize(m * k / BLOCK, [0.0; 4]);
    }
}

/// Rounds whole blocks of `x`.
pub(crate) struct Quantize<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) codes: &'a mut [i8],
    pub(crate) metas: &'a mut [Meta],
    /// Whether the sums of half blocks are wanted.
    pub(crate) halves: bool,
}

impl SimdOp for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        /// Adding this leaves the nearest integer in the low bits of the mantissa.
        const MAGIC: f32 = 12_582_912.0;
        let (blocks, _) = self.x.as_chunks::<BLOCK>();
        let (codes, _) = self.codes.as_chunks_mut::<BLOCK>();
        for ((x, codes), meta) in blocks.iter().zip(codes).zip(self.metas) {
            let mut lanes = [0f32; 8];
            let mut poison = [0f32; 8];
            for i in 0..BLOCK {
                let magnitude = x[i].abs();
                lanes[i % 8] = if magnitude > lanes[i % 8] {
                    magnitude
                } else {
                    lanes[i % 8]
                };
                // NaN for a NaN or an infinity, else 0: a broken activation stays visible.
                poison[i % 8] += x[i] * 0.0;
            }
            let largest = lanes.iter().fold(0f32, |a, &b| if b > a { b } else { a });
            let d = largest / 127.0 + poison.iter().sum::<f32>();
            let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
            let mut halves = [0i32; 2];
            for (half, sum) in halves.iter_mut().enumerate() {
                for i in half * BLOCK / 2..(half + 1) * BLOCK / 2 {
                    let q = (x[i] * inverse + MAGIC).to_bits() as i8;
                    codes[i] = q;
                    *sum += i32::from(q);
                }
            }
            let sum = halves[0] + halves[1];
            *meta = if self.halves {
                [
                    d,
                    d * sum as f32,
                    d * halves[0] as f32,
                    d * halves[1] as f32,
                ]
            } else {
                [d, d * sum as f32, f32::from_bits(sum as u32), 0.0]
            };
        }
    }
}

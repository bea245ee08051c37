use super::BlockDot;
use crate::quantized::codes;
use crate::quantized::{BLOCK, TILE};
use crate::simd::Portable;

impl BlockDot for Portable {
    const ROWS: usize = 2;
    const SIGNED_BIAS: i32 = 0;

    #[inline(always)]
    unsafe fn dot<const BITS: u32, const HALVES: bool, const M: usize>(
        packed: *const u8,
        halves: *const i8,
        x: [*const i8; M],
        correction: [i32; M],
    ) -> [Self::Row; M] {
        // SAFETY: the caller's pointers are valid for a packed block and 32 activations a row.
        let (packed, x) = unsafe {
            let packed = std::slice::from_raw_parts(packed, TILE * BLOCK * BITS as usize / 8);
            (packed, x.map(|x| &*x.cast::<[i8; BLOCK]>()))
        };
        let mut sums = [[[0i32; TILE]; 2]; M];
        for quad in 0..codes::QUADS {
            let mut unpacked = [0i16; codes::QUAD];
            for (byte, code) in unpacked.iter_mut().enumerate() {
                let raw = codes::code(BITS, packed, quad, byte);
                *code = if BITS == 8 {
                    i16::from(raw as i8)
                } else {
                    i16::from(raw)
                };
            }
            for (x, sums) in x.iter().zip(&mut sums) {
                for (four, sum) in unpacked.chunks_exact(4).zip(&mut sums[quad / 4]) {
                    for (code, x) in four.iter().zip(&x[4 * quad..]) {
                        *sum += i32::from(*code) * i32::from(*x);
                    }
                }
            }
        }
        let mut out = [[[0f32; 8]; 2]; M];
        for ((sums, correction), out) in sums.iter().zip(correction).zip(&mut out) {
            for column in 0..TILE {
                let (mut low, mut high) = (sums[0][column], sums[1][column]);
                if HALVES {
                    // SAFETY: with HALVES the caller gives 32 half-block scales.
                    unsafe {
                        low *= i32::from(*halves.add(column));
                        high *= i32::from(*halves.add(TILE + column));
                    }
                }
                out[column / 8][column % 8] = (low + high + correction) as f32;
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn element<const BITS: u32>(packed: *const u8, quad: usize, j: usize) -> Self::Row {
        // SAFETY: the caller's pointer is valid for a packed block.
        let packed =
            unsafe { std::slice::from_raw_parts(packed, TILE * BLOCK * BITS as usize / 8) };
        let mut out = [[0f32; 8]; 2];
        for column in 0..TILE {
            let raw = codes::code(BITS, packed, quad, 4 * column + j);
            out[column / 8][column % 8] = if BITS == 8 {
                f32::from(raw as i8)
            } else {
                f32::from(raw)
            };
        }
        out
    }
}

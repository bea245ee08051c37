use std::arch::aarch64::*;

use super::{BlockDot, unrolled};
use crate::quantized::codes::{QUAD, planes};
use crate::simd::{Neon, NeonDot};

// SAFETY of the whole file: the trait's contract. Every load below stays within the packed block or the 32 activations.

/// 16 bytes of quad `quad` beginning at `at` (0, 16, 32 or 48), for codes of `BITS` bits.
#[inline(always)]
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe fn quad128<const BITS: u32>(packed: *const u8, quad: usize, at: usize) -> int8x16_t {
    unsafe {
        let vector = |offset: usize| vld1q_u8(packed.add(offset + at));
        let shifted = |v, by: usize| {
            if by == 0 {
                v
            } else {
                vshlq_u8(v, vdupq_n_s8(-(by as i8)))
            }
        };
        let (nibble, pair, single) = planes(BITS);
        if BITS == 8 {
            return vreinterpretq_s8_u8(vector(quad * QUAD));
        }
        let mut code = vdupq_n_u8(0);
        if let Some(base) = nibble {
            let v = shifted(vector(base + quad % 4 * QUAD), 4 * (quad / 4));
            code = if quad / 4 == 1 {
                v
            } else {
                vandq_u8(v, vdupq_n_u8(15))
            };
        }
        if let Some(base) = pair {
            let v = shifted(vector(base + quad / 4 * QUAD), 2 * (quad % 4));
            let v = vandq_u8(v, vdupq_n_u8(3));
            let v = if nibble.is_some() {
                vshlq_n_u8::<4>(v)
            } else {
                v
            };
            code = vorrq_u8(code, v);
        }
        if let Some(base) = single {
            let set = vtstq_u8(vector(base), vdupq_n_u8(1 << quad));
            let worth = vdupq_n_u8(if nibble.is_some() { 16 } else { 4 });
            code = vorrq_u8(code, vandq_u8(set, worth));
        }
        vreinterpretq_s8_u8(code)
    }
}

/// Adds to each of four columns the product of its 4 codes with 4 activations.
trait Quad {
    /// Partial sums of four columns.
    type Sum: Copy;
    unsafe fn zero() -> Self::Sum;
    unsafe fn add(sum: Self::Sum, code: int8x16_t, x: int8x16_t) -> Self::Sum;
    unsafe fn columns(sum: Self::Sum) -> int32x4_t;
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Quad for NeonDot {
    type Sum = int32x4_t;
    #[inline(always)]
    unsafe fn zero() -> int32x4_t {
        unsafe { vdupq_n_s32(0) }
    }
    #[inline(always)]
    unsafe fn add(sum: int32x4_t, code: int8x16_t, x: int8x16_t) -> int32x4_t {
        let mut sum = sum;
        // The intrinsic (vdotq_s32) is not stable yet.
        unsafe {
            std::arch::asm!(
                ".arch_extension dotprod",
                "sdot {sum:v}.4s, {code:v}.16b, {x:v}.16b",
                sum = inout(vreg) sum,
                code = in(vreg) code,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        sum
    }
    #[inline(always)]
    unsafe fn columns(sum: int32x4_t) -> int32x4_t {
        sum
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Quad for Neon {
    /// Two columns a vector, two partial sums a column.
    type Sum = [int32x4_t; 2];
    #[inline(always)]
    unsafe fn zero() -> [int32x4_t; 2] {
        unsafe { [vdupq_n_s32(0); 2] }
    }
    #[inline(always)]
    unsafe fn add(sum: [int32x4_t; 2], code: int8x16_t, x: int8x16_t) -> [int32x4_t; 2] {
        unsafe {
            let low = vmull_s8(vget_low_s8(code), vget_low_s8(x));
            let high = vmull_high_s8(code, x);
            [vpadalq_s16(sum[0], low), vpadalq_s16(sum[1], high)]
        }
    }
    #[inline(always)]
    unsafe fn columns(sum: [int32x4_t; 2]) -> int32x4_t {
        unsafe { vpaddq_s32(sum[0], sum[1]) }
    }
}

macro_rules! impl_block_dot {
    ($path:ident, $rows:literal) => {
        impl BlockDot for $path {
            const ROWS: usize = $rows;
            const SIGNED_BIAS: i32 = 0;

            #[inline(always)]
            #[allow(clippy::undocumented_unsafe_blocks)]
            unsafe fn dot<const BITS: u32, const HALVES: bool, const M: usize>(
                codes: *const u8,
                halves: *const i8,
                x: [*const i8; M],
                correction: [i32; M],
            ) -> [Self::Row; M] {
                unsafe {
                    let mut sum = [[$path::zero(); 4]; M];
                    let mut low = [[vdupq_n_s32(0); 4]; M];
                    unrolled!(Q in [0 1 2 3 4 5 6 7] {
                        let code = [
                            quad128::<BITS>(codes, Q, 0),
                            quad128::<BITS>(codes, Q, 16),
                            quad128::<BITS>(codes, Q, 32),
                            quad128::<BITS>(codes, Q, 48),
                        ];
                        for r in 0..M {
                            let four = x[r].add(4 * Q).cast::<i32>().read_unaligned();
                            let x = vreinterpretq_s8_s32(vdupq_n_s32(four));
                            for i in 0..4 {
                                sum[r][i] = $path::add(sum[r][i], code[i], x);
                            }
                        }
                        if HALVES && Q == 3 {
                            for r in 0..M {
                                for i in 0..4 {
                                    let sc = half_scales(halves.add(4 * i));
                                    low[r][i] = vmulq_s32($path::columns(sum[r][i]), sc);
                                    sum[r][i] = $path::zero();
                                }
                            }
                        }
                    });
                    let mut out = [[vdupq_n_f32(0.0); 4]; M];
                    for r in 0..M {
                        for i in 0..4 {
                            let mut total = $path::columns(sum[r][i]);
                            if HALVES {
                                total = vmlaq_s32(low[r][i], total, half_scales(halves.add(16 + 4 * i)));
                            }
                            out[r][i] = vcvtq_f32_s32(vaddq_s32(total, vdupq_n_s32(correction[r])));
                        }
                    }
                    out
                }
            }

            #[inline(always)]
            #[allow(clippy::undocumented_unsafe_blocks)]
            unsafe fn element<const BITS: u32>(codes: *const u8, quad: usize, j: usize) -> Self::Row {
                unsafe {
                    let up = vdupq_n_s32(24 - 8 * j as i32);
                    [0, 16, 32, 48].map(|at| {
                        let quads = vreinterpretq_s32_s8(quad128::<BITS>(codes, quad, at));
                        let top = vshlq_s32(quads, up);
                        if BITS == 8 {
                            vcvtq_f32_s32(vshrq_n_s32::<24>(top))
                        } else {
                            vcvtq_f32_u32(vshrq_n_u32::<24>(vreinterpretq_u32_s32(top)))
                        }
                    })
                }
            }
        }
    };
}

impl_block_dot!(Neon, 2);
impl_block_dot!(NeonDot, 4);

/// Four signed bytes as i32.
#[inline(always)]
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe fn half_scales(from: *const i8) -> int32x4_t {
    unsafe {
        let word = from.cast::<u32>().read_unaligned();
        vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(
            word,
        )))))
    }
}

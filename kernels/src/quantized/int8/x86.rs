use std::arch::x86_64::*;

use super::{BlockDot, unrolled};
use crate::quantized::codes::{QUAD, planes};
use crate::simd::{Avx2, Avx512};

// SAFETY of the whole file: the trait's contract. Every load below stays within the packed block or the 32 activations.

/// 32 bytes of quad `quad` beginning at `at` (0 or 32), for codes of `BITS` bits.
#[inline(always)]
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe fn quad256<const BITS: u32>(packed: *const u8, quad: usize, at: usize) -> __m256i {
    unsafe {
        let vector = |offset: usize| _mm256_loadu_si256(packed.add(offset + at).cast());
        let shifted = |v, by: usize| {
            if by == 0 {
                v
            } else {
                _mm256_srl_epi16(v, _mm_cvtsi32_si128(by as i32))
            }
        };
        let (nibble, pair, single) = planes(BITS);
        if BITS == 8 {
            return vector(quad * QUAD);
        }
        let mut code = _mm256_setzero_si256();
        if let Some(base) = nibble {
            let v = shifted(vector(base + quad % 4 * QUAD), 4 * (quad / 4));
            code = _mm256_and_si256(v, _mm256_set1_epi8(15));
        }
        if let Some(base) = pair {
            let v = shifted(vector(base + quad / 4 * QUAD), 2 * (quad % 4));
            let v = _mm256_and_si256(v, _mm256_set1_epi8(3));
            let v = if nibble.is_some() {
                _mm256_slli_epi16::<4>(v)
            } else {
                v
            };
            code = _mm256_or_si256(code, v);
        }
        if let Some(base) = single {
            let bit = _mm256_set1_epi8((1u8 << quad) as i8);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(vector(base), bit), bit);
            let worth = _mm256_set1_epi8(if nibble.is_some() { 16 } else { 4 });
            code = _mm256_or_si256(code, _mm256_and_si256(set, worth));
        }
        code
    }
}

/// As [`quad256`], for a whole quad.
#[inline(always)]
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe fn quad512<const BITS: u32>(packed: *const u8, quad: usize) -> __m512i {
    unsafe {
        let vector = |offset: usize| _mm512_loadu_si512(packed.add(offset).cast());
        let shifted = |v, by: usize| {
            if by == 0 {
                v
            } else {
                _mm512_srl_epi16(v, _mm_cvtsi32_si128(by as i32))
            }
        };
        let (nibble, pair, single) = planes(BITS);
        if BITS == 8 {
            // Signed codes, moved up by SIGNED_BIAS: vpdpbusd wants unsigned ones.
            return _mm512_xor_si512(vector(quad * QUAD), _mm512_set1_epi8(-128));
        }
        let mut code = _mm512_setzero_si512();
        if let Some(base) = nibble {
            let v = shifted(vector(base + quad % 4 * QUAD), 4 * (quad / 4));
            code = _mm512_and_si512(v, _mm512_set1_epi8(15));
        }
        if let Some(base) = pair {
            let v = shifted(vector(base + quad / 4 * QUAD), 2 * (quad % 4));
            let v = _mm512_and_si512(v, _mm512_set1_epi8(3));
            let v = if nibble.is_some() {
                _mm512_slli_epi16::<4>(v)
            } else {
                v
            };
            code = _mm512_or_si512(code, v);
        }
        if let Some(base) = single {
            let bit = _mm512_set1_epi8((1u8 << quad) as i8);
            let set = _mm512_test_epi8_mask(vector(base), bit);
            let worth = if nibble.is_some() { 16 } else { 4 };
            code = _mm512_or_si512(code, _mm512_maskz_set1_epi8(set, worth));
        }
        code
    }
}

/// The four activations of quad `quad`, for every column.
#[inline(always)]
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe fn four(x: *const i8, quad: usize) -> i32 {
    unsafe { x.add(4 * quad).cast::<i32>().read_unaligned() }
}

/// [`BlockDot::dot`] of the 8 columns whose bytes begin at `codes`, without the correction.
#[inline(always)]
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe fn half_dot<const BITS: u32, const HALVES: bool, const M: usize>(
    codes: *const u8,
    halves: *const i8,
    x: [*const i8; M],
) -> [__m256i; M] {
    unsafe {
        let zero = _mm256_setzero_si256();
        // Quads that fit in 16 bit.
        let depth = match (BITS, HALVES) {
            (2..=4, false) => 8,
            (2..=5, _) => 4,
            (6, _) => 2,
            _ => 1,
        };
        let (mut sum16, mut sum32) = ([zero; M], [zero; M]);
        // What a pair of 16-bit sums is multiplied by when it is widened.
        let mut weight = _mm256_set1_epi16(1);
        unrolled!(Q in [0 1 2 3 4 5 6 7] {
            if HALVES && Q.is_multiple_of(4) {
                let wide = _mm256_cvtepi8_epi32(_mm_loadl_epi64(halves.add(Q * 4).cast()));
                let low = _mm256_and_si256(wide, _mm256_set1_epi32(0xffff));
                weight = _mm256_or_si256(low, _mm256_slli_epi32::<16>(wide));
            }
            let code = quad256::<BITS>(codes, Q, 0);
            for r in 0..M {
                let x = _mm256_set1_epi32(four(x[r], Q));
                let pairs = if BITS == 8 {
                    _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(x, code))
                } else {
                    _mm256_maddubs_epi16(code, x)
                };
                let first = Q.is_multiple_of(depth);
                sum16[r] = if first { pairs } else { _mm256_add_epi16(sum16[r], pairs) };
                if Q % depth == depth - 1 {
                    let wide = _mm256_madd_epi16(sum16[r], weight);
                    let first = Q < depth;
                    sum32[r] = if first { wide } else { _mm256_add_epi32(sum32[r], wide) };
                }
            }
        });
        sum32
    }
}

impl BlockDot for Avx2 {
    const ROWS: usize = 4;
    const SIGNED_BIAS: i32 = 0;

    /// Products of two neighbours are summed in 16 bit by `vpmaddubsw`; as many quads are added there as cannot overflow
    /// (`2 * 127 * 15 * 8`, `2 * 127 * 31 * 4`, `2 * 127 * 63 * 2` are all below 2^15), and only then widened.
    /// Signed codes go in as magnitudes, with their signs on the activations.
    #[inline(always)]
    #[allow(clippy::undocumented_unsafe_blocks)]
    unsafe fn dot<const BITS: u32, const HALVES: bool, const M: usize>(
        codes: *const u8,
        halves: *const i8,
        x: [*const i8; M],
        correction: [i32; M],
    ) -> [Self::Row; M] {
        unsafe {
            let mut out = [[_mm256_setzero_ps(); 2]; M];
            // One half of the columns after the other: the sums of both would not fit in the registers.
            let sums = [
                half_dot::<BITS, HALVES, M>(codes, halves, x),
                half_dot::<BITS, HALVES, M>(codes.add(32), halves.wrapping_add(8), x),
            ];
            for (r, out) in out.iter_mut().enumerate() {
                let correction = _mm256_set1_epi32(correction[r]);
                for (out, sums) in out.iter_mut().zip(&sums) {
                    *out = _mm256_cvtepi32_ps(_mm256_add_epi32(sums[r], correction));
                }
            }
            out
        }
    }

    #[inline(always)]
    #[allow(clippy::undocumented_unsafe_blocks)]
    unsafe fn element<const BITS: u32>(codes: *const u8, quad: usize, j: usize) -> Self::Row {
        unsafe {
            let up = _mm_cvtsi32_si128(24 - 8 * j as i32);
            [0, 32].map(|at| {
                let top = _mm256_sll_epi32(quad256::<BITS>(codes, quad, at), up);
                let value = if BITS == 8 {
                    _mm256_srai_epi32::<24>(top)
                } else {
                    _mm256_srli_epi32::<24>(top)
                };
                _mm256_cvtepi32_ps(value)
            })
        }
    }
}

impl BlockDot for Avx512 {
    const ROWS: usize = 8;
    const SIGNED_BIAS: i32 = 128;

    #[inline(always)]
    #[allow(clippy::undocumented_unsafe_blocks)]
    unsafe fn dot<const BITS: u32, const HALVES: bool, const M: usize>(
        codes: *const u8,
        halves: *const i8,
        x: [*const i8; M],
        correction: [i32; M],
    ) -> [Self::Row; M] {
        unsafe {
            let mut total = correction.map(|c| _mm512_set1_epi32(c));
            let mut sum = [_mm512_setzero_si512(); M];
            unrolled!(Q in [0 1 2 3 4 5 6 7] {
                let code = quad512::<BITS>(codes, Q);
                for r in 0..M {
                    let x = _mm512_set1_epi32(four(x[r], Q));
                    if HALVES {
                        sum[r] = _mm512_dpbusd_epi32(sum[r], code, x);
                    } else {
                        total[r] = _mm512_dpbusd_epi32(total[r], code, x);
                    }
                }
                if HALVES && Q % 4 == 3 {
                    let sc = _mm512_cvtepi8_epi32(_mm_loadu_si128(halves.add(Q / 4 * 16).cast()));
                    for r in 0..M {
                        total[r] = _mm512_add_epi32(total[r], _mm512_mullo_epi32(sum[r], sc));
                        sum[r] = _mm512_setzero_si512();
                    }
                }
            });
            total.map(|t| [_mm512_cvtepi32_ps(t)])
        }
    }

    #[inline(always)]
    #[allow(clippy::undocumented_unsafe_blocks)]
    unsafe fn element<const BITS: u32>(codes: *const u8, quad: usize, j: usize) -> Self::Row {
        unsafe {
            let up = _mm_cvtsi32_si128(24 - 8 * j as i32);
            let top = _mm512_sll_epi32(quad512::<BITS>(codes, quad), up);
            let value = _mm512_srli_epi32::<24>(top);
            let bias = if BITS == 8 { Self::SIGNED_BIAS } else { 0 };
            [_mm512_cvtepi32_ps(_mm512_sub_epi32(
                value,
                _mm512_set1_epi32(bias),
            ))]
        }
    }
}

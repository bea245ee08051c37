//! [`Simd`] on x86-64.

use std::arch::x86_64::*;

use super::Simd;

/// AVX2, FMA and F16C: 8 lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// AVX-512 F, BW, VL and VNNI: 16 lanes.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

/// Adds or compares the halves of a vector down to one lane, in the same order on both paths.
macro_rules! fold128 {
    ($quad:expr, $op:ident, $op_one:ident) => {{
        let quad = $quad;
        let pair = $op(quad, _mm_movehl_ps(quad, quad));
        _mm_cvtss_f32($op_one(pair, _mm_shuffle_ps::<1>(pair, pair)))
    }};
}

// SAFETY of every method below: the trait's contract (instruction set present, pointers valid for N elements).
#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx2 {
    type V = __m256;
    type Row = [__m256; 2];
    const N: usize = 8;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn row_splat(value: f32) -> [__m256; 2] {
        unsafe { [_mm256_set1_ps(value); 2] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn exp2_of_low_bits(v: __m256) -> __m256 {
        unsafe {
            let bits = _mm256_slli_epi32::<23>(_mm256_castps_si256(v));
            _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f80_0000)))
        }
    }
    #[inline(always)]
    unsafe fn zero_where_less(a: __m256, b: __m256, v: __m256) -> __m256 {
        unsafe { _mm256_andnot_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(a, b), v) }
    }
    #[inline(always)]
    unsafe fn sum(v: __m256) -> f32 {
        unsafe {
            let quad = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            fold128!(quad, _mm_add_ps, _mm_add_ss)
        }
    }
    #[inline(always)]
    unsafe fn maximum(v: __m256) -> f32 {
        unsafe {
            let quad = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            fold128!(quad, _mm_max_ps, _mm_max_ss)
        }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> __m256 {
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks)]
impl Simd for Avx512 {
    type V = __m512;
    type Row = [__m512; 1];
    const N: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn row_splat(value: f32) -> [__m512; 1] {
        unsafe { [_mm512_set1_ps(value)] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn exp2_of_low_bits(v: __m512) -> __m512 {
        unsafe {
            let bits = _mm512_slli_epi32::<23>(_mm512_castps_si512(v));
            _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f80_0000)))
        }
    }
    #[inline(always)]
    unsafe fn zero_where_less(a: __m512, b: __m512, v: __m512) -> __m512 {
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(a, b), v) }
    }
    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        unsafe { Avx2::sum(_mm256_add_ps(low(v), high(v))) }
    }
    #[inline(always)]
    unsafe fn maximum(v: __m512) -> f32 {
        unsafe { Avx2::maximum(_mm256_max_ps(low(v), high(v))) }
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
}

#[inline(always)]
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe fn low(v: __m512) -> __m256 {
    unsafe { _mm512_castps512_ps256(v) }
}

#[inline(always)]
#[allow(clippy::undocumented_unsafe_blocks)]
unsafe fn high(v: __m512) -> __m256 {
    unsafe { _mm256_castpd_ps(_mm512_extractf64x4_pd::<1>(_mm512_castps_pd(v))) }
}

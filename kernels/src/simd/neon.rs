//! [`Simd`] on AArch64.

use std::arch::aarch64::*;

use super::Simd;

/// NEON: 4 lanes.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

/// NEON with the 8-bit dot product; the f32 part is the same.
#[derive(Clone, Copy)]
pub(crate) struct NeonDot;

macro_rules! impl_neon {
    ($path:ident) => {
        // SAFETY of every method: the trait's contract (pointers valid for N elements).
        #[allow(clippy::undocumented_unsafe_blocks)]
        impl Simd for $path {
            type V = float32x4_t;
            type Row = [float32x4_t; 4];
            const N: usize = 4;

            #[inline(always)]
            unsafe fn splat(value: f32) -> float32x4_t {
                unsafe { vdupq_n_f32(value) }
            }
            #[inline(always)]
            unsafe fn row_splat(value: f32) -> [float32x4_t; 4] {
                unsafe { [vdupq_n_f32(value); 4] }
            }
            #[inline(always)]
            unsafe fn load(from: *const f32) -> float32x4_t {
                unsafe { vld1q_f32(from) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut f32, v: float32x4_t) {
                unsafe { vst1q_f32(to, v) }
            }
            #[inline(always)]
            unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
                unsafe { vaddq_f32(a, b) }
            }
            #[inline(always)]
            unsafe fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
                unsafe { vsubq_f32(a, b) }
            }
            #[inline(always)]
            unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
                unsafe { vmulq_f32(a, b) }
            }
            #[inline(always)]
            unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
                unsafe { vdivq_f32(a, b) }
            }
            #[inline(always)]
            unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
                unsafe { vmaxq_f32(a, b) }
            }
            #[inline(always)]
            unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
                unsafe { vminq_f32(a, b) }
            }
            #[inline(always)]
            unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
                unsafe { vfmaq_f32(c, a, b) }
            }
            #[inline(always)]
            unsafe fn exp2_of_low_bits(v: float32x4_t) -> float32x4_t {
                unsafe {
                    let bits = vshlq_n_s32::<23>(vreinterpretq_s32_f32(v));
                    vreinterpretq_f32_s32(vaddq_s32(bits, vdupq_n_s32(0x3f80_0000)))
                }
            }
            #[inline(always)]
            unsafe fn zero_where_less(a: float32x4_t, b: float32x4_t, v: float32x4_t) -> float32x4_t {
                unsafe { vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), vcltq_f32(a, b))) }
            }
            #[inline(always)]
            unsafe fn sum(v: float32x4_t) -> f32 {
                unsafe { vaddvq_f32(v) }
            }
            #[inline(always)]
            unsafe fn maximum(v: float32x4_t) -> f32 {
                unsafe { vmaxvq_f32(v) }
            }
            #[inline(always)]
            unsafe fn load_f16(from: *const u16) -> float32x4_t {
                // The f16 vector type is not stable; the conversion is base ARMv8, so it is written out.
                let out: float32x4_t;
                unsafe {
                    let half = vld1_u16(from);
                    std::arch::asm!(
                        "fcvtl {out:v}.4s, {half:v}.4h",
                        out = lateout(vreg) out,
                        half = in(vreg) half,
                        options(pure, nomem, nostack, preserves_flags)
                    );
                }
                out
            }
            #[inline(always)]
            unsafe fn load_bf16(from: *const u16) -> float32x4_t {
                unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from))) }
            }
            #[inline(always)]
            unsafe fn load_u8(from: *const u8) -> float32x4_t {
                unsafe {
                    let word = from.cast::<u32>().read_unaligned();
                    let wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word)));
                    vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide)))
                }
            }
            #[inline(always)]
            unsafe fn load_i8(from: *const i8) -> float32x4_t {
                unsafe {
                    let word = from.cast::<u32>().read_unaligned();
                    let wide = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(word)));
                    vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)))
                }
            }
        }
    };
}

impl_neon!(Neon);
impl_neon!(NeonDot);

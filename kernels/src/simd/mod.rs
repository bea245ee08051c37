//! Vectors of f32 for every [`CpuPath`], and the way from a path to code compiled for it.
//!
//! A kernel is a [`SimdOp`]: one generic `run` over [`Simd`], instantiated inside a function that has the path's target
//! features. Everything on the way must be `#[inline(always)]`, or it would be compiled without them.

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) mod math;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{Neon, NeonDot};
pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

use candle_core::DType;

use crate::quantized::BlockDot;
use crate::{CpuPath, Element};

/// A vector of [`Simd::N`] f32 and the operations that the kernels need.
///
/// # Safety
/// Every method may be called only where the processor has the instruction set, and pointers must be valid for the
/// `N` elements read or written; they need no alignment.
pub(crate) trait Simd: Copy {
    /// `N` lanes.
    type V: Copy;
    /// 16 lanes: `16 / N` vectors.
    type Row: Copy + AsRef<[Self::V]> + AsMut<[Self::V]>;
    /// Lanes; divides 16.
    const N: usize;

    unsafe fn splat(value: f32) -> Self::V;
    unsafe fn row_splat(value: f32) -> Self::Row;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn store(to: *mut f32, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the processor can.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `2^n` for the integers `n` that stand in the low mantissa bits of `v` (see [`math::exp`]).
    unsafe fn exp2_of_low_bits(v: Self::V) -> Self::V;
    /// `v`, but 0 in the lanes where `a < b`.
    unsafe fn zero_where_less(a: Self::V, b: Self::V, v: Self::V) -> Self::V;
    /// The sum of all lanes, in a fixed order.
    unsafe fn sum(v: Self::V) -> f32;
    /// The largest lane.
    unsafe fn maximum(v: Self::V) -> f32;
    /// `N` f16 values.
    unsafe fn load_f16(from: *const u16) -> Self::V;
    /// `N` bf16 values.
    unsafe fn load_bf16(from: *const u16) -> Self::V;
    /// `N` unsigned bytes.
    unsafe fn load_u8(from: *const u8) -> Self::V;
    /// `N` signed bytes.
    unsafe fn load_i8(from: *const i8) -> Self::V;
}

/// Widens `source` into the first elements of `target`, as [`Element::widen`] but with this path's own instructions.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn widen<S: Simd, T: Element>(source: &[T], target: &mut [f32]) {
    // Only f16 gains: the other types' conversions become vector code by themselves.
    if T::DTYPE != DType::F16 {
        return T::widen(source, &mut target[..source.len()]);
    }
    let target = &mut target[..source.len()];
    let whole = source.len() / S::N * S::N;
    for i in (0..whole).step_by(S::N) {
        // SAFETY: both slices hold `S::N` elements from `i` on, and T is f16, which has the layout of u16.
        unsafe {
            S::store(
                target.as_mut_ptr().add(i),
                S::load_f16(source.as_ptr().add(i).cast()),
            )
        };
    }
    T::widen(&source[whole..], &mut target[whole..]);
}

/// A kernel, generic over the instruction set.
pub(crate) trait SimdOp {
    /// What it gives.
    type Output;
    /// Runs it.
    ///
    /// # Safety
    /// As for [`Simd`]: [`dispatch`] is the only caller. Implementations are `#[inline(always)]`.
    unsafe fn run<S: Simd + BlockDot>(self) -> Self::Output;
}

/// Runs `op` with the instruction set of `path`, which must be available (a [`CpuPath::current`] is).
#[inline]
pub(crate) fn dispatch<O: SimdOp>(path: CpuPath, op: O) -> O::Output {
    match path {
        // SAFETY: a path in force is available, so the processor has these features.
        #[cfg(target_arch = "x86_64")]
        CpuPath::Avx512 => unsafe { avx512(op) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        CpuPath::Avx2 => unsafe { avx2(op) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        CpuPath::NeonDot => unsafe { neon_dot(op) },
        // SAFETY: every AArch64 processor that Rust targets has NEON.
        #[cfg(target_arch = "aarch64")]
        CpuPath::Neon => unsafe { op.run::<Neon>() },
        // SAFETY: plain Rust needs no feature.
        _ => unsafe { op.run::<Portable>() },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn avx512<O: SimdOp>(op: O) -> O::Output {
    // SAFETY: this function's own features are the ones that `run` needs.
    unsafe { op.run::<Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<O: SimdOp>(op: O) -> O::Output {
    // SAFETY: this function's own features are the ones that `run` needs.
    unsafe { op.run::<Avx2>() }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon,dotprod")]
unsafe fn neon_dot<O: SimdOp>(op: O) -> O::Output {
    // SAFETY: this function's own features are the ones that `run` needs.
    unsafe { op.run::<NeonDot>() }
}

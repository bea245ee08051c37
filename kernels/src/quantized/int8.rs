//! The 8-bit dot product of one tile block with rows of activations, for every instruction set.

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::simd::Simd;

/// Runs `$body` once for each `$g` in the list, as a constant.
#[allow(unused_macros)]
macro_rules! unrolled {
    ($g:ident in [$($v:literal)*] $body:block) => { $( { const $g: usize = $v; $body } )* };
}
#[allow(unused_imports)]
pub(crate) use unrolled;

/// Integer dot products of a block of 16 columns by 32 elements.
pub(crate) trait BlockDot: Simd {
    /// Rows of activations that one pass over a block serves best.
    const ROWS: usize;
    /// What must be added to an offset because signed codes are read with this much on top of them.
    const SIGNED_BIAS: i32;

    /// For each of `M` rows: `sum(code * x)` for each column, plus `correction`, rounded to f32 (32-bit
    /// integers before that).
    ///
    /// With `HALVES`, the sums of the two half blocks are multiplied by their own `halves[half][column]` first.
    ///
    /// # Safety
    /// As for [`Simd`]; `codes` holds a packed block of `BITS` bits, each of `x` 32 values in -127..=127, and `halves`
    /// 32 values if `HALVES`.
    unsafe fn dot<const BITS: u32, const HALVES: bool, const M: usize>(
        codes: *const u8,
        halves: *const i8,
        x: [*const i8; M],
        correction: [i32; M],
    ) -> [Self::Row; M];

    /// Element `4 * quad + j` of each column, as f32.
    ///
    /// # Safety
    /// As for [`Simd`]; `codes` holds a packed block of `BITS` bits.
    unsafe fn element<const BITS: u32>(codes: *const u8, quad: usize, j: usize) -> Self::Row;
}

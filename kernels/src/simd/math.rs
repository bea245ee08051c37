//! Functions built from [`Simd`] operations.

use super::Simd;

/// `e^x` to about 1e-7 relative; exactly 0 below -87.3 and finite (3.3e38) above 88.7.
///
/// Range reduction and polynomial as in Cephes' `expf`: `x = n ln 2 + r`, `|r| <= ln 2 / 2`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    /// Adding this leaves the nearest integer in the low bits of the mantissa.
    const MAGIC: f32 = 12_582_912.0;
    // SAFETY: the caller's promise.
    unsafe {
        // The variable goes second: x86 gives the second operand if one is NaN, so that a NaN stays one.
        let x = S::min(S::splat(88.0), x);
        // Below this the result is taken as 0 (e^-87.3 is the last normal number).
        let low = S::splat(-87.0);
        let clamped = S::max(low, x);
        let t = S::fma(clamped, S::splat(std::f32::consts::LOG2_E), S::splat(MAGIC));
        let n = S::sub(t, S::splat(MAGIC));
        let r = S::fma(n, S::splat(-0.693_359_4), clamped);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.987_569_1e-4);
        p = S::fma(p, r, S::splat(1.398_199_9e-3));
        p = S::fma(p, r, S::splat(8.333_452e-3));
        p = S::fma(p, r, S::splat(4.166_579_6e-2));
        p = S::fma(p, r, S::splat(1.666_666_5e-1));
        p = S::fma(p, r, S::splat(0.5));
        let p = S::fma(S::mul(p, r), r, S::add(r, S::splat(1.0)));
        S::zero_where_less(x, low, S::mul(p, S::exp2_of_low_bits(t)))
    }
}

//! Matmul with dense weights for a few rows of activations: decoding, and the rows that speculative decoding verifies.
//!
//! General matrix products choose their blocking, and with it the order of their sums, by the number of rows. Here each output is
//! summed in one order, so that a row's result does not depend on how many rows run together, bit for bit.

mod cpu;
#[cfg(test)]
mod tests;

use candle_core::{Result, Tensor};

use crate::EXACT_ROWS;
use crate::tensor::{check_dtype, for_element, from_values, with_slice};

pub use cpu::few_rows_slice;

/// `x W^T` for `x` `[M, K]` and dense weights `[N, K]` of one dtype (f32, f16 or bf16): `[M, N]` in that dtype, sums in f32.
///
/// On the CPU, up to [`EXACT_ROWS`] rows take this module's kernel; more rows, and other devices, take the tensor library's product.
///
/// # Errors
/// If shapes or dtypes do not fit or the device fails.
pub fn dense_matmul(x: &Tensor, weights: &Tensor) -> Result<Tensor> {
    let ((m, k), (n, columns)) = (x.dims2()?, weights.dims2()?);
    if k != columns {
        candle_core::bail!(
            "matmul: {:?} does not fit weights [{n}, {columns}]",
            x.shape()
        );
    }
    check_dtype("the weight matrix", x.dtype(), weights)?;
    let ours = x.device().is_cpu() && m <= EXACT_ROWS && weights.is_contiguous();
    if !ours {
        return x.matmul(&weights.t()?);
    }
    for_element!(x.dtype(), T => with_slice::<T, _>(x, |x| with_slice::<T, _>(weights, |weights| {
        let mut out = vec![0f32; m * n];
        if let Some(x) = <T as crate::Element>::as_f32(x) {
            few_rows_slice(x, weights, k, &mut out);
            return from_values(out, (m, n))?.to_dtype(<T as candle_core::WithDType>::DTYPE);
        }
        let mut wide = vec![0f32; x.len()];
        <T as crate::Element>::widen(x, &mut wide);
        few_rows_slice(&wide, weights, k, &mut out);
        let mut narrow = vec![T::default(); out.len()];
        <T as crate::Element>::narrow(&out, &mut narrow);
        from_values(narrow, (m, n))
    })))
}

//! RMSNorm (Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>), alone and with the residual sum before it.

mod cpu;
#[cfg(test)]
mod tests;

use candle_core::{D, DType, Result, Tensor};

use crate::tensor::{check_dtype, for_element, from_values, with_slice};

pub use cpu::{add_rms_norm_slice, rms_norm_slice};

/// `x / sqrt(mean(x^2) + eps) * weight` over the last dimension of `x` (`[.., K]`); `weight` is `[K]`, of x's dtype,
/// which the result keeps. The mean and the products are f32, rounded once at the end.
///
/// # Errors
/// If shapes or dtypes do not fit, or the dtype is none of f32, f16, bf16.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    check(x, weight)?;
    if !x.device().is_cpu() {
        return stock(x, weight, eps);
    }
    for_element!(x.dtype(), T => with_slice::<T, _>(x, |xs| {
        with_slice::<T, _>(weight, |w| {
            let mut out = vec![T::default(); xs.len()];
            rms_norm_slice(xs, w, eps, &mut out);
            from_values(out, x.shape())
        })
    }))
}

/// Adds a residual and norms the sum: gives `(x + residual, rms_norm(x + residual, weight, eps))`.
///
/// The sum is rounded to the dtype before it is normed, as separate operations would.
///
/// # Errors
/// If shapes or dtypes do not fit, or the dtype is none of f32, f16, bf16.
pub fn add_rms_norm(
    x: &Tensor,
    residual: &Tensor,
    weight: &Tensor,
    eps: f32,
) -> Result<(Tensor, Tensor)> {
    check(x, weight)?;
    check_dtype("the residual", x.dtype(), residual)?;
    if x.shape() != residual.shape() {
        candle_core::bail!(
            "add_rms_norm: x is {:?} and the residual is {:?}",
            x.shape(),
            residual.shape()
        );
    }
    if !x.device().is_cpu() {
        let sum = (x + residual)?;
        let normed = stock(&sum, weight, eps)?;
        return Ok((sum, normed));
    }
    for_element!(x.dtype(), T => with_slice::<T, _>(x, |xs| {
        with_slice::<T, _>(residual, |rs| {
            with_slice::<T, _>(weight, |w| {
                let mut sum = vec![T::default(); xs.len()];
                let mut normed = vec![T::default(); xs.len()];
                add_rms_norm_slice(xs, rs, w, eps, &mut sum, &mut normed);
                Ok((from_values(sum, x.shape())?, from_values(normed, x.shape())?))
            })
        })
    }))
}

fn check(x: &Tensor, weight: &Tensor) -> Result<()> {
    check_dtype("the norm weight", x.dtype(), weight)?;
    let width = x.dim(D::Minus1)?;
    if weight.dims() != [width] || width == 0 {
        candle_core::bail!(
            "rms_norm: rows of {width} need a weight of shape [{width}], got {:?}",
            weight.shape()
        );
    }
    Ok(())
}

fn stock(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let mean = wide.sqr()?.mean_keepdim(D::Minus1)?;
    let normed = wide.broadcast_div(&(mean + f64::from(eps))?.sqrt()?)?;
    normed
        .broadcast_mul(&weight.to_dtype(DType::F32)?)?
        .to_dtype(x.dtype())
}

/// The operation in f64 on rows of `weight.len()` values, the measure for every faster version.
pub fn reference(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mut out = Vec::with_capacity(x.len());
    for row in x.chunks_exact(weight.len()) {
        let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
        let scale = 1.0 / (mean + eps).sqrt();
        out.extend(row.iter().zip(weight).map(|(v, w)| v * scale * w));
    }
    out
}

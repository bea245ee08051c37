//! The gates around the recurrence: decay and beta before it, the gated norm after it, and the sigmoid output gate of the
//! full-attention layers in the same models.

mod cpu;
#[cfg(test)]
mod tests;

use candle_core::{D, DType, Result, Tensor};

use crate::tensor::{check_dtype, for_element, from_values, with_slice};

pub use cpu::{decay_and_beta_slice, gated_rms_norm_slice, sigmoid_mul_slice};

/// `rms_norm(x) * weight * silu(gate)` over the last dimension; `gate` has x's shape and dtype, which the result keeps,
/// and `weight` is `[D]` in f32 or x's dtype. Everything inside is f32, rounded once.
///
/// # Errors
/// If shapes or dtypes do not fit, or the dtype is none of f32, f16, bf16.
pub fn gated_rms_norm(x: &Tensor, gate: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    same("gated_rms_norm", x, gate)?;
    let width = x.dim(D::Minus1)?;
    if weight.dims() != [width] || width == 0 {
        candle_core::bail!(
            "gated_rms_norm: rows of {width} need a weight of shape [{width}], got {:?}",
            weight.shape()
        );
    }
    if weight.dtype() != DType::F32 {
        check_dtype("the norm weight", x.dtype(), weight)?;
    }
    if !x.device().is_cpu() {
        return stock_gated_rms_norm(x, gate, weight, eps);
    }
    let weight = weight.to_dtype(DType::F32)?;
    for_element!(x.dtype(), T => with_slice::<T, _>(x, |xs| with_slice::<T, _>(gate, |gate| {
        with_slice::<f32, _>(&weight, |weight| {
            let mut out = vec![T::default(); xs.len()];
            gated_rms_norm_slice(xs, gate, weight, eps, &mut out);
            from_values(out, x.shape())
        })
    })))
}

/// `x * sigmoid(gate)`, element by element; both have the same shape and dtype, which the result keeps.
///
/// # Errors
/// If shapes or dtypes differ, or the dtype is none of f32, f16, bf16.
pub fn sigmoid_mul(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    same("sigmoid_mul", x, gate)?;
    if !x.device().is_cpu() {
        return stock_sigmoid_mul(x, gate);
    }
    for_element!(x.dtype(), T => with_slice::<T, _>(x, |xs| with_slice::<T, _>(gate, |gate| {
        let mut out = vec![T::default(); xs.len()];
        sigmoid_mul_slice(xs, gate, &mut out);
        from_values(out, x.shape())
    })))
}

/// The log decay `g = -exp(a_log) * softplus(a + dt_bias)` and `beta = sigmoid(b)`, both `[T, Hv]` in f32.
///
/// `a` and `b` are `[T, Hv]` in any float dtype, `a_log` and `dt_bias` are `[Hv]` in f32. Softplus is exact (`x` itself, not infinity)
/// for large inputs.
///
/// # Errors
/// If shapes or dtypes do not fit.
pub fn decay_and_beta(
    a: &Tensor,
    b: &Tensor,
    a_log: &Tensor,
    dt_bias: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (_, heads) = a.dims2()?;
    check_dtype("a_log", DType::F32, a_log)?;
    check_dtype("dt_bias", DType::F32, dt_bias)?;
    if a.shape() != b.shape() || a_log.dims() != [heads] || dt_bias.dims() != [heads] {
        candle_core::bail!(
            "decay_and_beta: a {:?} and b {:?} ([T, Hv]) do not fit a_log {:?} and dt_bias {:?} ([Hv])",
            a.shape(),
            b.shape(),
            a_log.shape(),
            dt_bias.shape()
        );
    }
    let (a, b) = (a.to_dtype(DType::F32)?, b.to_dtype(DType::F32)?);
    if !a.device().is_cpu() {
        return stock_decay_and_beta(&a, &b, a_log, dt_bias);
    }
    with_slice::<f32, _>(&a, |a_values| {
        with_slice::<f32, _>(&b, |b_values| {
            with_slice::<f32, _>(a_log, |a_log| {
                with_slice::<f32, _>(dt_bias, |dt_bias| {
                    let mut decay = vec![0.0; a_values.len()];
                    let mut beta = vec![0.0; a_values.len()];
                    decay_and_beta_slice(a_values, b_values, a_log, dt_bias, &mut decay, &mut beta);
                    Ok((
                        from_values(decay, a.shape())?,
                        from_values(beta, a.shape())?,
                    ))
                })
            })
        })
    })
}

fn same(what: &str, x: &Tensor, gate: &Tensor) -> Result<()> {
    check_dtype("the gate", x.dtype(), gate)?;
    if x.shape() != gate.shape() {
        candle_core::bail!(
            "{what}: x is {:?} and the gate is {:?}",
            x.shape(),
            gate.shape()
        );
    }
    if !matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16) {
        candle_core::bail!(
            "{what} takes f32, f16 or bf16, got {:?}; convert the tensor first",
            x.dtype()
        );
    }
    Ok(())
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}

fn stock_gated_rms_norm(x: &Tensor, gate: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F32)?;
    let mean = wide.sqr()?.mean_keepdim(D::Minus1)?;
    let normed = wide.broadcast_div(&(mean + f64::from(eps))?.sqrt()?)?;
    let normed = normed.broadcast_mul(&weight.to_dtype(DType::F32)?)?;
    (normed * gate.to_dtype(DType::F32)?.silu()?)?.to_dtype(x.dtype())
}

fn stock_sigmoid_mul(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    let gate = sigmoid(&gate.to_dtype(DType::F32)?)?;
    (x.to_dtype(DType::F32)? * gate)?.to_dtype(x.dtype())
}

fn stock_decay_and_beta(
    a: &Tensor,
    b: &Tensor,
    a_log: &Tensor,
    dt_bias: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let x = a.broadcast_add(dt_bias)?;
    // softplus(x) = max(x, 0) + ln(1 + exp(-|x|)): the exponential never overflows.
    let softplus = (x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?)?;
    let decay = softplus.broadcast_mul(&a_log.exp()?.neg()?)?;
    Ok((decay, sigmoid(b)?))
}

/// [`gated_rms_norm`] in f64 on rows of `weight.len()` values, the measure for every faster version.
pub fn gated_rms_norm_reference(x: &[f64], gate: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let normed = crate::norm::reference(x, weight, eps);
    let gated = |(x, gate): (f64, &f64)| x * gate / (1.0 + (-gate).exp());
    normed.into_iter().zip(gate).map(gated).collect()
}

/// [`sigmoid_mul`] in f64, the measure for every faster version.
pub fn sigmoid_mul_reference(x: &[f64], gate: &[f64]) -> Vec<f64> {
    x.iter()
        .zip(gate)
        .map(|(x, gate)| x / (1.0 + (-gate).exp()))
        .collect()
}

/// [`decay_and_beta`] in f64 on rows of `a_log.len()` values, the measure for every faster version.
pub fn decay_and_beta_reference(
    a: &[f64],
    b: &[f64],
    a_log: &[f64],
    dt_bias: &[f64],
) -> (Vec<f64>, Vec<f64>) {
    let decay = a.iter().enumerate().map(|(i, a)| {
        let head = i % a_log.len();
        let x = a + dt_bias[head];
        -a_log[head].exp() * (x.max(0.0) + (-x.abs()).exp().ln_1p())
    });
    let beta = b.iter().map(|b| 1.0 / (1.0 + (-b).exp()));
    (decay.collect(), beta.collect())
}

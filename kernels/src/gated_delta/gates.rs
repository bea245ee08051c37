//! The gates around the recurrence: decay and beta before it, the gated norm after it, and the sigmoid output gate of the
//! full-attention layers in the same models.

use candle_core::{D, DType, Result, Tensor};

use crate::tensor::check_dtype;

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
    stock_gated_rms_norm(x, gate, weight, eps)
}

/// `x * sigmoid(gate)`, element by element; both have the same shape and dtype, which the result keeps.
///
/// # Errors
/// If shapes or dtypes differ, or the dtype is none of f32, f16, bf16.
pub fn sigmoid_mul(x: &Tensor, gate: &Tensor) -> Result<Tensor> {
    same("sigmoid_mul", x, gate)?;
    stock_sigmoid_mul(x, gate)
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
    stock_decay_and_beta(
        &a.to_dtype(DType::F32)?,
        &b.to_dtype(DType::F32)?,
        a_log,
        dt_bias,
    )
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

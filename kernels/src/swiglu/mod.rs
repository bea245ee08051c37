//! SwiGLU's gate: `silu(gate) * up`, fused (Shazeer 2020, <https://arxiv.org/abs/2002.05202>).

mod cpu;
#[cfg(test)]
mod tests;

use candle_core::{D, DType, Result, Tensor};

use crate::tensor::{check_dtype, for_element, from_values, with_slice};

pub use cpu::{swiglu_fused_slice, swiglu_slice};

/// `silu(gate) * up`, element by element; both have the same shape and dtype, which the result keeps.
///
/// # Errors
/// If shapes or dtypes differ, or the dtype is none of f32, f16, bf16.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    check_dtype("up", gate.dtype(), up)?;
    if gate.shape() != up.shape() {
        candle_core::bail!(
            "swiglu: gate is {:?} and up is {:?}",
            gate.shape(),
            up.shape()
        );
    }
    if !gate.device().is_cpu() {
        return stock(gate, up);
    }
    for_element!(gate.dtype(), T => with_slice::<T, _>(gate, |g| {
        with_slice::<T, _>(up, |u| {
            let mut out = vec![T::default(); g.len()];
            swiglu_slice(g, u, &mut out);
            from_values(out, gate.shape())
        })
    }))
}

/// [`swiglu`] of one tensor `[.., 2 * I]` that holds a row's gates and then its up projections; gives `[.., I]`.
///
/// # Errors
/// If the last dimension is odd, or the dtype is none of f32, f16, bf16.
pub fn swiglu_fused(gate_up: &Tensor) -> Result<Tensor> {
    let width = gate_up.dim(D::Minus1)?;
    if width % 2 != 0 {
        candle_core::bail!(
            "swiglu_fused: the last dimension holds gates and up projections, so it cannot be {width}"
        );
    }
    let half = width / 2;
    if !gate_up.device().is_cpu() {
        return stock(
            &gate_up.narrow(D::Minus1, 0, half)?,
            &gate_up.narrow(D::Minus1, half, half)?,
        );
    }
    let mut shape = gate_up.dims().to_vec();
    if let Some(last) = shape.last_mut() {
        *last = half;
    }
    for_element!(gate_up.dtype(), T => with_slice::<T, _>(gate_up, |x| {
        let mut out = vec![T::default(); x.len() / 2];
        swiglu_fused_slice(x, half, &mut out);
        from_values(out, shape)
    }))
}

fn stock(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let wide = (gate.to_dtype(DType::F32)?.silu()? * up.to_dtype(DType::F32)?)?;
    wide.to_dtype(gate.dtype())
}

/// The operation in f64, the measure for every faster version.
pub fn reference(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter()
        .zip(up)
        .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
        .collect()
}

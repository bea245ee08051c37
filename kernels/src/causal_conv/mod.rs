//! Depthwise causal convolution over time with SiLU behind it: the short convolution in front of linear attention
//! (Mamba, Gu and Dao 2023, <https://arxiv.org/abs/2312.00752>; Gated Delta Networks, <https://arxiv.org/abs/2412.06464>).

mod cpu;
mod stock;
#[cfg(test)]
mod tests;

use candle_core::{DType, Result, Tensor};

use crate::tensor::{check_dtype, for_element, from_values, with_slice, with_storage};

pub use cpu::{ConvShape, causal_conv1d_silu_slice};

/// `silu(sum_j weight[c, j] * padded[t + j, c])`, where `padded` is `state` followed by `x`; gives `(y, new state)`.
///
/// `x` is `[T, C]`, possibly with a stride between rows (a view of some columns of a fused projection); `weight` is
/// `[C, K]` in f32 or x's dtype (f32 spares a conversion at every call). `state` is `[K - 1, C]` in x's dtype: the last
/// `K - 1` inputs, oldest first, laid out as rows of `x` so that neither old nor new ones are ever transposed; `None`
/// means zeros. The result `[T, C]` and the new state `[K - 1, C]` have x's dtype; sums are f32. `state` is not changed.
///
/// # Errors
/// If shapes or dtypes do not fit, or the dtype is none of f32, f16, bf16.
pub fn causal_conv1d_silu(
    x: &Tensor,
    weight: &Tensor,
    state: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let (tokens, channels) = x.dims2()?;
    let (rows, taps) = weight.dims2()?;
    if rows != channels || taps == 0 {
        candle_core::bail!(
            "causal_conv1d_silu: {channels} channels need a weight of shape [{channels}, K], got {:?}",
            weight.shape()
        );
    }
    if weight.dtype() != DType::F32 {
        check_dtype("the convolution weight", x.dtype(), weight)?;
    }
    if let Some(state) = state {
        check_dtype("the convolution state", x.dtype(), state)?;
        if state.dims() != [taps - 1, channels] {
            candle_core::bail!(
                "causal_conv1d_silu: the state must be [{}, {channels}], got {:?}",
                taps - 1,
                state.shape()
            );
        }
    }
    let weight = weight.to_dtype(DType::F32)?;
    if !x.device().is_cpu() {
        return stock::causal_conv1d_silu(x, &weight, state);
    }
    let zeros;
    let state = match state {
        Some(state) => state,
        None => {
            zeros = Tensor::zeros((taps - 1, channels), x.dtype(), x.device())?;
            &zeros
        }
    };
    let x = if x.stride()[1] == 1 {
        x.clone()
    } else {
        x.contiguous()?
    };
    for_element!(x.dtype(), T => with_storage::<T, _>(&x, |data, layout| {
        with_slice::<f32, _>(&weight, |weight| with_slice::<T, _>(state, |state| {
            let shape = ConvShape { tokens, channels, taps, stride: layout.stride()[0] };
            let mut y = vec![T::default(); tokens * channels];
            let mut new_state = vec![T::default(); state.len()];
            let x = &data[layout.start_offset()..];
            causal_conv1d_silu_slice(x, weight, state, shape, &mut y, &mut new_state);
            Ok((
                from_values(y, (tokens, channels))?,
                from_values(new_state, (taps - 1, channels))?,
            ))
        }))
    }))
}

/// The operation in f64 on dense `x` `[T, channels]`, `weight` `[channels, taps]` and `state` `[taps - 1, channels]`, the
/// measure for every faster version.
pub fn reference(x: &[f64], weight: &[f64], state: &[f64], channels: usize) -> Vec<f64> {
    let taps = weight.len() / channels;
    let padded = [state, x].concat();
    let mut out = Vec::with_capacity(x.len());
    for i in 0..x.len() {
        let (token, channel) = (i / channels, i % channels);
        let sum: f64 = (0..taps)
            .map(|j| weight[channel * taps + j] * padded[(token + j) * channels + channel])
            .sum();
        out.push(sum / (1.0 + (-sum).exp()));
    }
    out
}

//! The convolution composed of stock candle operations, for devices that have no kernel of ours.

use candle_core::{DType, Result, Tensor};

/// [`super::causal_conv1d_silu`] on any device; arguments as there, already checked, `weight` in f32.
pub(super) fn causal_conv1d_silu(
    x: &Tensor,
    weight: &Tensor,
    state: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let (tokens, channels) = x.dims2()?;
    let taps = weight.dim(1)?;
    let padded = match state {
        _ if taps == 1 => x.clone(),
        Some(state) => Tensor::cat(&[state, x], 0)?,
        None => x.pad_with_zeros(0, taps - 1, 0)?,
    };
    let wide = padded.to_dtype(DType::F32)?;
    let mut sum = wide
        .narrow(0, 0, tokens)?
        .broadcast_mul(&weight.narrow(1, 0, 1)?.reshape((1, channels))?)?;
    for j in 1..taps {
        let tap = weight.narrow(1, j, 1)?.reshape((1, channels))?;
        sum = (sum + wide.narrow(0, j, tokens)?.broadcast_mul(&tap)?)?;
    }
    // A copy: a view would keep the whole padded input alive for as long as the state is kept.
    let new_state = padded.narrow(0, tokens, taps - 1)?.copy()?;
    Ok((sum.silu()?.to_dtype(x.dtype())?, new_state))
}

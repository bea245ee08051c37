use crate::Element;

/// Sizes of one convolution.
#[derive(Clone, Copy, Debug)]
pub struct ConvShape {
    /// Rows of `x`.
    pub tokens: usize,
    /// Columns of `x`.
    pub channels: usize,
    /// Taps of each channel's filter.
    pub taps: usize,
    /// From one row of `x` to the next, in elements.
    pub stride: usize,
}

/// The convolution on slices: `x` strided as `shape` says, `weight` `[channels, taps]`, both states `[taps - 1, channels]`, `y`
/// `[tokens, channels]`.
///
/// # Panics
/// If a slice is shorter than the shape says.
pub fn causal_conv1d_silu_slice<T: Element>(
    x: &[T],
    weight: &[f32],
    state: &[T],
    shape: ConvShape,
    y: &mut [T],
    new_state: &mut [T],
) {
    let ConvShape {
        tokens,
        channels,
        taps,
        stride,
    } = shape;
    let row = |i: usize| match i.checked_sub(taps - 1) {
        Some(token) => &x[token * stride..][..channels],
        None => &state[i * channels..][..channels],
    };
    for t in 0..tokens {
        for c in 0..channels {
            let mut sum = 0.0;
            for j in 0..taps {
                sum += weight[c * taps + j] * row(t + j)[c].to_f32();
            }
            y[t * channels + c] = T::from_f32(sum / (1.0 + (-sum).exp()));
        }
    }
    for j in 0..taps - 1 {
        new_state[j * channels..][..channels].copy_from_slice(row(tokens + j));
    }
}

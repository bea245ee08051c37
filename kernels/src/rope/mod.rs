//! Rotary position embedding (Su et al. 2021, <https://arxiv.org/abs/2104.09864>) in the "rotate half" layout:
//! element `i` of a head is paired with element `i + R/2`.

mod cpu;
#[cfg(test)]
mod tests;

use candle_core::{D, DType, Result, Tensor};

use crate::tensor::{for_element, from_values, with_slice, with_storage};

pub use cpu::{RopeShape, rope_slice};

/// Rotates the first `R` dimensions of every head and copies the rest (partial rotary).
///
/// `x` is `[T, H, D]`, possibly a strided view (last dimension dense); `cos` and `sin` are `[T, R/2]`, the rows of each
/// token's own position, in f32 (any float dtype is taken and widened). The result is dense `[T, H, D]` in x's dtype.
///
/// # Errors
/// If shapes do not fit, `R > D`, or the dtype is none of f32, f16, bf16.
pub fn rope(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let (tokens, heads, dim) = x.dims3()?;
    let (rows, half) = cos.dims2()?;
    if rows != tokens || cos.shape() != sin.shape() || 2 * half > dim {
        candle_core::bail!(
            "rope: x {:?} needs cos and sin of shape [{tokens}, at most {}], got {:?} and {:?}",
            x.shape(),
            dim / 2,
            cos.shape(),
            sin.shape()
        );
    }
    if !x.device().is_cpu() {
        return stock(x, cos, sin);
    }
    let (cos, sin) = (cos.to_dtype(DType::F32)?, sin.to_dtype(DType::F32)?);
    let x = if x.stride()[2] == 1 {
        x.clone()
    } else {
        x.contiguous()?
    };
    for_element!(x.dtype(), T => with_storage::<T, _>(&x, |data, layout| {
        with_slice::<f32, _>(&cos, |cos| with_slice::<f32, _>(&sin, |sin| {
            let mut out = vec![T::default(); tokens * heads * dim];
            let stride = layout.stride();
            let shape = RopeShape { heads, dim, half, token_stride: stride[0], head_stride: stride[1] };
            rope_slice(&data[layout.start_offset()..], cos, sin, shape, &mut out);
            from_values(out, (tokens, heads, dim))
        }))
    }))
}

fn stock(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let half = cos.dim(D::Minus1)?;
    let rest = x.dim(D::Minus1)? - 2 * half;
    let cos = cos.to_dtype(DType::F32)?.unsqueeze(1)?;
    let sin = sin.to_dtype(DType::F32)?.unsqueeze(1)?;
    let a = x.narrow(2, 0, half)?.to_dtype(DType::F32)?;
    let b = x.narrow(2, half, half)?.to_dtype(DType::F32)?;
    let low = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?.to_dtype(x.dtype())?;
    let high = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?.to_dtype(x.dtype())?;
    if rest == 0 {
        return Tensor::cat(&[low, high], 2);
    }
    Tensor::cat(&[low, high, x.narrow(2, 2 * half, rest)?], 2)
}

/// The operation in f64 on dense `[T, heads, dim]`, the measure for every faster version; `cos` and `sin` hold
/// `half` values a token.
pub fn reference(
    x: &[f64],
    cos: &[f64],
    sin: &[f64],
    heads: usize,
    dim: usize,
    half: usize,
) -> Vec<f64> {
    let mut out = x.to_vec();
    for (head, row) in out.chunks_exact_mut(dim).enumerate() {
        let token = head / heads;
        for i in 0..half {
            let (c, s) = (cos[token * half + i], sin[token * half + i]);
            let (a, b) = (row[i], row[half + i]);
            row[i] = a * c - b * s;
            row[half + i] = b * c + a * s;
        }
    }
    out
}

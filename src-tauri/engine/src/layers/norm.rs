//! Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv 1910.07467).

use candle_core::{Result, Tensor};

/// `x / sqrt(mean(x^2) + eps) * weight` over the last dimension; sums in f32, dtype kept.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Tensor,
    eps: f32,
}

impl RmsNorm {
    /// Over a `weight [features]`.
    pub fn new(weight: Tensor, eps: f64) -> Self {
        Self {
            weight,
            eps: eps as f32,
        }
    }

    /// `x [..., features]` -> the same shape.
    ///
    /// # Errors
    /// When the last dimension is not the weight's length or the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        headstart_kernels::rms_norm(x, &self.weight, self.eps)
    }
}

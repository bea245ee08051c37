//! Rotary position embedding at explicit positions, in the "rotate half" layout.

use candle_core::{DType, Device, Result, Tensor};

use crate::{config::RopeConfig, positions::Positions};

/// Frequencies of one model's rotary embedding.
#[derive(Debug, Clone)]
pub struct Rotary {
    inverse_frequencies: Vec<f32>,
    attention_factor: f32,
}

/// cos and sin for the tokens of one forward pass, each `[tokens, dim / 2]`; made once and shared by all layers.
#[derive(Debug, Clone)]
pub struct RotaryAngles {
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    /// From the hyper-parameters and, for GGUFs of Llama 3, per-dimension divisors of the frequencies.
    pub fn new(config: &RopeConfig, factors: Option<&[f32]>) -> Self {
        let (mut inverse_frequencies, attention_factor) = config.inverse_frequencies();
        if let Some(factors) = factors {
            for (frequency, factor) in inverse_frequencies.iter_mut().zip(factors) {
                *frequency /= factor;
            }
        }
        Self {
            inverse_frequencies,
            attention_factor,
        }
    }

    /// Angles at `positions`: computed in f32, stored as `dtype` (the dtype of the heads to be turned).
    ///
    /// # Errors
    /// When the device fails.
    pub fn angles(
        &self,
        positions: &Positions,
        dtype: DType,
        device: &Device,
    ) -> Result<RotaryAngles> {
        let half = self.inverse_frequencies.len();
        let mut cos = Vec::with_capacity(positions.len() * half);
        let mut sin = Vec::with_capacity(positions.len() * half);
        for position in positions.order() {
            for frequency in &self.inverse_frequencies {
                let angle = *position as f32 * frequency;
                cos.push(angle.cos() * self.attention_factor);
                sin.push(angle.sin() * self.attention_factor);
            }
        }
        let shape = (positions.len(), half);
        Ok(RotaryAngles {
            cos: Tensor::from_vec(cos, shape, device)?.to_dtype(dtype)?,
            sin: Tensor::from_vec(sin, shape, device)?.to_dtype(dtype)?,
        })
    }
}

impl RotaryAngles {
    /// Turns the first dimensions of `heads [tokens, heads, head_dim]`; the rest and the dtype are kept.
    ///
    /// # Errors
    /// When the shapes do not fit or the device fails.
    pub fn rotate(&self, heads: &Tensor) -> Result<Tensor> {
        headstart_kernels::rope(heads, &self.cos, &self.sin)
    }
}

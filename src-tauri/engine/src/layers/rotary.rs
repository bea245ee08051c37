//! Rotary position embedding at explicit positions, in the "rotate half" layout.

use candle_core::{DType, Device, Result, Tensor};

use crate::{config::RopeConfig, positions::Positions};

/// Frequencies of one model's rotary embedding.
#[derive(Debug, Clone)]
pub struct Rotary {
    inverse_frequencies: Vec<f32>,
    attention_factor: f32,
    /// For every frequency, the row of positions that it turns with.
    axes: Vec<u8>,
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
            axes: axes(config.mrope_section, inverse_frequencies.len()),
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
        let [temporal, height, width] = [0, 1, 2].map(|axis| positions.rotary_row(axis));
        for ((t, h), w) in temporal.iter().zip(height).zip(width) {
            let at = [*t as f32, *h as f32, *w as f32];
            for (frequency, axis) in self.inverse_frequencies.iter().zip(&self.axes) {
                let angle = at[usize::from(*axis)] * frequency;
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

/// Interleaved mRoPE (Qwen3-VL, Qwen3.5): frequencies take turns t, h, w, t, h, w, ... while height and width have some left; all others
/// are temporal.
fn axes(section: Option<[usize; 3]>, half: usize) -> Vec<u8> {
    let [_, height, width] = section.unwrap_or_default();
    (0..half)
        .map(|i| match i % 3 {
            1 if i < 3 * height => 1,
            2 if i < 3 * width => 2,
            _ => 0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RopeScaling;

    #[test]
    fn interleaved_sections() {
        assert_eq!(axes(Some([3, 3, 2]), 8), [0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(axes(Some([2, 1, 1]), 4), [0, 1, 2, 0]);
        assert_eq!(axes(Some([11, 11, 10]), 32)[28..], [1, 2, 0, 1]);
        assert_eq!(axes(None, 4), [0; 4]);
    }

    #[test]
    fn three_rows_turn_their_own_frequencies() {
        let config = RopeConfig {
            theta: 10_000.0,
            dim: 8,
            scaling: RopeScaling::None,
            mrope_section: Some([2, 1, 1]),
        };
        let rotary = Rotary::new(&config, None);
        let positions = Positions::contiguous(0, 1)
            .with_mrope([vec![5], vec![6], vec![7]])
            .unwrap();
        let angles = rotary.angles(&positions, DType::F32, &Device::Cpu).unwrap();
        let found = angles.cos.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let expected = [5.0, 6.0 * 0.1, 7.0 * 0.01, 5.0 * 0.001].map(f32::cos);
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6);
        }
        assert!(
            Positions::contiguous(0, 2)
                .with_mrope([vec![1, 2], vec![1], vec![1, 2]])
                .is_err()
        );
    }
}

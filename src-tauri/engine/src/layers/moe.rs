//! Mixture of experts: a router sends every token to its best few experts (Shazeer et al. 2017, arXiv 1701.06538; Qwen3-MoE,
//! arXiv 2505.09388), beside an optional expert that all tokens share.

use candle_core::{DType, Device, Result, Tensor};

use super::{GatedMlp, Linear};
use crate::{
    error::ModelError,
    weights::{Bias, Weights},
};

/// Sizes and rules of a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MoeConfig {
    /// Experts in all.
    pub experts: usize,
    /// Experts a token is sent to.
    pub active: usize,
    /// Width inside an expert.
    pub intermediate: usize,
    /// Width inside the shared expert, if there is one.
    pub shared_intermediate: Option<usize>,
    /// Divide the chosen experts' weights by their sum.
    pub normalize: bool,
}

/// A sparse feed-forward layer.
#[derive(Debug, Clone)]
pub struct SparseMoe {
    router: Linear,
    experts: Vec<GatedMlp>,
    shared: Option<(GatedMlp, Linear)>,
    active: usize,
    normalize: bool,
}

impl SparseMoe {
    /// Loads `{prefix}.gate`, the experts in whichever layout they are stored, and `{prefix}.shared_expert` with its gate.
    ///
    /// # Errors
    /// When a weight is missing or has another shape.
    pub fn load(
        weights: &Weights,
        prefix: &str,
        hidden: usize,
        config: MoeConfig,
    ) -> std::result::Result<Self, ModelError> {
        let experts = (0..config.experts)
            .map(|expert| {
                GatedMlp::load_expert(
                    weights,
                    prefix,
                    expert,
                    config.experts,
                    hidden,
                    config.intermediate,
                )
            })
            .collect::<std::result::Result<Vec<_>, ModelError>>()?;
        let shared = match config.shared_intermediate {
            Some(intermediate) => Some((
                GatedMlp::load(
                    weights,
                    &format!("{prefix}.shared_expert"),
                    hidden,
                    intermediate,
                    Bias::None,
                )?,
                weights.linear(
                    &format!("{prefix}.shared_expert_gate"),
                    1,
                    hidden,
                    Bias::None,
                )?,
            )),
            None => None,
        };
        Ok(Self {
            router: weights.linear(
                &format!("{prefix}.gate"),
                config.experts,
                hidden,
                Bias::None,
            )?,
            experts,
            shared,
            active: config.active,
            normalize: config.normalize,
        })
    }

    /// `x [tokens, hidden]` -> `[tokens, hidden]`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let routes = self.routes(x)?;
        let mut out = x.zeros_like()?;
        for (expert, tokens) in self.experts.iter().zip(&routes) {
            if tokens.is_empty() {
                continue;
            }
            let ids: Vec<u32> = tokens.iter().map(|(token, _)| *token).collect();
            let shares: Vec<f32> = tokens.iter().map(|(_, share)| *share).collect();
            let ids = Tensor::new(ids.as_slice(), x.device())?;
            let shares = Tensor::new(shares.as_slice(), x.device())?.unsqueeze(1)?;
            let y = expert.forward(&x.index_select(&ids, 0)?)?;
            let y = y
                .to_dtype(DType::F32)?
                .broadcast_mul(&shares)?
                .to_dtype(x.dtype())?;
            out = out.index_add(&ids, &y, 0)?;
        }
        if let Some((expert, gate)) = &self.shared {
            let share = candle_nn::ops::sigmoid(&gate.forward(x)?)?;
            out = (out + expert.forward(x)?.broadcast_mul(&share)?)?;
        }
        Ok(out)
    }

    /// For every expert, the tokens sent to it and their shares. Probabilities are over all experts, in f32.
    fn routes(&self, x: &Tensor) -> Result<Vec<Vec<(u32, f32)>>> {
        let logits = self
            .router
            .forward(x)?
            .to_dtype(DType::F32)?
            .to_device(&Device::Cpu)?;
        let mut routes = vec![Vec::new(); self.experts.len()];
        for (token, row) in logits.to_vec2::<f32>()?.into_iter().enumerate() {
            for (expert, share) in choose(&row, self.active, self.normalize) {
                routes[expert].push((token as u32, share));
            }
        }
        Ok(routes)
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        let shared = self
            .shared
            .as_ref()
            .map_or(0, |(expert, gate)| expert.bytes() + gate.bytes());
        self.router.bytes() + shared + self.experts.iter().map(GatedMlp::bytes).sum::<usize>()
    }
}

/// The `active` likeliest experts of one token with their softmax probabilities, likeliest first; ties go to the lower index.
fn choose(logits: &[f32], active: usize, normalize: bool) -> Vec<(usize, f32)> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = logits.iter().map(|logit| (logit - largest).exp()).sum();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    order.truncate(active);
    let mut chosen: Vec<(usize, f32)> = order
        .into_iter()
        .map(|expert| (expert, (logits[expert] - largest).exp() / total))
        .collect();
    if normalize {
        let sum: f32 = chosen.iter().map(|(_, share)| share).sum();
        for (_, share) in &mut chosen {
            *share /= sum;
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn the_likeliest_experts_share_by_probability() {
        let chosen = choose(&[0.0, 2.0, 1.0, 2.0], 3, false);
        let experts: Vec<usize> = chosen.iter().map(|(expert, _)| *expert).collect();
        assert_eq!(experts, [1, 3, 2]);
        let total = 1.0 + 2.0 * 2f32.exp() + 1f32.exp();
        assert!((chosen[0].1 - 2f32.exp() / total).abs() < 1e-6);
        let sum: f32 = choose(&[0.0, 2.0, 1.0, 2.0], 3, true)
            .iter()
            .map(|(_, share)| share)
            .sum();
        assert!((sum - 1.0).abs() < 1e-6);
    }
}

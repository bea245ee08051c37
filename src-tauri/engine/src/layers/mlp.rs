//! The gated MLP (SwiGLU, Shazeer 2020, arXiv 2002.05202).

use candle_core::{Result, Tensor};

use super::Linear;
use crate::{
    error::ModelError,
    weights::{Bias, ExpertProjection, Weights},
};

/// `down(silu(gate(x)) * up(x))`.
#[derive(Debug, Clone)]
pub struct GatedMlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl GatedMlp {
    /// Loads `{prefix}.gate_proj`, `up_proj` and `down_proj`.
    ///
    /// # Errors
    /// When a weight is missing or has another shape.
    pub fn load(
        weights: &Weights,
        prefix: &str,
        hidden: usize,
        intermediate: usize,
        bias: Bias,
    ) -> std::result::Result<Self, ModelError> {
        Ok(Self {
            gate: weights.linear(&format!("{prefix}.gate_proj"), intermediate, hidden, bias)?,
            up: weights.linear(&format!("{prefix}.up_proj"), intermediate, hidden, bias)?,
            down: weights.linear(&format!("{prefix}.down_proj"), hidden, intermediate, bias)?,
        })
    }

    /// Loads one of `experts` experts of `{prefix}`.
    ///
    /// # Errors
    /// When a weight is missing or has another shape.
    pub fn load_expert(
        weights: &Weights,
        prefix: &str,
        expert: usize,
        experts: usize,
        hidden: usize,
        intermediate: usize,
    ) -> std::result::Result<Self, ModelError> {
        let load = |projection: ExpertProjection, outputs: usize, inputs: usize| {
            weights.expert(prefix, projection, (expert, experts), (outputs, inputs))
        };
        Ok(Self {
            gate: load(ExpertProjection::Gate, intermediate, hidden)?,
            up: load(ExpertProjection::Up, intermediate, hidden)?,
            down: load(ExpertProjection::Down, hidden, intermediate)?,
        })
    }

    /// `x [tokens, hidden]` -> `[tokens, hidden]`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = headstart_kernels::swiglu(&self.gate.forward(x)?, &self.up.forward(x)?)?;
        self.down.forward(&inner)
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        self.gate.bytes() + self.up.bytes() + self.down.bytes()
    }
}

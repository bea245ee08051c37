//! GatedDeltaNet: linear attention by the gated delta rule (Yang et al. 2024, arXiv 2412.06464) as Qwen3.5 has it.

use candle_core::{DType, Result, Tensor};

use super::Linear;
use crate::{
    cache::{RecurrentCache, RecurrentPass, RecurrentState},
    error::ModelError,
    weights::{Bias, Weights},
};

/// Sizes of a GatedDeltaNet layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatedDeltaConfig {
    /// Query and key heads.
    pub key_heads: usize,
    /// Value heads; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub kernel: usize,
}

impl GatedDeltaConfig {
    fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }
}

/// One GatedDeltaNet layer.
#[derive(Debug, Clone)]
pub struct GatedDeltaNet {
    config: GatedDeltaConfig,
    qkv: Linear,
    gate: Linear,
    beta: Linear,
    decay: Linear,
    out: Linear,
    /// The value heads in the order of `out`'s columns, where that is another one.
    out_order: Option<Tensor>,
    /// `[channels, kernel]`.
    conv: Tensor,
    /// `[value_heads]`, f32.
    a_log: Tensor,
    /// `[value_heads]`, f32.
    dt_bias: Tensor,
    /// `[value_dim]`.
    norm: Tensor,
    eps: f32,
}

impl GatedDeltaNet {
    /// Loads `{prefix}.in_proj_qkv`, `in_proj_z`, `in_proj_b`, `in_proj_a`, `out_proj`, `conv1d`, `norm`, `A_log` and `dt_bias`.
    ///
    /// # Errors
    /// When a weight is missing or has another shape.
    pub fn load(
        weights: &Weights,
        prefix: &str,
        hidden: usize,
        config: GatedDeltaConfig,
        eps: f64,
    ) -> std::result::Result<Self, ModelError> {
        let linear = |name: &str, outputs: usize, inputs: usize| {
            weights.linear(&format!("{prefix}.{name}"), outputs, inputs, Bias::None)
        };
        let heads = config.value_heads;
        Ok(Self {
            qkv: linear("in_proj_qkv", config.channels(), hidden)?,
            gate: linear("in_proj_z", config.values(), hidden)?,
            beta: linear("in_proj_b", heads, hidden)?,
            decay: linear("in_proj_a", heads, hidden)?,
            out: linear("out_proj", hidden, config.values())?,
            out_order: weights.value_head_order()?,
            conv: weights.depthwise_conv(
                &format!("{prefix}.conv1d"),
                config.channels(),
                config.kernel,
            )?,
            a_log: weights.parameter(&format!("{prefix}.A_log"), &[heads], DType::F32)?,
            dt_bias: weights.parameter(&format!("{prefix}.dt_bias"), &[heads], DType::F32)?,
            norm: weights.norm(&format!("{prefix}.norm"), config.value_dim)?,
            eps: eps as f32,
            config,
        })
    }

    /// `x [tokens, hidden]` -> `[tokens, hidden]`; the state after the last token replaces the one in `cache`. With `replayable`, `cache`
    /// also keeps what a part of these tokens can be taken back with.
    ///
    /// # Errors
    /// When shapes do not fit or the device fails.
    pub fn forward(
        &self,
        x: &Tensor,
        cache: &mut RecurrentCache,
        replayable: bool,
    ) -> Result<Tensor> {
        let (values, tokens) = (self.config.values(), x.dim(0)?);
        let inputs = self.qkv.forward(x)?;
        let before = cache.state().cloned();
        let state = before.as_ref();
        let (mixed, conv) =
            headstart_kernels::causal_conv1d_silu(&inputs, &self.conv, state.map(|s| &s.conv))?;
        let [q, k, v] = self.heads(&mixed)?;
        let (decay, beta) = headstart_kernels::decay_and_beta(
            &self.decay.forward(x)?,
            &self.beta.forward(x)?,
            &self.a_log,
            &self.dt_bias,
        )?;
        let (out, delta) =
            headstart_kernels::gated_delta(&q, &k, &v, &decay, &beta, state.map(|s| &s.delta))?;
        let after = RecurrentState { conv, delta };
        if replayable {
            let pass = RecurrentPass {
                inputs,
                q,
                k,
                v,
                decay,
                beta,
            };
            cache.set_replayable(after, before, pass);
        } else {
            cache.set(after);
        }
        let gate = self.gate.forward(x)?.reshape(out.shape())?;
        let out = headstart_kernels::gated_rms_norm(&out, &gate, &self.norm, self.eps)?;
        let out = match &self.out_order {
            Some(order) => out.index_select(order, 1)?,
            None => out,
        };
        self.out.forward(&out.reshape((tokens, values))?)
    }

    /// Queries, keys and values `[tokens, heads, dim]` of the convolved `[tokens, channels]`: views, where all heads are equally wide.
    fn heads(&self, mixed: &Tensor) -> Result<[Tensor; 3]> {
        let GatedDeltaConfig {
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            ..
        } = self.config;
        let tokens = mixed.dim(0)?;
        if key_dim == value_dim {
            let heads = mixed.reshape((tokens, 2 * key_heads + value_heads, key_dim))?;
            return Ok([
                heads.narrow(1, 0, key_heads)?,
                heads.narrow(1, key_heads, key_heads)?,
                heads.narrow(1, 2 * key_heads, value_heads)?,
            ]);
        }
        let (keys, values) = (self.config.keys(), self.config.values());
        let part = |start: usize, heads: usize, dim: usize| {
            mixed
                .narrow(1, start, heads * dim)?
                .reshape((tokens, heads, dim))
        };
        Ok([
            part(0, key_heads, key_dim)?,
            part(keys, key_heads, key_dim)?,
            part(2 * keys, values / value_dim, value_dim)?,
        ])
    }

    /// Bytes of the large weights.
    pub fn bytes(&self) -> usize {
        [&self.qkv, &self.gate, &self.beta, &self.decay, &self.out]
            .iter()
            .map(|linear| linear.bytes())
            .sum()
    }

    /// Bytes of one sequence's state.
    pub fn state_bytes(&self, dtype: DType) -> usize {
        let conv = (self.config.kernel - 1) * self.config.channels() * dtype.size_in_bytes();
        conv + self.config.value_heads
            * self.config.key_dim
            * self.config.value_dim
            * DType::F32.size_in_bytes()
    }
}

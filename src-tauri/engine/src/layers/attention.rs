//! Grouped-query attention with explicit positions.

use candle_core::{Result, Tensor};

use super::{Linear, RmsNorm, RotaryAngles};
use crate::{
    cache::{AttentionCache, CachedPositions},
    config::DecoderConfig,
    error::ModelError,
    positions::Positions,
    weights::{Bias, Weights},
};

/// Norms over query and key heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadNorms {
    /// None.
    None,
    /// Plain weights (Qwen3).
    Plain,
    /// Weights stored without their 1 (Qwen3.5).
    Centred,
}

/// What distinguishes the families' attention layers.
#[derive(Debug, Clone, Copy)]
pub struct AttentionConfig {
    /// Biases of q, k and v.
    pub qkv_bias: Bias,
    /// Bias of the output projection.
    pub output_bias: Bias,
    /// RMS norms over each query and key head before the rotation.
    pub head_norms: HeadNorms,
    /// The query projection also gives a gate for the output (Qwen3.5).
    pub output_gate: bool,
    /// Keys older than this many tokens are not seen.
    pub window: Option<usize>,
}

/// One attention layer.
#[derive(Debug, Clone)]
pub struct Attention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    q_norm: Option<RmsNorm>,
    k_norm: Option<RmsNorm>,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    output_gate: bool,
    window: Option<usize>,
}

impl Attention {
    /// Loads `{prefix}.q_proj`, `k_proj`, `v_proj`, `o_proj` and, where asked, `q_norm` and `k_norm`.
    ///
    /// # Errors
    /// When a weight is missing or has another shape.
    pub fn load(
        weights: &Weights,
        prefix: &str,
        model: &DecoderConfig,
        config: AttentionConfig,
    ) -> std::result::Result<Self, ModelError> {
        let DecoderConfig {
            hidden_size,
            num_heads,
            num_kv_heads,
            head_dim,
            ..
        } = *model;
        let norm = |name: &str| -> std::result::Result<Option<RmsNorm>, ModelError> {
            let name = format!("{prefix}.{name}");
            let weight = match config.head_norms {
                HeadNorms::None => return Ok(None),
                HeadNorms::Plain => weights.norm(&name, head_dim)?,
                HeadNorms::Centred => weights.centred_norm(&name, head_dim)?,
            };
            Ok(Some(RmsNorm::new(weight, model.rms_norm_eps)))
        };
        let linear = |name: &str, outputs: usize, inputs: usize, bias: Bias| {
            weights.linear(&format!("{prefix}.{name}"), outputs, inputs, bias)
        };
        // With a gate, each head's rows are its query and then its gate.
        let queries = num_heads * head_dim * if config.output_gate { 2 } else { 1 };
        Ok(Self {
            q_proj: linear("q_proj", queries, hidden_size, config.qkv_bias)?,
            k_proj: linear(
                "k_proj",
                num_kv_heads * head_dim,
                hidden_size,
                config.qkv_bias,
            )?,
            v_proj: linear(
                "v_proj",
                num_kv_heads * head_dim,
                hidden_size,
                config.qkv_bias,
            )?,
            o_proj: linear(
                "o_proj",
                hidden_size,
                num_heads * head_dim,
                config.output_bias,
            )?,
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            num_heads,
            num_kv_heads,
            head_dim,
            output_gate: config.output_gate,
            window: config.window,
        })
    }

    /// `x [tokens, hidden]` at `positions` -> `[tokens, hidden]`; appends the tokens' keys and values to `cache`, whose entries then
    /// stand at `cached` positions, the new tokens' included. `queries`, if given, receives the rotated queries
    /// `[tokens, heads, head_dim]`.
    ///
    /// # Errors
    /// When shapes do not fit or the device fails.
    pub fn forward(
        &self,
        x: &Tensor,
        angles: &RotaryAngles,
        positions: &Positions,
        cached: &CachedPositions,
        cache: &mut AttentionCache,
        queries: Option<&mut Option<Tensor>>,
    ) -> Result<Tensor> {
        let tokens = x.dim(0)?;
        let (q, gate) = self.queries(x, tokens)?;
        let q = angles.rotate(&normed(q, self.q_norm.as_ref())?)?;
        if let Some(captured) = queries {
            *captured = Some(q.clone());
        }
        self.remember(x, angles, cache)?;
        let (keys, values) = cache.view()?;
        let scale = 1.0 / (self.head_dim as f32).sqrt();
        let out = headstart_kernels::attention(
            &q,
            &keys,
            &values,
            positions.order(),
            cached.as_slice(),
            scale,
            self.window,
        )?;
        match gate {
            Some(gate) => self
                .o_proj
                .forward(&headstart_kernels::sigmoid_mul(&out, &gate)?),
            None => self.o_proj.forward(&out),
        }
    }

    /// Appends the keys and values of `x [tokens, hidden]` to `cache`: all that later tokens see of it.
    ///
    /// # Errors
    /// When shapes do not fit or the device fails.
    pub fn remember(
        &self,
        x: &Tensor,
        angles: &RotaryAngles,
        cache: &mut AttentionCache,
    ) -> Result<()> {
        let shape = (x.dim(0)?, self.num_kv_heads, self.head_dim);
        let k = self.k_proj.forward(x)?.reshape(shape)?;
        let v = self.v_proj.forward(x)?.reshape(shape)?;
        let k = angles.rotate(&normed(k, self.k_norm.as_ref())?)?;
        cache.append(&k.transpose(0, 1)?, &v.transpose(0, 1)?)
    }

    /// Queries `[tokens, heads, head_dim]` and, where there is one, the output's gate `[tokens, heads * head_dim]`.
    fn queries(&self, x: &Tensor, tokens: usize) -> Result<(Tensor, Option<Tensor>)> {
        let projected = self.q_proj.forward(x)?;
        if !self.output_gate {
            return Ok((
                projected.reshape((tokens, self.num_heads, self.head_dim))?,
                None,
            ));
        }
        let pairs = projected.reshape((tokens, self.num_heads, 2 * self.head_dim))?;
        let q = pairs.narrow(2, 0, self.head_dim)?.contiguous()?;
        let gate = pairs
            .narrow(2, self.head_dim, self.head_dim)?
            .contiguous()?;
        Ok((
            q,
            Some(gate.reshape((tokens, self.num_heads * self.head_dim))?),
        ))
    }

    /// How many tokens back it sees; `None`: all.
    pub fn window(&self) -> Option<usize> {
        self.window
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        self.q_proj.bytes() + self.k_proj.bytes() + self.v_proj.bytes() + self.o_proj.bytes()
    }
}

fn normed(heads: Tensor, norm: Option<&RmsNorm>) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&heads.contiguous()?),
        None => Ok(heads),
    }
}

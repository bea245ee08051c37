//! One decoder layer: pre-norm, with residuals around a mixer (attention or GatedDeltaNet) and a feed-forward part (dense or of experts).
//! The trunk's layers and those of an MTP head are of this one kind.

use candle_core::{DType, Device, Tensor};

use crate::{
    cache::{AttentionCacheSpec, CachedPositions, LayerCache, LayerCacheSpec},
    config::DecoderConfig,
    error::ModelError,
    layers::{
        Attention, AttentionConfig, GatedDeltaConfig, GatedDeltaNet, GatedMlp, MoeConfig, RmsNorm,
        RotaryAngles, SparseMoe,
    },
    positions::Positions,
    weights::{Bias, Weights},
};

/// How a layer looks at other tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MixerPlan {
    Attention(AttentionConfig),
    GatedDelta(GatedDeltaConfig),
}

/// How a layer works on each token.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FeedForwardPlan {
    Dense { intermediate: usize, bias: Bias },
    Experts(MoeConfig),
}

#[derive(Debug)]
enum Mixer {
    Attention(Attention),
    GatedDelta(GatedDeltaNet),
}

#[derive(Debug)]
enum FeedForward {
    Dense(GatedMlp),
    Experts(SparseMoe),
}

/// A decoder layer.
#[derive(Debug)]
pub(crate) struct Layer {
    input_norm: RmsNorm,
    mixer: Mixer,
    post_attention_norm: RmsNorm,
    feed_forward: FeedForward,
}

/// What one pass gives to all layers alike.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerPass<'a> {
    /// Rotary angles of the pass' tokens.
    pub(crate) angles: &'a RotaryAngles,
    /// Their positions.
    pub(crate) positions: &'a Positions,
    /// Positions of all tokens held once the pass is done.
    pub(crate) cached: &'a CachedPositions,
    /// Recurrent layers keep what they need to take back a part of the pass.
    pub(crate) replayable: bool,
}

impl Layer {
    /// Loads the modules below `prefix`.
    ///
    /// # Errors
    /// When a weight is missing or has another shape.
    pub(crate) fn load(
        weights: &Weights,
        prefix: &str,
        config: &DecoderConfig,
        (mixer, feed_forward): (MixerPlan, FeedForwardPlan),
        centred_norms: bool,
    ) -> Result<Self, ModelError> {
        let hidden = config.hidden_size;
        let norm =
            |name: &str| load_norm(weights, &format!("{prefix}.{name}"), config, centred_norms);
        let mlp = format!("{prefix}.mlp");
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            mixer: match mixer {
                MixerPlan::Attention(attention) => Mixer::Attention(Attention::load(
                    weights,
                    &format!("{prefix}.self_attn"),
                    config,
                    attention,
                )?),
                MixerPlan::GatedDelta(delta) => Mixer::GatedDelta(GatedDeltaNet::load(
                    weights,
                    &format!("{prefix}.linear_attn"),
                    hidden,
                    delta,
                    config.rms_norm_eps,
                )?),
            },
            post_attention_norm: norm("post_attention_layernorm")?,
            feed_forward: match feed_forward {
                FeedForwardPlan::Dense { intermediate, bias } => {
                    FeedForward::Dense(GatedMlp::load(weights, &mlp, hidden, intermediate, bias)?)
                }
                FeedForwardPlan::Experts(moe) => {
                    FeedForward::Experts(SparseMoe::load(weights, &mlp, hidden, moe)?)
                }
            },
        })
    }

    /// `x [tokens, hidden]` -> the same shape; the tokens go into `cache`. `queries`, if given, receives those of an attention layer.
    ///
    /// # Errors
    /// When shapes do not fit or the device fails.
    pub(crate) fn forward(
        &self,
        x: Tensor,
        pass: &LayerPass<'_>,
        cache: &mut LayerCache,
        queries: Option<&mut Option<Tensor>>,
    ) -> candle_core::Result<Tensor> {
        let normed = self.input_norm.forward(&x)?;
        let mixed = match &self.mixer {
            Mixer::Attention(attention) => attention.forward(
                &normed,
                pass.angles,
                pass.positions,
                pass.cached,
                cache.attention()?,
                queries,
            )?,
            Mixer::GatedDelta(delta) => {
                delta.forward(&normed, cache.recurrent()?, pass.replayable)?
            }
        };
        let x = (x + mixed)?;
        let normed = self.post_attention_norm.forward(&x)?;
        let fed = match &self.feed_forward {
            FeedForward::Dense(mlp) => mlp.forward(&normed)?,
            FeedForward::Experts(experts) => experts.forward(&normed)?,
        };
        x + fed
    }

    /// Puts tokens into `cache` whose outputs nobody reads.
    ///
    /// # Errors
    /// As [`Layer::forward`].
    pub(crate) fn remember(
        &self,
        x: &Tensor,
        pass: &LayerPass<'_>,
        cache: &mut LayerCache,
    ) -> candle_core::Result<()> {
        let normed = self.input_norm.forward(x)?;
        match &self.mixer {
            Mixer::Attention(attention) => {
                attention.remember(&normed, pass.angles, cache.attention()?)
            }
            Mixer::GatedDelta(delta) => delta
                .forward(&normed, cache.recurrent()?, pass.replayable)
                .map(drop),
        }
    }

    /// How many tokens back its attention sees; `None`: all, or it has no attention.
    pub(super) fn window(&self) -> Option<usize> {
        match &self.mixer {
            Mixer::Attention(attention) => attention.window(),
            Mixer::GatedDelta(_) => None,
        }
    }

    /// True for attention without a window.
    pub(super) fn sees_all(&self) -> bool {
        matches!(&self.mixer, Mixer::Attention(attention) if attention.window().is_none())
    }

    /// True for attention of any kind.
    pub(super) fn is_attention(&self) -> bool {
        matches!(self.mixer, Mixer::Attention(_))
    }

    /// What kind of cache the layer needs.
    pub(crate) fn cache_spec(
        &self,
        config: &DecoderConfig,
        dtype: DType,
        device: &Device,
    ) -> LayerCacheSpec {
        match self.mixer {
            Mixer::Attention(_) => LayerCacheSpec::Attention(AttentionCacheSpec {
                num_kv_heads: config.num_kv_heads,
                head_dim: config.head_dim,
                dtype,
                device: device.clone(),
            }),
            Mixer::GatedDelta(_) => LayerCacheSpec::Recurrent,
        }
    }

    /// Bytes of the state of fixed size that a sequence has in this layer.
    pub(super) fn state_bytes(&self, dtype: DType) -> usize {
        match &self.mixer {
            Mixer::Attention(_) => 0,
            Mixer::GatedDelta(delta) => delta.state_bytes(dtype),
        }
    }

    /// Bytes of the weights.
    pub(crate) fn bytes(&self) -> usize {
        let mixer = match &self.mixer {
            Mixer::Attention(attention) => attention.bytes(),
            Mixer::GatedDelta(delta) => delta.bytes(),
        };
        let feed_forward = match &self.feed_forward {
            FeedForward::Dense(mlp) => mlp.bytes(),
            FeedForward::Experts(experts) => experts.bytes(),
        };
        mixer + feed_forward
    }
}

/// Loads a norm over the hidden width, centred or plain.
///
/// # Errors
/// When it is missing or has another shape.
pub(crate) fn load_norm(
    weights: &Weights,
    name: &str,
    config: &DecoderConfig,
    centred: bool,
) -> Result<RmsNorm, ModelError> {
    let weight = if centred {
        weights.centred_norm(name, config.hidden_size)?
    } else {
        weights.norm(name, config.hidden_size)?
    };
    Ok(RmsNorm::new(weight, config.rms_norm_eps))
}

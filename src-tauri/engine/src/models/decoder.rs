//! The decoder-only transformer that the dense families share: pre-norm attention and gated MLP with residuals.

use candle_core::{DType, Device, Tensor};

use super::{ForwardInput, LogitRows, Model};
use crate::{
    cache::{AttentionCacheSpec, CacheError, SequenceCache},
    config::{ConfigSource, DecoderConfig, Key},
    error::{EngineError, ModelError},
    layers::{Attention, AttentionConfig, Embedding, GatedMlp, Linear, RmsNorm, Rotary},
    weights::{Bias, Weights},
};

/// A family's answers to what the shared decoder leaves open.
pub(super) struct DecoderPlan {
    /// Attention of each layer.
    pub attention: Vec<AttentionConfig>,
    /// Biases of the MLP.
    pub mlp_bias: Bias,
}

/// A dense decoder-only transformer.
#[derive(Debug)]
pub struct DecoderModel {
    config: DecoderConfig,
    embedding: Embedding,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    head_is_shared: bool,
    rotary: Rotary,
    vocab_size: usize,
    dtype: DType,
    device: Device,
}

#[derive(Debug)]
struct Layer {
    input_norm: RmsNorm,
    attention: Attention,
    post_attention_norm: RmsNorm,
    mlp: GatedMlp,
}

impl DecoderModel {
    /// Loads the weights.
    ///
    /// # Errors
    /// When a weight is missing or has another shape than the configuration says.
    pub(super) fn load(
        config: DecoderConfig,
        plan: &DecoderPlan,
        weights: &Weights,
    ) -> Result<Self, ModelError> {
        let vocab_size = weights.rows("model.embed_tokens").ok_or_else(|| {
            crate::weights::missing_tensor(weights.path(), "model.embed_tokens.weight")
        })?;
        let embedding = weights.embedding("model.embed_tokens", vocab_size, config.hidden_size)?;
        let mut layers = Vec::new();
        for (i, attention) in plan.attention.iter().enumerate() {
            let prefix = format!("model.layers.{i}");
            let norm = |name: &str| -> Result<RmsNorm, ModelError> {
                let weight = weights.norm(&format!("{prefix}.{name}"), config.hidden_size)?;
                Ok(RmsNorm::new(weight, config.rms_norm_eps))
            };
            layers.push(Layer {
                input_norm: norm("input_layernorm")?,
                attention: Attention::load(
                    weights,
                    &format!("{prefix}.self_attn"),
                    &config,
                    *attention,
                )?,
                post_attention_norm: norm("post_attention_layernorm")?,
                mlp: GatedMlp::load(
                    weights,
                    &format!("{prefix}.mlp"),
                    config.hidden_size,
                    config.intermediate_size,
                    plan.mlp_bias,
                )?,
            });
        }
        let head_is_shared = match config.tie_word_embeddings {
            Some(true) => true,
            Some(false) => false,
            None => !weights.contains("lm_head"),
        };
        let head = if head_is_shared {
            embedding.as_head()
        } else {
            weights
                .embedding("lm_head", vocab_size, config.hidden_size)?
                .as_head()
        };
        let factors = weights.rope_frequency_factors(config.rope.dim / 2)?;
        Ok(Self {
            rotary: Rotary::new(&config.rope, factors.as_deref()),
            norm: RmsNorm::new(
                weights.norm("model.norm", config.hidden_size)?,
                config.rms_norm_eps,
            ),
            embedding,
            layers,
            head,
            head_is_shared,
            vocab_size,
            dtype: weights.dtype(),
            device: weights.device().clone(),
            config,
        })
    }
}

impl Model for DecoderModel {
    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn context_length(&self) -> usize {
        self.config.context_length
    }

    fn weight_bytes(&self) -> usize {
        let layers: usize = self
            .layers
            .iter()
            .map(|layer| layer.attention.bytes() + layer.mlp.bytes())
            .sum();
        let head = if self.head_is_shared {
            0
        } else {
            self.head.bytes()
        };
        self.embedding.bytes() + layers + head
    }

    fn cache_bytes_per_token(&self) -> usize {
        self.config.kv_bytes_per_token(self.dtype.size_in_bytes())
    }

    fn new_cache(&self) -> SequenceCache {
        let spec = AttentionCacheSpec {
            num_kv_heads: self.config.num_kv_heads,
            head_dim: self.config.head_dim,
            dtype: self.dtype,
            device: self.device.clone(),
        };
        SequenceCache::new(vec![spec; self.layers.len()])
    }

    fn forward(
        &self,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<Option<Tensor>, EngineError> {
        let ForwardInput {
            tokens,
            positions,
            logits,
        } = input;
        if tokens.is_empty() || tokens.len() != positions.len() {
            return Err(EngineError::InvalidRequest(format!(
                "a forward pass needs as many positions as tokens, and at least one; got {} and {}",
                positions.len(),
                tokens.len()
            )));
        }
        if let Some(id) = tokens.iter().find(|id| **id as usize >= self.vocab_size) {
            return Err(EngineError::InvalidRequest(format!(
                "token {id} is outside this model's vocabulary of {} tokens",
                self.vocab_size
            )));
        }
        cache.extend(
            positions,
            |caches, cached| -> Result<Option<Tensor>, EngineError> {
                let angles = self.rotary.angles(positions, self.dtype, &self.device)?;
                let mut x = self.embedding.forward(tokens, &self.device)?;
                for (layer, cache) in self.layers.iter().zip(caches) {
                    let attended = layer.attention.forward(
                        &layer.input_norm.forward(&x)?,
                        &angles,
                        positions,
                        cached,
                        cache,
                    )?;
                    x = (x + attended)?;
                    let fed = layer.mlp.forward(&layer.post_attention_norm.forward(&x)?)?;
                    x = (x + fed)?;
                }
                let x = match logits {
                    LogitRows::None => return Ok(None),
                    LogitRows::Last => x.narrow(0, tokens.len() - 1, 1)?,
                    LogitRows::All => x,
                };
                let logits = self.head.forward(&self.norm.forward(&x)?)?;
                Ok(Some(logits.to_dtype(DType::F32)?))
            },
        )
    }
}

impl From<CacheError> for EngineError {
    fn from(error: CacheError) -> Self {
        Self::Compute(error.to_string())
    }
}

/// A bias that a switch in `config.json` decides; GGUFs just carry it or not.
pub(super) fn bias(source: &ConfigSource, switch: Key) -> Result<Bias, ModelError> {
    if source.is_gguf() {
        return Ok(Bias::Optional);
    }
    Ok(if source.bool(switch)?.unwrap_or(false) {
        Bias::Required
    } else {
        Bias::None
    })
}

const USE_SLIDING_WINDOW: Key = Key::new("use_sliding_window", "attention.use_sliding_window");
const SLIDING_WINDOW: Key = Key::new("sliding_window", "attention.sliding_window");
const MAX_WINDOW_LAYERS: Key = Key::new("max_window_layers", "attention.max_window_layers");

/// The window of each layer in the Qwen families: `layer_types` where given, else all layers from `max_window_layers` on, if
/// `use_sliding_window` says so.
pub(super) fn qwen_windows(
    source: &ConfigSource,
    layers: usize,
) -> Result<Vec<Option<usize>>, ModelError> {
    let window = match (
        source.bool(USE_SLIDING_WINDOW)?,
        source.usize(SLIDING_WINDOW)?,
    ) {
        (Some(true), Some(window)) if window > 0 => window,
        _ => return Ok(vec![None; layers]),
    };
    if let Some(types) = source
        .json("layer_types")
        .and_then(|types| types.as_array())
    {
        if types.len() != layers {
            return Err(ModelError::corrupt(
                source.path(),
                format!(
                    "\"layer_types\" lists {} layers, \"num_hidden_layers\" is {layers}",
                    types.len()
                ),
            ));
        }
        return types
            .iter()
            .map(|kind| match kind.as_str() {
                Some("full_attention") => Ok(None),
                Some("sliding_attention") => Ok(Some(window)),
                _ => Err(ModelError::unsupported(
                    source.path(),
                    format!("the layer type {kind}"),
                    "\"full_attention\", \"sliding_attention\"",
                )),
            })
            .collect();
    }
    let first = source.usize(MAX_WINDOW_LAYERS)?.unwrap_or(layers);
    Ok((0..layers)
        .map(|i| (i >= first).then_some(window))
        .collect())
}

//! The decoder that the families share: an embedding, layers, a final norm and an output head, and an MTP head where there is one.

use candle_core::{DType, Device, Tensor};

pub(super) use super::layer::{FeedForwardPlan, MixerPlan};
use super::{
    FirstLayers, ForwardInput, ForwardOutput, LayerQueries, LogitRows, Model, RanLayers,
    layer::{Layer, LayerPass, load_norm},
};
use crate::{
    cache::{CacheError, CachedPositions, LayerCache, LayerCacheSpec, SequenceCache},
    config::{ConfigSource, DecoderConfig, Key},
    error::{EngineError, ModelError},
    layers::{Embedding, Linear, RmsNorm, Rotary},
    mtp::{MtpHead, MtpSupport, Trunk},
    positions::Positions,
    weights::{Bias, Weights},
};

/// A family's answers to what the shared decoder leaves open.
#[derive(Debug)]
pub(super) struct DecoderPlan {
    /// Every layer's two parts.
    pub(super) layers: Vec<(MixerPlan, FeedForwardPlan)>,
    /// Norm weights are stored without their 1.
    pub(super) centred_norms: bool,
    /// The layer of the MTP head that the configuration declares.
    pub(super) mtp: Option<(MixerPlan, FeedForwardPlan)>,
}

/// A decoder-only language model.
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
    mtp: Mtp,
}

/// Whether there is an MTP head, and if not, why.
#[derive(Debug)]
enum Mtp {
    Undeclared,
    Missing,
    Broken(String),
    Loaded(Box<MtpHead>),
}

impl Mtp {
    /// A head that cannot be loaded costs speed, not the model.
    fn load(
        weights: &Weights,
        config: &DecoderConfig,
        layer: Option<(MixerPlan, FeedForwardPlan)>,
        trunk: Trunk<'_>,
    ) -> Self {
        let Some(layer) = layer else {
            return Self::Undeclared;
        };
        if !MtpHead::is_stored(weights) {
            tracing::warn!(
                checkpoint = %weights.path().display(),
                "the configuration declares an MTP head, but the checkpoint has no weights for it"
            );
            return Self::Missing;
        }
        match MtpHead::load(weights, config, layer, trunk) {
            Ok(head) => Self::Loaded(Box::new(head)),
            Err(error) => {
                tracing::warn!(%error, "the MTP head cannot be used");
                Self::Broken(error.to_string())
            }
        }
    }
}

impl DecoderModel {
    /// Loads the weights.
    ///
    /// # Errors
    /// When a weight is missing or has another shape than the configuration says.
    pub(super) fn load(
        config: DecoderConfig,
        plan: DecoderPlan,
        weights: &Weights,
    ) -> Result<Self, ModelError> {
        let vocab_size = weights.rows("model.embed_tokens").ok_or_else(|| {
            crate::weights::missing_tensor(weights.path(), "model.embed_tokens.weight")
        })?;
        let embedding = weights.embedding("model.embed_tokens", vocab_size, config.hidden_size)?;
        let layers = plan
            .layers
            .into_iter()
            .enumerate()
            .map(|(i, layer)| {
                Layer::load(
                    weights,
                    &format!("model.layers.{i}"),
                    &config,
                    layer,
                    plan.centred_norms,
                )
            })
            .collect::<Result<Vec<_>, ModelError>>()?;
        let head_is_shared = match config.tie_word_embeddings {
            Some(tied) => tied,
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
        let rotary = Rotary::new(&config.rope, factors.as_deref());
        let trunk = Trunk {
            embedding: &embedding,
            head: &head,
            rotary: &rotary,
        };
        let mtp = Mtp::load(weights, &config, plan.mtp, trunk);
        Ok(Self {
            mtp,
            rotary,
            norm: load_norm(weights, "model.norm", &config, plan.centred_norms)?,
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

    fn attention_layers(&self) -> usize {
        let attention = |layer: &&Layer| layer.is_attention();
        self.layers.iter().filter(attention).count()
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
        let layers: usize = self.layers.iter().map(Layer::bytes).sum();
        let head = if self.head_is_shared {
            0
        } else {
            self.head.bytes()
        };
        let mtp = match &self.mtp {
            Mtp::Loaded(mtp) => mtp.bytes(),
            _ => 0,
        };
        self.embedding.bytes() + layers + head + mtp
    }

    fn cache_bytes_per_token(&self) -> usize {
        let element = self.dtype.size_in_bytes();
        2 * self.attention_layers() * self.config.num_kv_heads * self.config.head_dim * element
    }

    fn state_bytes(&self) -> usize {
        self.layers
            .iter()
            .map(|layer| layer.state_bytes(self.dtype))
            .sum()
    }

    fn new_cache(&self) -> SequenceCache {
        SequenceCache::new(self.cache_specs())
    }

    fn sliding_window(&self) -> Option<usize> {
        self.layers.iter().filter_map(Layer::window).max()
    }

    fn mtp(&self) -> MtpSupport<'_> {
        match &self.mtp {
            Mtp::Undeclared => MtpSupport::NoHead,
            Mtp::Missing => MtpSupport::WeightsMissing,
            Mtp::Broken(message) => MtpSupport::Broken(message),
            Mtp::Loaded(head) => MtpSupport::Ready(head),
        }
    }

    fn forward(
        &self,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<ForwardOutput, EngineError> {
        self.check(input.tokens, input.positions)?;
        cache.extend(
            input.positions,
            |caches, cached| -> Result<ForwardOutput, EngineError> {
                let x = self.embedding.forward(input.tokens, &self.device)?;
                let (x, queries) = self.run_layers(0, x, input, caches, cached)?;
                self.finish(x, input, queries)
            },
        )
    }

    fn ranking_layers(&self) -> Option<usize> {
        // A quarter of the layers; then up to the next one that sees everything, if that is still worth it.
        let least = self.layers.len().div_ceil(4);
        let most = self.layers.len() / 2;
        (1..=most).find(|layers| *layers >= least && self.layers[layers - 1].sees_all())
    }

    fn copy_first_layers(
        &self,
        layers: usize,
        cache: &SequenceCache,
    ) -> Result<SequenceCache, EngineError> {
        Ok(cache.copy_first_layers(layers, self.cache_specs())?)
    }

    fn forward_first(
        &self,
        layers: usize,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<FirstLayers, EngineError> {
        self.check(input.tokens, input.positions)?;
        cache.extend(
            input.positions,
            |caches, cached| -> Result<FirstLayers, EngineError> {
                if caches.len() != layers {
                    return Err(EngineError::Compute(format!(
                        "a cache of {} layers was given to the first {layers}",
                        caches.len()
                    )));
                }
                let x = self.embedding.forward(input.tokens, &self.device)?;
                let (hidden, queries) = self.run_layers(0, x, input, caches, cached)?;
                Ok(FirstLayers { hidden, queries })
            },
        )
    }

    fn forward_rest(
        &self,
        first: RanLayers<'_>,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<ForwardOutput, EngineError> {
        self.check(input.tokens, input.positions)?;
        if first.hidden.dim(0)? != input.tokens.len() || first.rows.tokens() != input.tokens.len() {
            return Err(EngineError::Compute(
                "the first layers were run for other tokens".into(),
            ));
        }
        cache.extend(
            input.positions,
            |caches, cached| -> Result<ForwardOutput, EngineError> {
                let (head, rest) = caches.split_at_mut(first.layers.min(caches.len()));
                for (index, cache) in head.iter_mut().enumerate() {
                    match cache {
                        LayerCache::Attention(cache) => first.rows.append_to(index, cache)?,
                        LayerCache::Recurrent(cache) => {
                            if let Some(state) = first.states.layer(index) {
                                *cache = state.clone();
                            }
                        }
                    }
                }
                let x = first.hidden.clone();
                let (x, queries) = self.run_layers(first.layers, x, input, rest, cached)?;
                self.finish(x, input, queries)
            },
        )
    }
}

impl DecoderModel {
    fn cache_specs(&self) -> impl Iterator<Item = LayerCacheSpec> {
        self.layers
            .iter()
            .map(|layer| layer.cache_spec(&self.config, self.dtype, &self.device))
    }

    /// Runs `x [tokens, hidden]` through the layers from `first` on, as many as there are `caches`.
    fn run_layers(
        &self,
        first: usize,
        mut x: Tensor,
        input: ForwardInput<'_>,
        caches: &mut [LayerCache],
        cached: &CachedPositions,
    ) -> Result<(Tensor, Vec<LayerQueries>), EngineError> {
        let angles = self
            .rotary
            .angles(input.positions, self.dtype, &self.device)?;
        let pass = LayerPass {
            angles: &angles,
            positions: input.positions,
            cached,
            replayable: input.replayable,
        };
        let mut captured = Vec::new();
        for (index, (layer, cache)) in (first..).zip(self.layers.iter().skip(first).zip(caches)) {
            if index + 1 == self.layers.len()
                && let Some(row) = self.run_last_layer(layer, &x, input, &pass, cache)?
            {
                return Ok((row, captured));
            }
            let mut queries = (input.queries && layer.sees_all()).then_some(None);
            x = layer.forward(x, &pass, cache, queries.as_mut())?;
            captured.extend(queries.flatten().map(|queries| LayerQueries {
                layer: index,
                queries,
            }));
        }
        Ok((x, captured))
    }

    /// The last layer where few of its outputs are read: all tokens go into its cache, but only the last one, or none, through the rest of
    /// it. On long prompts that saves its attention, which is the most expensive part of small models. `None`: every output is wanted.
    fn run_last_layer(
        &self,
        layer: &Layer,
        x: &Tensor,
        input: ForwardInput<'_>,
        pass: &LayerPass<'_>,
        cache: &mut LayerCache,
    ) -> Result<Option<Tensor>, EngineError> {
        let tokens = input.tokens.len();
        if input.queries || input.replayable || tokens < 2 {
            return Ok(None);
        }
        match input.logits {
            LogitRows::None if !input.hidden => {
                layer.remember(x, pass, cache)?;
                Ok(Some(x.narrow(0, tokens - 1, 1)?))
            }
            LogitRows::Last if layer.is_attention() => {
                let last = tokens - 1;
                let part = |range: std::ops::Range<usize>| -> Result<_, EngineError> {
                    let positions = input.positions.part(range);
                    let angles = self.rotary.angles(&positions, self.dtype, &self.device)?;
                    Ok((positions, angles))
                };
                let (positions, angles) = part(0..last)?;
                let cached = pass.cached.without_last();
                let earlier = LayerPass {
                    angles: &angles,
                    positions: &positions,
                    cached: &cached,
                    ..*pass
                };
                let before = x.narrow(0, 0, last)?;
                // The last row is always a pass of its own: its logits do not depend on what else is asked for.
                let before = if input.hidden {
                    Some(layer.forward(before, &earlier, cache, None)?)
                } else {
                    layer.remember(&before, &earlier, cache)?;
                    None
                };
                let (positions, angles) = part(last..tokens)?;
                let newest = LayerPass {
                    angles: &angles,
                    positions: &positions,
                    ..*pass
                };
                let row = layer.forward(x.narrow(0, last, 1)?, &newest, cache, None)?;
                Ok(Some(match before {
                    Some(before) => Tensor::cat(&[before, row], 0)?,
                    None => row,
                }))
            }
            _ => Ok(None),
        }
    }

    fn check(&self, tokens: &[u32], positions: &Positions) -> Result<(), EngineError> {
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
        Ok(())
    }

    /// From the last layer's output `x [tokens, hidden]` to what the pass asks for.
    fn finish(
        &self,
        x: Tensor,
        input: ForwardInput<'_>,
        queries: Vec<LayerQueries>,
    ) -> Result<ForwardOutput, EngineError> {
        let last = x.dim(0)? - 1;
        let (normed, wanted) = match (input.hidden, input.logits) {
            (false, LogitRows::None) => (None, None),
            (false, LogitRows::Last) => {
                let row = self.norm.forward(&x.narrow(0, last, 1)?)?;
                (None, Some(row))
            }
            (false, LogitRows::All) => (None, Some(self.norm.forward(&x)?)),
            (true, rows) => {
                let normed = self.norm.forward(&x)?;
                let wanted = match rows {
                    LogitRows::None => None,
                    LogitRows::Last => Some(normed.narrow(0, last, 1)?),
                    LogitRows::All => Some(normed.clone()),
                };
                (Some(normed), wanted)
            }
        };
        let logits = wanted
            .map(|rows| self.head.forward(&rows)?.to_dtype(DType::F32))
            .transpose()?;
        Ok(ForwardOutput {
            logits,
            hidden: normed,
            queries,
        })
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

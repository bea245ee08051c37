//! The MTP head of the Qwen3.5 family: `fc(concat[norm(embedding of the next token), norm(hidden state)])`, one decoder layer with full
//! attention over a cache of its own, a norm, and the model's embedding and output head.

use candle_core::{DType, Device, Tensor};

use crate::{
    cache::{CacheError, SequenceCache, SequenceSnapshot},
    config::DecoderConfig,
    error::{EngineError, ModelError},
    layers::{Embedding, Linear, RmsNorm, Rotary},
    models::layer::{FeedForwardPlan, Layer, LayerPass, MixerPlan, load_norm},
    positions::Positions,
    weights::{Bias, Weights},
};

/// Rows that the head's projection and layer are run with at a time while a prompt is folded.
const FOLD_ROWS: usize = 512;

/// What the head shares with its model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trunk<'a> {
    /// The table of token vectors.
    pub(crate) embedding: &'a Embedding,
    /// The output head.
    pub(crate) head: &'a Linear,
    /// The rotary embedding.
    pub(crate) rotary: &'a Rotary,
}

/// A model's MTP head. It holds weights only; what belongs to a sequence lives in a [`HeadCache`].
///
/// A *pair* is the model's hidden state of token `t` (after the final norm) and token `t + 1`; folding it gives the head's hidden state
/// from which token `t + 2` is guessed. A pair stands at the position of its token, `t + 1`: with rotary embeddings only differences of
/// positions count, and those are the true ones even where tokens between were never folded.
#[derive(Debug)]
pub struct MtpHead {
    embedding_norm: RmsNorm,
    hidden_norm: RmsNorm,
    fc: Linear,
    layer: Layer,
    norm: RmsNorm,
    embedding: Embedding,
    head: Linear,
    rotary: Rotary,
    config: DecoderConfig,
    dtype: DType,
    device: Device,
}

impl MtpHead {
    /// True when the checkpoint has an `mtp.fc`.
    pub(crate) fn is_stored(weights: &Weights) -> bool {
        weights.contains("mtp.fc")
    }

    /// Loads `mtp.*`. Norms of a checkpoint as trained get their 1; of a converted one each is decided by its own mean (see
    /// [`Weights::centred_norm`]).
    ///
    /// # Errors
    /// When a weight is missing or has another shape.
    pub(crate) fn load(
        weights: &Weights,
        config: &DecoderConfig,
        layer: (MixerPlan, FeedForwardPlan),
        trunk: Trunk<'_>,
    ) -> Result<Self, ModelError> {
        let hidden = config.hidden_size;
        let norm = |name: &str| load_norm(weights, &format!("mtp.{name}"), config, true);
        Ok(Self {
            embedding_norm: norm("pre_fc_norm_embedding")?,
            hidden_norm: norm("pre_fc_norm_hidden")?,
            fc: weights.linear("mtp.fc", hidden, 2 * hidden, Bias::None)?,
            layer: Layer::load(weights, "mtp.layers.0", config, layer, true)?,
            norm: norm("norm")?,
            embedding: trunk.embedding.clone(),
            head: trunk.head.clone(),
            rotary: trunk.rotary.clone(),
            config: config.clone(),
            dtype: weights.dtype(),
            device: weights.device().clone(),
        })
    }

    /// An empty cache for one sequence.
    pub fn new_cache(&self) -> HeadCache {
        let spec = self
            .layer
            .cache_spec(&self.config, self.dtype, &self.device);
        HeadCache(SequenceCache::new([spec]))
    }

    /// Folds pairs into `cache`: `hidden [pairs, hidden size]`, and of each its `next` token with that token's position. Gives the head's
    /// hidden state of the last pair, `[1, hidden size]`, after the head's norm: [`MtpHead::logits`] guesses the following token from it,
    /// and it is the `hidden` of the guess when that is folded in turn.
    ///
    /// All pairs but the last only leave keys and values, so folding a prompt costs two small projections a token.
    ///
    /// # Errors
    /// When there is no pair, numbers differ, a token is outside the vocabulary, a position does not follow the cache's, or the device
    /// fails. The cache is then as it was.
    pub fn fold(
        &self,
        hidden: &Tensor,
        next: &[u32],
        positions: &Positions,
        cache: &mut HeadCache,
    ) -> Result<Tensor, EngineError> {
        let pairs = hidden.dims2()?.0;
        if pairs == 0 || pairs != next.len() || pairs != positions.len() {
            return Err(EngineError::InvalidRequest(format!(
                "an MTP head needs as many tokens and positions as hidden states, and at least one; got {}, {} and {pairs}",
                next.len(),
                positions.len(),
            )));
        }
        cache.0.extend(positions, |caches, cached| {
            let Some(cache) = caches.first_mut() else {
                return Err(EngineError::Compute("the head's cache has no layer".into()));
            };
            let last = pairs - 1;
            let mut start = 0;
            while start < last {
                let end = last.min(start + FOLD_ROWS);
                let part = positions.part(start..end);
                let angles = self.rotary.angles(&part, self.dtype, &self.device)?;
                let pass = LayerPass {
                    angles: &angles,
                    positions: &part,
                    cached,
                    replayable: false,
                };
                let x = self.joined(&hidden.narrow(0, start, end - start)?, &next[start..end])?;
                self.layer.remember(&x, &pass, cache)?;
                start = end;
            }
            let part = positions.part(last..pairs);
            let angles = self.rotary.angles(&part, self.dtype, &self.device)?;
            let pass = LayerPass {
                angles: &angles,
                positions: &part,
                cached,
                replayable: false,
            };
            let x = self.joined(&hidden.narrow(0, last, 1)?, &next[last..])?;
            let x = self.layer.forward(x, &pass, cache, None)?;
            Ok(self.norm.forward(&x)?)
        })
    }

    /// The layer's input `[pairs, hidden size]`.
    fn joined(&self, hidden: &Tensor, next: &[u32]) -> candle_core::Result<Tensor> {
        let embedded = self.embedding.forward(next, &self.device)?;
        let embedded = self.embedding_norm.forward(&embedded)?;
        let hidden = self.hidden_norm.forward(&hidden.contiguous()?)?;
        self.fc.forward(&Tensor::cat(&[&embedded, &hidden], 1)?)
    }

    /// Logits of the token after the guessed-from pair, over the whole vocabulary: `[1, vocabulary]` in f32, from what
    /// [`MtpHead::fold`] gave.
    ///
    /// # Errors
    /// When the shape does not fit or the device fails.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, EngineError> {
        Ok(self.head.forward(hidden)?.to_dtype(DType::F32)?)
    }

    /// The output head over a part of the vocabulary, gathered once: drafting over the frequent tokens costs a fraction of the whole head.
    /// Ids may come in any order; doubles count once.
    ///
    /// # Errors
    /// When there is no id, one is outside the vocabulary, or the device fails.
    pub fn subset(&self, ids: &[u32]) -> Result<SubsetHead, EngineError> {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        if ids.is_empty() {
            return Err(EngineError::InvalidRequest(
                "a draft vocabulary needs at least one token".into(),
            ));
        }
        let head = self.head.select(&ids, &self.device)?;
        Ok(SubsetHead { ids, head })
    }

    /// Bytes of the head's own weights: without the embedding and the output head, which are the model's.
    pub fn bytes(&self) -> usize {
        self.fc.bytes() + self.layer.bytes()
    }

    /// Bytes that each folded pair takes in a [`HeadCache`].
    pub fn cache_bytes_per_token(&self) -> usize {
        2 * self.config.num_kv_heads * self.config.head_dim * self.dtype.size_in_bytes()
    }
}

/// The output head over some tokens only.
#[derive(Debug, Clone)]
pub struct SubsetHead {
    ids: Vec<u32>,
    head: Linear,
}

impl SubsetHead {
    /// The token ids, ascending: entry `i` of the logits is that of token `ids[i]`.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// Logits `[1, ids]` in f32 from what [`MtpHead::fold`] gave: on the CPU, bit for bit those entries of [`MtpHead::logits`].
    ///
    /// # Errors
    /// When the shape does not fit or the device fails.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, EngineError> {
        Ok(self.head.forward(hidden)?.to_dtype(DType::F32)?)
    }

    /// Bytes of the gathered rows.
    pub fn bytes(&self) -> usize {
        self.head.bytes()
    }
}

/// The head's memory of one sequence: keys and values of the folded pairs and the positions of their tokens.
#[derive(Debug)]
pub struct HeadCache(SequenceCache);

impl HeadCache {
    /// Pairs held.
    ///
    /// # Errors
    /// When keys and positions disagree: the cache must be thrown away.
    pub fn token_count(&self) -> Result<usize, CacheError> {
        self.0.token_count()
    }

    /// The least position that the next pair may have.
    pub fn next_position(&self) -> u32 {
        self.0.next_position()
    }

    /// Keeps the first `pairs` pairs.
    ///
    /// # Errors
    /// Never for a head with full attention.
    pub fn trim(&mut self, pairs: usize) -> Result<(), CacheError> {
        self.0.trim(pairs)
    }

    /// Makes room for `pairs` in all.
    ///
    /// # Errors
    /// When the device has no memory left.
    pub fn reserve(&mut self, pairs: usize) -> Result<(), CacheError> {
        self.0.reserve(pairs)
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// A deep copy, for the prefix cache.
    ///
    /// # Errors
    /// When memory ran out.
    pub fn snapshot(&self) -> Result<SequenceSnapshot, CacheError> {
        self.0.snapshot()
    }

    /// Becomes what the snapshot holds. When that fails the cache is empty.
    ///
    /// # Errors
    /// When the snapshot is of another model or memory ran out.
    pub fn restore(&mut self, snapshot: &SequenceSnapshot) -> Result<(), CacheError> {
        self.0.restore(snapshot)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

//! Model families: one file each, over shared layers, found through a registry.

mod decoder;
pub(crate) mod layer;
mod llama;
mod qwen2;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;

use candle_core::Tensor;

pub use decoder::DecoderModel;

use crate::{
    cache::SequenceCache,
    config::ConfigSource,
    error::{EngineError, ModelError},
    mtp::MtpSupport,
    positions::Positions,
    weights::Weights,
};

/// Which tokens of a forward pass get logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// None: the pass only fills the cache.
    None,
    /// The last one.
    Last,
    /// All.
    All,
}

/// One forward pass over the tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct ForwardInput<'a> {
    /// Token ids.
    pub tokens: &'a [u32],
    /// Their true positions, one each.
    pub positions: &'a Positions,
    /// Which rows of logits are wanted.
    pub logits: LogitRows,
    /// Whether the hidden states after the final norm are wanted: what an MTP head reads.
    pub hidden: bool,
    /// Whether the queries of the attention layers are wanted: what SpecPrefill ranks prompt tokens by.
    pub queries: bool,
    /// Whether recurrent layers keep what [`SequenceCache::rollback`] needs to take back a part of this pass.
    pub replayable: bool,
}

impl<'a> ForwardInput<'a> {
    /// A pass that gives logits, or nothing, and captures nothing.
    pub fn new(tokens: &'a [u32], positions: &'a Positions, logits: LogitRows) -> Self {
        Self {
            tokens,
            positions,
            logits,
            hidden: false,
            queries: false,
            replayable: false,
        }
    }

    /// The same pass, also giving the hidden states.
    pub fn with_hidden(self) -> Self {
        Self {
            hidden: true,
            ..self
        }
    }

    /// The same pass, also giving the queries.
    pub fn with_queries(self) -> Self {
        Self {
            queries: true,
            ..self
        }
    }

    /// The same pass, of which a part can be taken back afterwards.
    pub fn replayable(self) -> Self {
        Self {
            replayable: true,
            ..self
        }
    }
}

/// The queries of one full-attention layer in one pass.
#[derive(Debug, Clone)]
pub struct LayerQueries {
    /// Index of the layer, as in the [`SequenceCache`].
    pub layer: usize,
    /// `[tokens, heads, head_dim]` in the model's dtype, normed and rotated as the layer's attention used them.
    pub queries: Tensor,
}

/// What a forward pass gives.
#[derive(Debug, Clone, Default)]
pub struct ForwardOutput {
    /// `[rows, vocabulary]` in f32; `None` for [`LogitRows::None`].
    pub logits: Option<Tensor>,
    /// After the final norm, `[tokens, hidden]` in the model's dtype; when asked for.
    pub hidden: Option<Tensor>,
    /// One entry for each layer that attends to all earlier tokens, in order; when asked for.
    pub queries: Vec<LayerQueries>,
}

impl ForwardOutput {
    /// The logits of a pass that asked for some.
    ///
    /// # Errors
    /// When the pass gave none.
    pub fn logits(self) -> Result<Tensor, EngineError> {
        self.logits
            .ok_or_else(|| EngineError::Compute("the model returned no logits".into()))
    }
}

/// A loaded model. It holds weights only: everything that belongs to a request lives in the [`SequenceCache`] that the pass is given, so
/// that requests of any kind run side by side.
pub trait Model: Send + Sync + std::fmt::Debug {
    /// Size of the vocabulary: the width of the logits.
    fn vocab_size(&self) -> usize;

    /// The most tokens a sequence may have.
    fn context_length(&self) -> usize;

    /// Bytes of the weights on the device.
    fn weight_bytes(&self) -> usize;

    /// Bytes that each cached token takes.
    fn cache_bytes_per_token(&self) -> usize;

    /// Bytes of the states of fixed size that a sequence has besides.
    fn state_bytes(&self) -> usize;

    /// The model's MTP head, or why there is none.
    fn mtp(&self) -> MtpSupport<'_> {
        MtpSupport::NoHead
    }

    /// An empty cache for one sequence.
    fn new_cache(&self) -> SequenceCache;

    /// Runs the tokens and appends them to `cache`. Gives what `input` asks for.
    ///
    /// # Errors
    /// When the numbers of tokens and positions differ, a token is outside the vocabulary, the positions do not follow the cache's, or
    /// the device fails. The cache is then as it was before.
    fn forward(
        &self,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<ForwardOutput, EngineError>;
}

/// Loads a model of one family.
type Loader = fn(&ConfigSource, &Weights) -> Result<Box<dyn Model>, ModelError>;

/// A family of models.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// The values of `model_type` in `config.json` that mean this family.
    pub model_types: &'static [&'static str],
    /// `general.architecture` in GGUFs; `None` when this family is not read from them.
    pub gguf: Option<&'static str>,
    /// True when GGUFs of this family store query and key rows interleaved.
    pub gguf_interleaves_heads: bool,
    loader: Loader,
}

/// Every family that can be run.
pub const FAMILIES: &[Family] = &[
    Family {
        model_types: &["llama"],
        gguf: Some("llama"),
        gguf_interleaves_heads: true,
        loader: llama::load,
    },
    Family {
        model_types: &["qwen2"],
        gguf: Some("qwen2"),
        gguf_interleaves_heads: false,
        loader: qwen2::load,
    },
    Family {
        model_types: &["qwen3"],
        gguf: Some("qwen3"),
        gguf_interleaves_heads: false,
        loader: qwen3::load,
    },
    Family {
        model_types: &["qwen3_moe"],
        gguf: Some("qwen3moe"),
        gguf_interleaves_heads: false,
        loader: qwen3_moe::load,
    },
    Family {
        model_types: &["qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"],
        gguf: None,
        gguf_interleaves_heads: false,
        loader: qwen3_5::load,
    },
];

impl Family {
    /// The family that a checkpoint belongs to.
    ///
    /// # Errors
    /// When it is none that is known; the message lists those that are.
    pub fn of(config: &ConfigSource) -> Result<Self, ModelError> {
        let architecture = config.architecture()?;
        let matches = |family: &&Self| {
            if config.is_gguf() {
                family.gguf == Some(architecture)
            } else {
                family.model_types.contains(&architecture)
            }
        };
        FAMILIES.iter().find(matches).copied().ok_or_else(|| {
            let known: Vec<&str> = FAMILIES
                .iter()
                .flat_map(|family| match config.is_gguf() {
                    true => family.gguf.as_slice(),
                    false => family.model_types,
                })
                .copied()
                .collect();
            ModelError::unsupported(
                config.path(),
                format!("the architecture \"{architecture}\""),
                known.join(", "),
            )
        })
    }

    /// Loads a model of this family.
    ///
    /// # Errors
    /// When the configuration or a weight is missing, wrong or unsupported.
    pub fn load(
        &self,
        config: &ConfigSource,
        weights: &Weights,
    ) -> Result<Box<dyn Model>, ModelError> {
        (self.loader)(config, weights)
    }
}

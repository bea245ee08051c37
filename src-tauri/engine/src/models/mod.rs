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
    cache::{RecurrentStates, SequenceCache, SharedRows},
    config::ConfigSource,
    error::{EngineError, ModelError},
    mtp::MtpSupport,
    positions::Positions,
    weights::{GgufRows, Weights},
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

    /// The widest window of the layers that see only so many tokens back; `None` when all see everything.
    fn sliding_window(&self) -> Option<usize>;

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

    /// How many of the first layers can rank tokens for SpecPrefill: few enough to be worth it, with at least one layer among them that
    /// attends to all earlier tokens. `None` when there are none such.
    fn ranking_layers(&self) -> Option<usize>;

    /// A cache of the first `layers` layers, with a copy of what `cache` holds for them.
    ///
    /// # Errors
    /// When memory ran out.
    fn copy_first_layers(
        &self,
        layers: usize,
        cache: &SequenceCache,
    ) -> Result<SequenceCache, EngineError>;

    /// Runs the tokens through the first `layers` layers only and appends them to `cache`, which has only these. `input.logits` and
    /// `input.hidden` are not looked at.
    ///
    /// # Errors
    /// As [`Model::forward`].
    fn forward_first(
        &self,
        layers: usize,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<FirstLayers, EngineError>;

    /// Runs tokens through the layers that [`Model::forward_first`] left out and appends them to `cache`, which has all layers.
    ///
    /// # Errors
    /// As [`Model::forward`]; and when `first` does not fit the tokens.
    fn forward_rest(
        &self,
        first: RanLayers<'_>,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<ForwardOutput, EngineError>;
}

/// What the first layers of a model gave.
#[derive(Debug, Clone)]
pub struct FirstLayers {
    /// Between the layers, `[tokens, hidden]` in the model's dtype.
    pub hidden: Tensor,
    /// As in [`ForwardOutput::queries`].
    pub queries: Vec<LayerQueries>,
}

/// Tokens that went through the first layers already.
#[derive(Debug, Clone, Copy)]
pub struct RanLayers<'a> {
    /// How many layers.
    pub layers: usize,
    /// What these gave, `[tokens, hidden]`.
    pub hidden: &'a Tensor,
    /// Their keys and values.
    pub rows: &'a SharedRows,
    /// Their states.
    pub states: &'a RecurrentStates,
}

/// Loads a model of one family.
type Loader = fn(&ConfigSource, &Weights) -> Result<Box<dyn Model>, ModelError>;

/// Says how the converter to GGUF ordered the rows of one family.
type RowRule = fn(&ConfigSource) -> Result<GgufRows, ModelError>;

fn as_trained(_: &ConfigSource) -> Result<GgufRows, ModelError> {
    Ok(GgufRows::AsTrained)
}

/// A family of models.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// The values of `model_type` in `config.json` that mean this family.
    pub model_types: &'static [&'static str],
    /// The values of `general.architecture` in GGUFs that mean this family.
    pub gguf: &'static [&'static str],
    gguf_rows: RowRule,
    loader: Loader,
}

/// Every family that can be run.
pub const FAMILIES: &[Family] = &[
    Family {
        model_types: &["llama"],
        gguf: &["llama"],
        gguf_rows: llama::gguf_rows,
        loader: llama::load,
    },
    Family {
        model_types: &["qwen2"],
        gguf: &["qwen2"],
        gguf_rows: as_trained,
        loader: qwen2::load,
    },
    Family {
        model_types: &["qwen3"],
        gguf: &["qwen3"],
        gguf_rows: as_trained,
        loader: qwen3::load,
    },
    Family {
        model_types: &["qwen3_moe"],
        gguf: &["qwen3moe"],
        gguf_rows: as_trained,
        loader: qwen3_moe::load,
    },
    Family {
        model_types: &["qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"],
        gguf: &["qwen35", "qwen35moe"],
        gguf_rows: qwen3_5::gguf_rows,
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
                family.gguf.contains(&architecture)
            } else {
                family.model_types.contains(&architecture)
            }
        };
        FAMILIES.iter().find(matches).copied().ok_or_else(|| {
            let known: Vec<&str> = FAMILIES
                .iter()
                .flat_map(|family| match config.is_gguf() {
                    true => family.gguf,
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

    /// How a GGUF of this family orders its rows.
    ///
    /// # Errors
    /// When a size that decides it is missing or wrong.
    pub fn gguf_rows(&self, config: &ConfigSource) -> Result<GgufRows, ModelError> {
        (self.gguf_rows)(config)
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

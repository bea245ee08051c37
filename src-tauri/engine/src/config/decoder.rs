//! The hyper-parameters that all decoder-only transformers share.

use super::{ConfigSource, Key, RopeConfig};
use crate::error::ModelError;

const HIDDEN_SIZE: Key = Key::new("hidden_size", "embedding_length");
const INTERMEDIATE_SIZE: Key = Key::new("intermediate_size", "feed_forward_length");
const NUM_LAYERS: Key = Key::new("num_hidden_layers", "block_count");
const MTP_LAYERS: Key = Key::new("", "nextn_predict_layers");
const NUM_HEADS: Key = Key::new("num_attention_heads", "attention.head_count");
const NUM_KV_HEADS: Key = Key::new("num_key_value_heads", "attention.head_count_kv");
const HEAD_DIM: Key = Key::new("head_dim", "attention.key_length");
const VALUE_DIM: Key = Key::new("v_head_dim", "attention.value_length");
const RMS_NORM_EPS: Key = Key::new("rms_norm_eps", "attention.layer_norm_rms_epsilon");
const CONTEXT_LENGTH: Key = Key::new("max_position_embeddings", "context_length");
const TIE: Key = Key::new("tie_word_embeddings", "tie_word_embeddings");
const ACTIVATION: Key = Key::new("hidden_act", "hidden_act");

/// More layers than any model has: what a lying header may make us allocate stays small.
const MAX_LAYERS: usize = 10_000;

/// Sizes and constants of a decoder-only transformer with grouped-query attention and a gated MLP.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the MLP; models of experts alone have none.
    pub intermediate_size: Option<usize>,
    /// Number of layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Epsilon of the RMS norms.
    pub rms_norm_eps: f64,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// The most tokens that a sequence may have, as the checkpoint says.
    pub context_length: usize,
    /// The output head shares the embedding's weights (`None`: GGUF, decided by whether a head tensor is there).
    pub tie_word_embeddings: Option<bool>,
}

impl DecoderConfig {
    /// Reads the shared hyper-parameters. `default_tie` is the family's value when `config.json` does not say.
    ///
    /// # Errors
    /// When a key is missing, has the wrong type, or the sizes contradict each other.
    pub fn read(source: &ConfigSource, default_tie: bool) -> Result<Self, ModelError> {
        let hidden_size = source.positive(HIDDEN_SIZE)?;
        let num_heads = source.positive(NUM_HEADS)?;
        let num_kv_heads = match source.usize(NUM_KV_HEADS)? {
            Some(0) => {
                return Err(ModelError::corrupt(
                    source.path(),
                    format!("\"{}\" is 0", source.name(NUM_KV_HEADS)),
                ));
            }
            Some(n) => n,
            None => num_heads,
        };
        if num_heads % num_kv_heads != 0 {
            return Err(ModelError::corrupt(
                source.path(),
                format!(
                    "{num_heads} query heads cannot be shared evenly by {num_kv_heads} key/value heads"
                ),
            ));
        }
        let head_dim = match source.usize(HEAD_DIM)? {
            Some(n) if n > 0 => n,
            _ => hidden_size / num_heads,
        };
        if head_dim == 0 || head_dim % 2 != 0 {
            return Err(ModelError::corrupt(
                source.path(),
                format!(
                    "a head width of {head_dim} cannot be rotated; it must be even and positive"
                ),
            ));
        }
        if let Some(value_dim) = source.usize(VALUE_DIM)?
            && value_dim != head_dim
        {
            return Err(ModelError::unsupported(
                source.path(),
                format!("a value head width of {value_dim} beside a key head width of {head_dim}"),
                "equal widths",
            ));
        }
        if let Some(activation) = source.string(ACTIVATION)?
            && activation != "silu"
            && activation != "swish"
        {
            return Err(ModelError::unsupported(
                source.path(),
                format!("hidden_act \"{activation}\""),
                "\"silu\"",
            ));
        }
        let num_layers = source.positive(NUM_LAYERS)?;
        if num_layers > MAX_LAYERS {
            return Err(ModelError::corrupt(
                source.path(),
                format!(
                    "\"{}\" is {num_layers}, which no model has",
                    source.name(NUM_LAYERS)
                ),
            ));
        }
        // GGUFs count the layers of an MTP head among the blocks; they follow the trunk's.
        let mtp_layers = source.usize(MTP_LAYERS)?.unwrap_or(0);
        let num_layers = num_layers
            .checked_sub(mtp_layers)
            .filter(|layers| *layers > 0)
            .ok_or_else(|| {
                ModelError::corrupt(
                    source.path(),
                    format!("{mtp_layers} of {num_layers} layers are said to be an MTP head's"),
                )
            })?;
        let context_length = source.positive(CONTEXT_LENGTH)?;
        let rope = RopeConfig::read(source, head_dim, context_length)?;
        let rms_norm_eps = source.f64(RMS_NORM_EPS)?.unwrap_or(1e-6);
        if !(0.0..1.0).contains(&rms_norm_eps) {
            return Err(ModelError::corrupt(
                source.path(),
                format!(
                    "\"{}\" is {rms_norm_eps}; expected a small positive number",
                    source.name(RMS_NORM_EPS)
                ),
            ));
        }
        Ok(Self {
            hidden_size,
            intermediate_size: source.usize(INTERMEDIATE_SIZE)?.filter(|n| *n > 0),
            num_layers,
            num_heads,
            num_kv_heads,
            head_dim,
            rms_norm_eps,
            rope,
            context_length,
            tie_word_embeddings: if source.is_gguf() {
                None
            } else {
                Some(source.bool(TIE)?.unwrap_or(default_tie))
            },
        })
    }

    /// The width inside the MLP of a dense layer.
    ///
    /// # Errors
    /// When the configuration does not say.
    pub fn dense_intermediate(&self, source: &ConfigSource) -> Result<usize, ModelError> {
        self.intermediate_size
            .ok_or_else(|| source.missing(INTERMEDIATE_SIZE))
    }
}

//! Llama 1 to 3.x (Touvron et al. 2023, arXiv 2302.13971; Llama 3: arXiv 2407.21783) and models of the same architecture.

use super::{
    Model,
    decoder::{DecoderModel, DecoderPlan, FeedForwardPlan, MixerPlan, bias},
};
use crate::{
    config::{ConfigSource, DecoderConfig, Key},
    error::ModelError,
    layers::{AttentionConfig, HeadNorms},
    weights::{GgufRows, Weights},
};

const ATTENTION_BIAS: Key = Key::new("attention_bias", "attention_bias");
const MLP_BIAS: Key = Key::new("mlp_bias", "mlp_bias");

/// GGUFs of Llama store query and key rows interleaved.
///
/// # Errors
/// When the configuration is missing or wrong.
pub(super) fn gguf_rows(source: &ConfigSource) -> Result<GgufRows, ModelError> {
    let config = DecoderConfig::read(source, false)?;
    Ok(GgufRows::InterleavedHeads {
        queries: config.num_heads,
        keys: config.num_kv_heads,
    })
}

/// Loads a Llama.
///
/// # Errors
/// When the configuration or a weight is missing, wrong or unsupported.
pub(super) fn load(source: &ConfigSource, weights: &Weights) -> Result<Box<dyn Model>, ModelError> {
    let config = DecoderConfig::read(source, false)?;
    let attention_bias = bias(source, ATTENTION_BIAS)?;
    let attention = AttentionConfig {
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        head_norms: HeadNorms::None,
        output_gate: false,
        window: None,
    };
    let feed_forward = FeedForwardPlan::Dense {
        intermediate: config.dense_intermediate(source)?,
        bias: bias(source, MLP_BIAS)?,
    };
    let plan = DecoderPlan {
        layers: vec![(MixerPlan::Attention(attention), feed_forward); config.num_layers],
        centred_norms: false,
        mtp: None,
    };
    Ok(Box::new(DecoderModel::load(config, plan, weights)?))
}

//! Qwen3 dense models (arXiv 2505.09388): as Llama, with RMS norms on every query and key head.

use super::{
    Model,
    decoder::{DecoderModel, DecoderPlan, bias, qwen_windows},
};
use crate::{
    config::{ConfigSource, DecoderConfig, Key},
    error::ModelError,
    layers::AttentionConfig,
    weights::{Bias, Weights},
};

const ATTENTION_BIAS: Key = Key::new("attention_bias", "attention_bias");

/// Loads a Qwen3.
///
/// # Errors
/// When the configuration or a weight is missing, wrong or unsupported.
pub(super) fn load(source: &ConfigSource, weights: &Weights) -> Result<Box<dyn Model>, ModelError> {
    let config = DecoderConfig::read(source, false)?;
    let attention_bias = bias(source, ATTENTION_BIAS)?;
    let attention = qwen_windows(source, config.num_layers)?
        .into_iter()
        .map(|window| AttentionConfig {
            qkv_bias: attention_bias,
            output_bias: attention_bias,
            head_norms: true,
            window,
        })
        .collect();
    let plan = DecoderPlan {
        attention,
        mlp_bias: Bias::None,
    };
    Ok(Box::new(DecoderModel::load(config, &plan, weights)?))
}

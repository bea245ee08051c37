//! Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): as Llama, with biases on q, k and v.

use super::{
    Model,
    decoder::{DecoderModel, DecoderPlan, qwen_windows},
};
use crate::{
    config::{ConfigSource, DecoderConfig},
    error::ModelError,
    layers::AttentionConfig,
    weights::{Bias, Weights},
};

/// Loads a Qwen2.
///
/// # Errors
/// When the configuration or a weight is missing, wrong or unsupported.
pub(super) fn load(source: &ConfigSource, weights: &Weights) -> Result<Box<dyn Model>, ModelError> {
    let config = DecoderConfig::read(source, false)?;
    let attention = qwen_windows(source, config.num_layers)?
        .into_iter()
        .map(|window| AttentionConfig {
            qkv_bias: Bias::Required,
            output_bias: Bias::None,
            head_norms: false,
            window,
        })
        .collect();
    let plan = DecoderPlan {
        attention,
        mlp_bias: Bias::None,
    };
    Ok(Box::new(DecoderModel::load(config, &plan, weights)?))
}

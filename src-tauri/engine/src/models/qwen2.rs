//! Qwen2 and Qwen2.5 (arXiv 2407.10671, 2412.15115): as Llama, with biases on q, k and v.

use super::{
    Model,
    decoder::{DecoderModel, DecoderPlan, FeedForwardPlan, MixerPlan, qwen_windows},
};
use crate::{
    config::{ConfigSource, DecoderConfig},
    error::ModelError,
    layers::{AttentionConfig, HeadNorms},
    weights::{Bias, Weights},
};

/// Loads a Qwen2.
///
/// # Errors
/// When the configuration or a weight is missing, wrong or unsupported.
pub(super) fn load(source: &ConfigSource, weights: &Weights) -> Result<Box<dyn Model>, ModelError> {
    let config = DecoderConfig::read(source, false)?;
    let feed_forward = FeedForwardPlan::Dense {
        intermediate: config.dense_intermediate(source)?,
        bias: Bias::None,
    };
    let layers = qwen_windows(source, config.num_layers)?
        .into_iter()
        .map(|window| {
            let attention = AttentionConfig {
                qkv_bias: Bias::Required,
                output_bias: Bias::None,
                head_norms: HeadNorms::None,
                output_gate: false,
                window,
            };
            (MixerPlan::Attention(attention), feed_forward)
        })
        .collect();
    let plan = DecoderPlan {
        layers,
        centred_norms: false,
        mtp: None,
    };
    Ok(Box::new(DecoderModel::load(config, plan, weights)?))
}

//! Qwen3 dense models (arXiv 2505.09388): as Llama, with RMS norms on every query and key head.

use super::{
    Model,
    decoder::{DecoderModel, DecoderPlan, FeedForwardPlan, MixerPlan, bias, qwen_windows},
};
use crate::{
    config::{ConfigSource, DecoderConfig, Key},
    error::ModelError,
    layers::{AttentionConfig, HeadNorms},
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
    let feed_forward = FeedForwardPlan::Dense {
        intermediate: config.dense_intermediate(source)?,
        bias: Bias::None,
    };
    let layers = qwen_windows(source, config.num_layers)?
        .into_iter()
        .map(|window| {
            let attention = AttentionConfig {
                qkv_bias: attention_bias,
                output_bias: attention_bias,
                head_norms: HeadNorms::Plain,
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

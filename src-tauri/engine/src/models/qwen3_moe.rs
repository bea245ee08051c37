//! Qwen3-MoE (arXiv 2505.09388): Qwen3 with experts instead of the MLP in all or some layers.

use super::{
    Model,
    decoder::{DecoderModel, DecoderPlan, FeedForwardPlan, MixerPlan, bias, qwen_windows},
};
use crate::{
    config::{ConfigSource, DecoderConfig, Key},
    error::ModelError,
    layers::{AttentionConfig, HeadNorms, MoeConfig},
    weights::{Bias, Weights},
};

const ATTENTION_BIAS: Key = Key::new("attention_bias", "attention_bias");
pub(super) const EXPERTS: Key = Key::new("num_experts", "expert_count");
const ACTIVE: Key = Key::new("num_experts_per_tok", "expert_used_count");
const INTERMEDIATE: Key = Key::new("moe_intermediate_size", "expert_feed_forward_length");
const NORMALIZE: Key = Key::new("norm_topk_prob", "expert_weights_norm");
const SPARSE_STEP: Key = Key::new("decoder_sparse_step", "decoder_sparse_step");

/// Reads the experts' sizes; `normalize` is the family's rule when the checkpoint does not say.
///
/// # Errors
/// When a size is missing, or more experts are active than there are.
pub(super) fn experts(source: &ConfigSource, normalize: bool) -> Result<MoeConfig, ModelError> {
    let config = MoeConfig {
        experts: source.positive(EXPERTS)?,
        active: source.positive(ACTIVE)?,
        intermediate: source.positive(INTERMEDIATE)?,
        shared_intermediate: None,
        normalize: source.bool(NORMALIZE)?.unwrap_or(normalize),
    };
    if config.active > config.experts {
        return Err(ModelError::corrupt(
            source.path(),
            format!(
                "{} active experts of {} cannot be",
                config.active, config.experts
            ),
        ));
    }
    Ok(config)
}

/// Loads a Qwen3-MoE.
///
/// # Errors
/// When the configuration or a weight is missing, wrong or unsupported.
pub(super) fn load(source: &ConfigSource, weights: &Weights) -> Result<Box<dyn Model>, ModelError> {
    let config = DecoderConfig::read(source, false)?;
    let attention_bias = bias(source, ATTENTION_BIAS)?;
    // GGUFs of this family always normalise; `config.json` says, and its default is not to.
    let moe = experts(source, source.is_gguf())?;
    let step = source
        .usize(SPARSE_STEP)?
        .filter(|step| *step > 0)
        .unwrap_or(1);
    let dense: Vec<u64> = source
        .json("mlp_only_layers")
        .and_then(|list| list.as_array())
        .map(|list| list.iter().filter_map(|n| n.as_u64()).collect())
        .unwrap_or_default();
    let layers = qwen_windows(source, config.num_layers)?
        .into_iter()
        .enumerate()
        .map(|(i, window)| {
            let attention = MixerPlan::Attention(AttentionConfig {
                qkv_bias: attention_bias,
                output_bias: attention_bias,
                head_norms: HeadNorms::Plain,
                output_gate: false,
                window,
            });
            if dense.contains(&(i as u64)) || !(i + 1).is_multiple_of(step) {
                let feed_forward = FeedForwardPlan::Dense {
                    intermediate: config.dense_intermediate(source)?,
                    bias: Bias::None,
                };
                Ok((attention, feed_forward))
            } else {
                Ok((attention, FeedForwardPlan::Experts(moe)))
            }
        })
        .collect::<Result<Vec<_>, ModelError>>()?;
    let plan = DecoderPlan {
        layers,
        centred_norms: false,
        mtp: None,
    };
    Ok(Box::new(DecoderModel::load(config, plan, weights)?))
}

//! Qwen3.5 and its successors of the same type: hybrids of GatedDeltaNet and gated full attention, dense or with experts, alone or as
//! the text part of a vision-language checkpoint.

use super::{
    Model,
    decoder::{DecoderModel, DecoderPlan, FeedForwardPlan, MixerPlan, bias},
    qwen3_moe::{EXPERTS, experts},
};
use crate::{
    config::{ConfigSource, DecoderConfig, Key, attention_layers},
    error::ModelError,
    layers::{AttentionConfig, GatedDeltaConfig, HeadNorms, MoeConfig},
    weights::{Bias, GgufRows, TiledValueHeads, Weights},
};

const ATTENTION_BIAS: Key = Key::new("attention_bias", "attention_bias");
const OUTPUT_GATE: Key = Key::new("attn_output_gate", "attn_output_gate");
const KERNEL: Key = Key::new("linear_conv_kernel_dim", "ssm.conv_kernel");
const KEY_HEADS: Key = Key::new("linear_num_key_heads", "ssm.group_count");
const VALUE_HEADS: Key = Key::new("linear_num_value_heads", "ssm.time_step_rank");
const KEY_DIM: Key = Key::new("linear_key_head_dim", "ssm.state_size");
const VALUE_DIM: Key = Key::new("linear_value_head_dim", "");
const INNER_SIZE: Key = Key::new("", "ssm.inner_size");
const MTP_LAYERS: Key = Key::new("mtp_num_hidden_layers", "");
const SHARED: Key = Key::new(
    "shared_expert_intermediate_size",
    "expert_shared_feed_forward_length",
);

/// GGUFs of this family store the value heads of their recurrent layers tiled.
///
/// # Errors
/// When the configuration is missing or wrong.
pub(super) fn gguf_rows(source: &ConfigSource) -> Result<GgufRows, ModelError> {
    let delta = gated_delta(source)?;
    Ok(GgufRows::TiledValueHeads(TiledValueHeads {
        key_heads: delta.key_heads,
        value_heads: delta.value_heads,
        key_dim: delta.key_dim,
        value_dim: delta.value_dim,
    }))
}

/// Loads a Qwen3.5.
///
/// # Errors
/// When the configuration or a weight is missing, wrong or unsupported.
pub(super) fn load(source: &ConfigSource, weights: &Weights) -> Result<Box<dyn Model>, ModelError> {
    let config = DecoderConfig::read(source, false)?;
    let attention_bias = bias(source, ATTENTION_BIAS)?;
    let attention = AttentionConfig {
        qkv_bias: attention_bias,
        output_bias: attention_bias,
        head_norms: HeadNorms::Centred,
        output_gate: source.bool(OUTPUT_GATE)?.unwrap_or(true),
        window: None,
    };
    let delta = gated_delta(source)?;
    let feed_forward = if source.usize(EXPERTS)?.is_some_and(|n| n > 0) {
        FeedForwardPlan::Experts(MoeConfig {
            shared_intermediate: Some(source.positive(SHARED)?),
            ..experts(source, true)?
        })
    } else {
        FeedForwardPlan::Dense {
            intermediate: config.dense_intermediate(source)?,
            bias: Bias::None,
        }
    };
    let layers = attention_layers(source, config.num_layers)?
        .into_iter()
        .map(|full| {
            let mixer = if full {
                MixerPlan::Attention(attention)
            } else {
                MixerPlan::GatedDelta(delta)
            };
            (mixer, feed_forward)
        })
        .collect();
    let plan = DecoderPlan {
        layers,
        centred_norms: true,
        mtp: mtp_layer(source, weights, attention, feed_forward)?,
    };
    Ok(Box::new(DecoderModel::load(config, plan, weights)?))
}

/// The layer of the MTP head, if one is declared. More than one are trained to take turns; the first then serves every step.
fn mtp_layer(
    source: &ConfigSource,
    weights: &Weights,
    attention: AttentionConfig,
    trunk: FeedForwardPlan,
) -> Result<Option<(MixerPlan, FeedForwardPlan)>, ModelError> {
    if source.usize(MTP_LAYERS)?.is_none_or(|layers| layers == 0) {
        return Ok(None);
    }
    // The head of a model of experts may be dense.
    let feed_forward = match weights.rows("mtp.layers.0.mlp.gate_proj") {
        Some(intermediate) => FeedForwardPlan::Dense {
            intermediate,
            bias: Bias::None,
        },
        None => trunk,
    };
    Ok(Some((MixerPlan::Attention(attention), feed_forward)))
}

fn gated_delta(source: &ConfigSource) -> Result<GatedDeltaConfig, ModelError> {
    let value_heads = source.positive(VALUE_HEADS)?;
    let value_dim = if source.is_gguf() {
        let inner = source.positive(INNER_SIZE)?;
        if !inner.is_multiple_of(value_heads) {
            return Err(ModelError::corrupt(
                source.path(),
                format!("{value_heads} value heads cannot share a width of {inner} evenly"),
            ));
        }
        inner / value_heads
    } else {
        source.positive(VALUE_DIM)?
    };
    let config = GatedDeltaConfig {
        key_heads: source.positive(KEY_HEADS)?,
        value_heads,
        key_dim: source.positive(KEY_DIM)?,
        value_dim,
        kernel: source.positive(KERNEL)?,
    };
    if !config.value_heads.is_multiple_of(config.key_heads) {
        return Err(ModelError::corrupt(
            source.path(),
            format!(
                "{} value heads cannot share {} key heads evenly",
                config.value_heads, config.key_heads
            ),
        ));
    }
    Ok(config)
}

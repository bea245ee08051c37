//! Which layers of a model are attention.

use super::{ConfigSource, Key};
use crate::error::ModelError;

const INTERVAL: Key = Key::new("full_attention_interval", "full_attention_interval");

const RECURRENT: Key = Key::new("", "attention.recurrent_layers");
const CONV_KERNEL: Key = Key::new("linear_conv_kernel_dim", "ssm.conv_kernel");

/// What transformers and llama.cpp take when a hybrid does not say.
const HYBRID_INTERVAL: usize = 4;

/// For every layer, whether it is attention (full or sliding) and not a recurrent one: as `layer_types` (a GGUF's
/// `attention.recurrent_layers`) lists, else every `full_attention_interval`-th, else all.
///
/// # Errors
/// When the list has another length or names another kind.
pub fn attention_layers(source: &ConfigSource, layers: usize) -> Result<Vec<bool>, ModelError> {
    let Some(types) = source.json("layer_types") else {
        if let Some(recurrent) = source.bools(RECURRENT)? {
            // The list goes on over an MTP head's layers.
            if recurrent.len() < layers {
                return Err(ModelError::corrupt(
                    source.path(),
                    format!("\"{}\" must list {layers} layers", source.name(RECURRENT)),
                ));
            }
            return Ok(recurrent.iter().take(layers).map(|r| !r).collect());
        }
        let hybrid = source.usize(CONV_KERNEL)?.is_some();
        let interval = source
            .usize(INTERVAL)?
            .filter(|n| *n > 0)
            .unwrap_or(if hybrid { HYBRID_INTERVAL } else { 1 });
        return Ok((0..layers)
            .map(|i| (i + 1).is_multiple_of(interval))
            .collect());
    };
    let types = types
        .as_array()
        .filter(|types| types.len() == layers)
        .ok_or_else(|| {
            ModelError::corrupt(
                source.path(),
                format!("\"layer_types\" must list {layers} layers"),
            )
        })?;
    types
        .iter()
        .map(|kind| match kind.as_str() {
            Some("full_attention" | "sliding_attention") => Ok(true),
            Some("linear_attention") => Ok(false),
            _ => Err(ModelError::unsupported(
                source.path(),
                format!("the layer type {kind}"),
                "\"full_attention\", \"sliding_attention\", \"linear_attention\"",
            )),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::{Value, json};

    use super::*;

    fn layers(value: Value, layers: usize) -> Result<Vec<bool>, ModelError> {
        let path = PathBuf::from("config.json");
        attention_layers(&ConfigSource::Json { path, value }, layers)
    }

    #[test]
    fn kinds_come_from_the_list_or_the_interval() {
        assert_eq!(layers(json!({}), 2).unwrap(), [true, true]);
        assert_eq!(
            layers(json!({"full_attention_interval": 2}), 4).unwrap(),
            [false, true, false, true]
        );
        assert_eq!(
            layers(json!({"linear_conv_kernel_dim": 4}), 4).unwrap(),
            [false, false, false, true]
        );
        let listed = json!({"layer_types": ["full_attention", "linear_attention"], "full_attention_interval": 2});
        assert_eq!(layers(listed.clone(), 2).unwrap(), [true, false]);
        assert!(layers(listed, 3).is_err());
        assert!(
            layers(json!({"layer_types": ["mamba"]}), 1)
                .unwrap_err()
                .to_string()
                .contains("mamba")
        );
    }
}

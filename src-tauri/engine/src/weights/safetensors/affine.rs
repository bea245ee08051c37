//! MLX's affine quantization as `config.json` declares it: bits and group size for all modules, with exceptions.

use std::{collections::HashMap, path::Path};

use serde_json::Value;

use crate::error::ModelError;

/// Bits and group size of one quantized module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AffineFormat {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8.
    pub bits: u32,
    /// Weights that share a scale and a bias: 32, 64 or 128.
    pub group: usize,
}

/// The `quantization` object of an MLX checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuantizationConfig {
    default: Option<AffineFormat>,
    /// By stored module path; `None`: not quantized.
    modules: HashMap<String, Option<AffineFormat>>,
}

impl QuantizationConfig {
    /// Reads the object; `path` is the file that messages name.
    ///
    /// # Errors
    /// When a value has the wrong type, or asks for another mode, width or group than MLX's affine ones.
    pub fn read(value: &Value, path: &Path) -> Result<Self, ModelError> {
        let members = value
            .as_object()
            .ok_or_else(|| ModelError::corrupt(path, "\"quantization\" must be an object"))?;
        let mut config = Self {
            default: Some(format(value, None, "quantization", path)?),
            modules: HashMap::new(),
        };
        for (module, value) in members {
            match value {
                Value::Object(_) => {
                    let format = format(value, config.default, module, path)?;
                    config.modules.insert(module.clone(), Some(format));
                }
                Value::Bool(false) => {
                    config.modules.insert(module.clone(), None);
                }
                _ => {}
            }
        }
        Ok(config)
    }

    /// The format declared for a module; `None`: not quantized.
    pub fn of(&self, module: &str) -> Option<AffineFormat> {
        match self.modules.get(module) {
            Some(format) => *format,
            None => self.default,
        }
    }

    /// A declared module that `module` may be meant by: the same path under another prefix.
    pub fn misnamed(&self, module: &str) -> Option<&str> {
        let tail = module
            .split_once("layers.")
            .map_or(module, |(_, tail)| tail);
        self.modules
            .keys()
            .find(|declared| {
                declared.as_str() != module
                    && declared.split_once("layers.").map(|(_, t)| t) == Some(tail)
            })
            .map(String::as_str)
    }
}

/// Bits, group and mode of one object; what is missing comes from `default`.
fn format(
    value: &Value,
    default: Option<AffineFormat>,
    module: &str,
    path: &Path,
) -> Result<AffineFormat, ModelError> {
    if let Some(mode) = value.get("mode")
        && mode.as_str() != Some("affine")
    {
        return Err(ModelError::unsupported(
            path,
            format!("the quantization mode {mode} of \"{module}\""),
            "\"affine\"",
        ));
    }
    let number = |name: &str, default: Option<u64>, allowed: &[u64]| -> Result<u64, ModelError> {
        let found = match value.get(name) {
            None => default.ok_or_else(|| {
                ModelError::corrupt(
                    path,
                    format!("the quantization of \"{module}\" does not name its {name}"),
                )
            })?,
            Some(found) => found.as_u64().ok_or_else(|| {
                ModelError::corrupt(
                    path,
                    format!("{name} of \"{module}\" must be a whole number, found {found}"),
                )
            })?,
        };
        if allowed.contains(&found) {
            Ok(found)
        } else {
            Err(ModelError::unsupported(
                path,
                format!("{name} {found} of \"{module}\""),
                format!("{allowed:?}"),
            ))
        }
    };
    Ok(AffineFormat {
        bits: number(
            "bits",
            default.map(|d| u64::from(d.bits)),
            &[2, 3, 4, 5, 6, 8],
        )? as u32,
        group: number(
            "group_size",
            default.map(|d| d.group as u64),
            &[32, 64, 128],
        )? as usize,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<QuantizationConfig, ModelError> {
        QuantizationConfig::read(&value, Path::new("config.json"))
    }

    #[test]
    fn exceptions_win_over_the_default() {
        let config = read(json!({"group_size": 64, "bits": 4, "mode": "affine",
            "a.layers.3.v": {"bits": 6, "group_size": 64}, "a.layers.3.k": {"bits": 8}, "a.layers.0.b": false}))
        .unwrap();
        assert_eq!(
            config.of("a.layers.3.v"),
            Some(AffineFormat { bits: 6, group: 64 })
        );
        assert_eq!(
            config.of("a.layers.3.k"),
            Some(AffineFormat { bits: 8, group: 64 })
        );
        assert_eq!(config.of("a.layers.0.b"), None);
        assert_eq!(
            config.of("other"),
            Some(AffineFormat { bits: 4, group: 64 })
        );
        assert_eq!(config.misnamed("b.layers.3.v"), Some("a.layers.3.v"));
        assert_eq!(config.misnamed("a.layers.3.v"), None);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (value, part) in [
            (json!({"group_size": 64, "bits": 7}), "bits 7"),
            (json!({"group_size": 16, "bits": 4}), "group_size 16"),
            (json!({"bits": 4}), "group_size"),
            (json!({"group_size": 64, "bits": "four"}), "four"),
            (
                json!({"group_size": 32, "bits": 4, "mode": "mxfp4"}),
                "mxfp4",
            ),
            (
                json!({"group_size": 64, "bits": 4, "x.y": {"bits": 9}}),
                "x.y",
            ),
            (json!([4]), "object"),
        ] {
            let error = read(value.clone()).unwrap_err().to_string();
            assert!(error.contains(part), "{value}: {error}");
        }
    }
}

//! One way to ask for a hyper-parameter, whatever file it stands in.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::{error::ModelError, gguf::GgufFile};

/// A hyper-parameter's name in `config.json` and, without the architecture prefix, in GGUF metadata.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Name in `config.json`.
    pub json: &'static str,
    /// Name after `{architecture}.` in GGUF metadata.
    pub gguf: &'static str,
}

impl Key {
    /// A key with its two names.
    pub const fn new(json: &'static str, gguf: &'static str) -> Self {
        Self { json, gguf }
    }
}

/// Where a model's hyper-parameters come from.
#[derive(Debug, Clone)]
pub enum ConfigSource {
    /// A `config.json`.
    Json {
        /// The file.
        path: PathBuf,
        /// The object that describes the text model.
        value: Value,
    },
    /// The metadata of a GGUF file.
    Gguf {
        /// The opened file.
        file: GgufFile,
        /// `general.architecture`, the prefix of all keys.
        architecture: String,
    },
}

/// The largest hyper-parameter that is believed; a real one is far below it, so products of three never overflow.
const MAX_REASONABLE: u64 = 1 << 31;

/// The description of the text model: vision-language checkpoints, and text-only quantizations of them, keep it in `text_config`. What
/// only the outer object says (the quantization, often whether embeddings are tied) still holds.
fn text_part(mut members: Map<String, Value>) -> Map<String, Value> {
    if let Some(Value::Object(text)) = members.remove("text_config") {
        members.extend(text.into_iter().filter(|(_, value)| !value.is_null()));
    }
    members
}

impl ConfigSource {
    /// Reads `config.json` in `folder`.
    ///
    /// # Errors
    /// When the file is missing, is not JSON or is not an object.
    pub fn from_folder(folder: &Path) -> Result<Self, ModelError> {
        let path = folder.join("config.json");
        let text = std::fs::read_to_string(&path).map_err(|e| ModelError::io(&path, e))?;
        let value: Value = serde_json::from_str(&text)
            .map_err(|e| ModelError::corrupt(&path, format!("not valid JSON: {e}")))?;
        match value {
            Value::Object(members) => Ok(Self::Json {
                path,
                value: Value::Object(text_part(members)),
            }),
            _ => Err(ModelError::corrupt(&path, "expected a JSON object")),
        }
    }

    /// Uses the metadata of an opened GGUF.
    ///
    /// # Errors
    /// When `general.architecture` is missing.
    pub fn from_gguf(file: GgufFile) -> Result<Self, ModelError> {
        let architecture = file
            .metadata()
            .require_str("general.architecture")
            .map_err(|e| ModelError::corrupt(file.path(), e.to_string()))?
            .to_string();
        Ok(Self::Gguf { file, architecture })
    }

    /// The file that messages name.
    pub fn path(&self) -> &Path {
        match self {
            Self::Json { path, .. } => path,
            Self::Gguf { file, .. } => file.path(),
        }
    }

    /// True for GGUF.
    pub fn is_gguf(&self) -> bool {
        matches!(self, Self::Gguf { .. })
    }

    /// `model_type` of a `config.json`, `general.architecture` of a GGUF.
    ///
    /// # Errors
    /// When it is missing or not a string.
    pub fn architecture(&self) -> Result<&str, ModelError> {
        match self {
            Self::Json { path, value } => value
                .get("model_type")
                .and_then(Value::as_str)
                .ok_or_else(|| {
                    ModelError::corrupt(path, "\"model_type\" is missing or not a string")
                }),
            Self::Gguf { architecture, .. } => Ok(architecture),
        }
    }

    fn gguf_key(architecture: &str, key: Key) -> String {
        format!("{architecture}.{}", key.gguf)
    }

    fn wrong_type(path: &Path, name: &str, expected: &str, found: &Value) -> ModelError {
        let found = found.to_string();
        let found: String = found.chars().take(40).collect();
        ModelError::corrupt(
            path,
            format!("\"{name}\" must be {expected}, found {found}"),
        )
    }

    /// A count; `None` when absent or null.
    ///
    /// # Errors
    /// When the value is not a whole number from 0 to 2^31.
    pub fn usize(&self, key: Key) -> Result<Option<usize>, ModelError> {
        let (name, number) = match self {
            Self::Json { path, value } => match value.get(key.json) {
                None | Some(Value::Null) => return Ok(None),
                Some(found) => (
                    key.json.to_string(),
                    found
                        .as_u64()
                        .or_else(|| {
                            found
                                .as_f64()
                                .filter(|f| f.fract() == 0.0 && *f >= 0.0)
                                .map(|f| f as u64)
                        })
                        .ok_or_else(|| Self::wrong_type(path, key.json, "a whole number", found))?,
                ),
            },
            Self::Gguf { file, architecture } => {
                let name = Self::gguf_key(architecture, key);
                match file
                    .metadata()
                    .get_u64(&name)
                    .map_err(|e| ModelError::corrupt(file.path(), e.to_string()))?
                {
                    None => return Ok(None),
                    Some(number) => (name, number),
                }
            }
        };
        if number > MAX_REASONABLE {
            return Err(ModelError::corrupt(
                self.path(),
                format!("\"{name}\" is {number}, which no model can have"),
            ));
        }
        Ok(Some(number as usize))
    }

    /// A count that must be present and positive.
    ///
    /// # Errors
    /// When it is missing, zero or of the wrong type.
    pub fn positive(&self, key: Key) -> Result<usize, ModelError> {
        match self.usize(key)? {
            Some(0) => Err(ModelError::corrupt(
                self.path(),
                format!("\"{}\" is 0", self.name(key)),
            )),
            Some(n) => Ok(n),
            None => Err(self.missing(key)),
        }
    }

    /// A real number; `None` when absent or null.
    ///
    /// # Errors
    /// When the value is not a finite number.
    pub fn f64(&self, key: Key) -> Result<Option<f64>, ModelError> {
        let found = match self {
            Self::Json { path, value } => match value.get(key.json) {
                None | Some(Value::Null) => None,
                Some(found) => Some(
                    found
                        .as_f64()
                        .ok_or_else(|| Self::wrong_type(path, key.json, "a number", found))?,
                ),
            },
            Self::Gguf { file, architecture } => file
                .metadata()
                .get_f64(&Self::gguf_key(architecture, key))
                .map_err(|e| ModelError::corrupt(file.path(), e.to_string()))?,
        };
        match found {
            Some(number) if !number.is_finite() => Err(ModelError::corrupt(
                self.path(),
                format!("\"{}\" is {number}", self.name(key)),
            )),
            other => Ok(other),
        }
    }

    /// A switch; `None` when absent or null.
    ///
    /// # Errors
    /// When the value is not true or false.
    pub fn bool(&self, key: Key) -> Result<Option<bool>, ModelError> {
        match self {
            Self::Json { path, value } => match value.get(key.json) {
                None | Some(Value::Null) => Ok(None),
                Some(found) => found
                    .as_bool()
                    .map(Some)
                    .ok_or_else(|| Self::wrong_type(path, key.json, "true or false", found)),
            },
            Self::Gguf { file, architecture } => file
                .metadata()
                .get_bool(&Self::gguf_key(architecture, key))
                .map_err(|e| ModelError::corrupt(file.path(), e.to_string())),
        }
    }

    /// A list of switches of a GGUF; `None` when absent, and for `config.json`.
    ///
    /// # Errors
    /// When the value is another type.
    pub fn bools(&self, key: Key) -> Result<Option<Vec<bool>>, ModelError> {
        match self {
            Self::Json { .. } => Ok(None),
            Self::Gguf { file, architecture } => file
                .metadata()
                .get_array_bool(&Self::gguf_key(architecture, key))
                .map(|list| list.map(<[bool]>::to_vec))
                .map_err(|e| ModelError::corrupt(file.path(), e.to_string())),
        }
    }

    /// A list of counts of a GGUF; `None` when absent, and for `config.json`.
    ///
    /// # Errors
    /// When the value is another type or a number is negative.
    pub fn counts(&self, key: Key) -> Result<Option<Vec<u64>>, ModelError> {
        match self {
            Self::Json { .. } => Ok(None),
            Self::Gguf { file, architecture } => file
                .metadata()
                .get_array_u64(&Self::gguf_key(architecture, key))
                .map_err(|e| ModelError::corrupt(file.path(), e.to_string())),
        }
    }

    /// A text; `None` when absent or null.
    ///
    /// # Errors
    /// When the value is not a text.
    pub fn string(&self, key: Key) -> Result<Option<String>, ModelError> {
        match self {
            Self::Json { path, value } => match value.get(key.json) {
                None | Some(Value::Null) => Ok(None),
                Some(found) => found
                    .as_str()
                    .map(|s| Some(s.to_string()))
                    .ok_or_else(|| Self::wrong_type(path, key.json, "a text", found)),
            },
            Self::Gguf { file, architecture } => Ok(file
                .metadata()
                .get_str(&Self::gguf_key(architecture, key))
                .map_err(|e| ModelError::corrupt(file.path(), e.to_string()))?
                .map(str::to_string)),
        }
    }

    /// A member of `config.json` as it stands; always `None` for GGUF, whose metadata is flat.
    pub fn json(&self, name: &str) -> Option<&Value> {
        match self {
            Self::Json { value, .. } => value.get(name).filter(|v| !v.is_null()),
            Self::Gguf { .. } => None,
        }
    }

    /// The name of `key` in this source, for messages.
    pub fn name(&self, key: Key) -> String {
        match self {
            Self::Json { .. } => key.json.to_string(),
            Self::Gguf { architecture, .. } => Self::gguf_key(architecture, key),
        }
    }

    /// The error for a key that must be there.
    pub fn missing(&self, key: Key) -> ModelError {
        ModelError::corrupt(self.path(), format!("\"{}\" is missing", self.name(key)))
    }
}

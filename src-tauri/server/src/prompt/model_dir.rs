//! Chat templates in a model's folder.

use std::io::ErrorKind;
use std::path::Path;

use serde_json::{Map, Value};

use super::{PromptError, SpecialTokens};

/// Largest file read here, in bytes.
const MAX_FILE: u64 = 64 << 20;

/// The templates of a model by name (`default`, `tool_use`, ...), none if it has none, and its special tokens.
pub(super) struct Found {
    pub(super) templates: Vec<(String, String)>,
    pub(super) tokens: SpecialTokens,
}

/// Reads a model's folder. A `chat_template.jinja` (with `additional_chat_templates/NAME.jinja` beside it) wins over
/// `chat_template.json`, and that over the `chat_template` of `tokenizer_config.json`, as in transformers.
pub(super) fn read(dir: &Path) -> Result<Found, PromptError> {
    let config = read_object(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
    let mut tokens = SpecialTokens::from_config(&config);
    if let Some(map) = read_object(&dir.join("special_tokens_map.json"))? {
        tokens.fill_from(SpecialTokens::from_config(&map));
    }
    let mut templates = Vec::new();
    if let Some(source) = read_text(&dir.join("chat_template.jinja"))? {
        templates.push(("default".to_owned(), source));
    }
    templates.extend(additional(&dir.join("additional_chat_templates"))?);
    if templates.is_empty() {
        for file in ["chat_template.json", "tokenizer_config.json"] {
            let path = dir.join(file);
            let object = if file == "tokenizer_config.json" {
                Some(config.clone())
            } else {
                read_object(&path)?
            };
            if let Some(field) = object
                .as_ref()
                .and_then(|object| object.get("chat_template"))
                && !field.is_null()
            {
                templates = named(field).ok_or_else(|| PromptError::InvalidFile {
                    path,
                    what: "'chat_template' is neither a string nor a list of templates with 'name' and 'template'".into(),
                })?;
                break;
            }
        }
    }
    Ok(Found { templates, tokens })
}

/// The `chat_template` field: one template, a list of named ones, or a map from name to template.
fn named(field: &Value) -> Option<Vec<(String, String)>> {
    match field {
        Value::String(source) => Some(vec![("default".to_owned(), source.clone())]),
        Value::Array(list) => list
            .iter()
            .map(|entry| {
                Some((
                    entry.get("name")?.as_str()?.to_owned(),
                    entry.get("template")?.as_str()?.to_owned(),
                ))
            })
            .collect(),
        Value::Object(map) => map
            .iter()
            .map(|(name, source)| Some((name.clone(), source.as_str()?.to_owned())))
            .collect(),
        _ => None,
    }
}

fn additional(dir: &Path) -> Result<Vec<(String, String)>, PromptError> {
    let io = |source| PromptError::Io {
        path: dir.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(io(error)),
    };
    let mut templates = Vec::new();
    for entry in entries {
        let path = entry.map_err(io)?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "jinja")
            && let Some(name) = path.file_stem().and_then(|name| name.to_str())
            && let Some(source) = read_text(&path)?
        {
            templates.push((name.to_owned(), source));
        }
    }
    templates.sort();
    Ok(templates)
}

/// A file's text; `None` if there is no such file.
fn read_text(path: &Path) -> Result<Option<String>, PromptError> {
    let io = |source| PromptError::Io {
        path: path.to_owned(),
        source,
    };
    match std::fs::metadata(path) {
        // Reading a named pipe waits for its writer.
        Ok(metadata) if !metadata.is_file() => {
            return Err(PromptError::InvalidFile {
                path: path.to_owned(),
                what: "it is not a regular file".into(),
            });
        }
        Ok(metadata) if metadata.len() > MAX_FILE => {
            return Err(PromptError::InvalidFile {
                path: path.to_owned(),
                what: format!("it is larger than {MAX_FILE} bytes"),
            });
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    }
    std::fs::read_to_string(path).map(Some).map_err(io)
}

fn read_object(path: &Path) -> Result<Option<Map<String, Value>>, PromptError> {
    let Some(text) = read_text(path)? else {
        return Ok(None);
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|error| PromptError::InvalidFile {
            path: path.to_owned(),
            what: format!("it is not a JSON object: {error}"),
        })
}

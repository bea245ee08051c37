//! Tokenizers of model folders in the Hugging Face layout.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde_json::Value;
use tokenizers::AddedToken;

use super::guard::guarded;
use super::{Parts, Pipeline, Result, Roles, TokenizerError, json_check};

/// The largest published `tokenizer.json` are near 35 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Looks whether a model folder has a tokenizer, without reading it.
pub(super) fn require_file(dir: &Path) -> Result<()> {
    let file = dir.join("tokenizer.json");
    if file.is_file() {
        Ok(())
    } else if file.exists() {
        // A named pipe, say: reading it would wait for its writer.
        Err(TokenizerError::Invalid {
            source_name: file.display().to_string(),
            problem: "it is not a regular file".into(),
        })
    } else {
        Err(missing(dir))
    }
}

fn missing(dir: &Path) -> TokenizerError {
    let advice = match dir.join("tokenizer.model").exists() {
        true => {
            "its tokenizer.model is not supported; download a version of the model that has tokenizer.json"
        }
        false => "download the model again, with all of its files",
    };
    TokenizerError::Missing {
        dir: dir.display().to_string(),
        advice,
    }
}

/// Reads the tokenizer of a model folder.
pub(super) fn parts_from_model_dir(dir: &Path) -> Result<Parts> {
    let path = dir.join("tokenizer.json");
    let source_name = path.display().to_string();
    let Some(root) = read_json(&path)? else {
        return Err(missing(dir));
    };
    let invalid = |problem: String| TokenizerError::Invalid {
        source_name: source_name.clone(),
        problem,
    };
    // Files of the first years do not name the type.
    if let Some(kind) = root.pointer("/model/type").and_then(Value::as_str)
        && !["BPE", "Unigram", "WordPiece", "WordLevel"].contains(&kind)
    {
        return Err(TokenizerError::Unsupported {
            source_name,
            problem: format!(
                "the tokenizer model \"{kind}\" is not supported; supported are BPE, Unigram, WordPiece and WordLevel"
            ),
        });
    }
    json_check::check(&root).map_err(invalid)?;
    let declared = added_token_ids(&root);
    let vocab_size = vocab_size(&root, &declared);
    let (mut prefix, mut suffix) = match root.get("post_processor") {
        Some(post_processor) => added_by(post_processor),
        None => Default::default(),
    };
    let mut pipeline: Pipeline = guarded(|| serde_json::from_value(root))
        .map_err(invalid)?
        .map_err(|error| invalid(error.to_string()))?;
    for (content, id) in declared {
        if pipeline.token_to_id(&content) != Some(id) {
            return Err(invalid(format!(
                "added token `{content}` is given id {id}, which does not follow the vocabulary"
            )));
        }
    }
    // Offsets and added tokens only: what they do to ids is in `prefix` and `suffix`. Limits are the engine's business.
    pipeline.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
    pipeline.with_padding(None);
    pipeline
        .with_truncation(None)
        .map_err(|error| invalid(error.to_string()))?;

    let tokenizer_config = read_json(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
    let special_tokens_map = read_json(&dir.join("special_tokens_map.json"))?.unwrap_or_default();
    let generation_config = read_json(&dir.join("generation_config.json"))?.unwrap_or_default();
    let config = read_json(&dir.join("config.json"))?.unwrap_or_default();
    let sources = [&tokenizer_config, &special_tokens_map];
    let models = [&generation_config, &config];

    guarded(|| mark_special(&mut pipeline, &sources))
        .flatten()
        .map_err(invalid)?;
    let role = |token_key: &str, id_key: &str| {
        let by_text = sources
            .iter()
            .find_map(|source| token_text(source.get(token_key)?))
            .and_then(|text| Some((pipeline.token_to_id(text)?, text.to_owned())));
        by_text.or_else(|| {
            let id = models
                .iter()
                .find_map(|model| config_ids(model, id_key).first().copied())?;
            Some((id, pipeline.id_to_token(id)?))
        })
    };
    let roles = Roles {
        bos: role("bos_token", "bos_token_id"),
        eos: role("eos_token", "eos_token_id"),
        pad: role("pad_token", "pad_token_id"),
        unk: role("unk_token", "unk_token_id"),
    };

    let bos = roles.bos.as_ref().map(|&(id, _)| id);
    let eos = roles.eos.as_ref().map(|&(id, _)| id);
    apply_flag(&tokenizer_config, "add_bos_token", bos, &mut prefix);
    apply_flag(&tokenizer_config, "add_eos_token", eos, &mut suffix);
    prefix.retain(|&id| pipeline.id_to_token(id).is_some());
    suffix.retain(|&id| pipeline.id_to_token(id).is_some());

    let configured_stop_ids = models
        .iter()
        .flat_map(|model| config_ids(model, "eos_token_id"))
        .filter(|&id| pipeline.id_to_token(id).is_some())
        .chain(eos)
        .collect();
    Ok(Parts {
        pipeline,
        prefix,
        suffix,
        roles,
        configured_stop_ids,
        unused: HashSet::new(),
        raw_bytes: HashMap::new(),
        vocab_size,
        source_name,
    })
}

/// Parses a JSON file; `None` when it does not exist.
fn read_json(path: &Path) -> Result<Option<Value>> {
    let io = |source| TokenizerError::Io {
        path: path.display().to_string(),
        source,
    };
    let invalid = |problem: String| TokenizerError::Invalid {
        source_name: path.display().to_string(),
        problem,
    };
    let length = match std::fs::metadata(path) {
        // Reading a named pipe waits for its writer.
        Ok(metadata) if !metadata.is_file() => {
            return Err(invalid("it is not a regular file".into()));
        }
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    if length > MAX_FILE_BYTES {
        return Err(invalid(format!(
            "it has {length} bytes, more than the {MAX_FILE_BYTES} that are supported"
        )));
    }
    let bytes = std::fs::read(path).map_err(io)?;
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| invalid(format!("it is not valid JSON ({error})")))
}

/// One more than the largest id.
fn vocab_size(root: &Value, added: &[(String, u32)]) -> usize {
    let in_model = match root.pointer("/model/vocab") {
        Some(Value::Object(vocab)) => vocab
            .values()
            .filter_map(Value::as_u64)
            .max()
            .map_or(0, |id| id + 1),
        Some(Value::Array(pieces)) => pieces.len() as u64,
        _ => 0,
    };
    let in_added = added.iter().map(|(_, id)| u64::from(*id) + 1).max();
    in_model.max(in_added.unwrap_or(0)) as usize
}

fn added_token_ids(root: &Value) -> Vec<(String, u32)> {
    let Some(Value::Array(tokens)) = root.get("added_tokens") else {
        return Vec::new();
    };
    tokens
        .iter()
        .filter_map(|token| {
            let id = u32::try_from(token.get("id")?.as_u64()?).ok()?;
            Some((token.get("content")?.as_str()?.to_owned(), id))
        })
        .filter(|(content, _)| !content.is_empty())
        .collect()
}

/// The ids that a post-processor puts before and after a text.
fn added_by(post_processor: &Value) -> (Vec<u32>, Vec<u32>) {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let id_of = |pair: Option<&Value>| u32::try_from(pair?.get(1)?.as_u64()?).ok();
    match post_processor.get("type").and_then(Value::as_str) {
        Some("TemplateProcessing") => {
            let pieces = post_processor.get("single").and_then(Value::as_array);
            let mut into = &mut before;
            for piece in pieces.into_iter().flatten() {
                if piece.get("Sequence").is_some() {
                    into = &mut after;
                }
                let ids = piece
                    .pointer("/SpecialToken/id")
                    .and_then(Value::as_str)
                    .and_then(|name| post_processor.get("special_tokens")?.get(name)?.get("ids"))
                    .and_then(Value::as_array);
                let ids = ids.into_iter().flatten();
                into.extend(ids.filter_map(|id| u32::try_from(id.as_u64()?).ok()));
            }
        }
        Some("BertProcessing" | "RobertaProcessing") => {
            before.extend(id_of(post_processor.get("cls")));
            after.extend(id_of(post_processor.get("sep")));
        }
        Some("Sequence") => {
            // Each wraps the result of the one before.
            let processors = post_processor.get("processors").and_then(Value::as_array);
            for inner in processors.into_iter().flatten() {
                let (outer_before, outer_after) = added_by(inner);
                before.splice(0..0, outer_before);
                after.extend(outer_after);
            }
        }
        _ => {}
    }
    (before, after)
}

/// `add_bos_token` and `add_eos_token` of `tokenizer_config.json` override the post-processor, as in transformers.
fn apply_flag(config: &Value, key: &str, id: Option<u32>, added: &mut Vec<u32>) {
    match config.get(key).and_then(Value::as_bool) {
        Some(true) if added.is_empty() => added.extend(id),
        Some(false) => added.retain(|&other| Some(other) != id),
        _ => {}
    }
}

/// A token in `tokenizer_config.json`: its text, or an object that holds it.
fn token_text(value: &Value) -> Option<&str> {
    value
        .as_str()
        .or_else(|| value.get("content")?.as_str())
        .filter(|text| !text.is_empty())
}

/// An id or a list of ids of a configuration, at its top or in the part for the text model.
fn config_ids(config: &Value, key: &str) -> Vec<u32> {
    let value = config
        .get(key)
        .or_else(|| config.get("text_config")?.get(key));
    let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(single) => id(single).into_iter().collect(),
        None => Vec::new(),
    }
}

/// Marks the tokens with a role as special, and adds those that only `tokenizer_config.json` lists, as transformers does
/// on loading. Tokens that are in no vocabulary are left out: the model has no embedding for them.
fn mark_special(pipeline: &mut Pipeline, sources: &[&Value]) -> std::result::Result<(), String> {
    let mut wanted: Vec<AddedToken> = Vec::new();
    for source in sources {
        for key in ["bos_token", "eos_token", "unk_token", "pad_token"] {
            let text = source.get(key).and_then(token_text);
            wanted.extend(text.map(|text| AddedToken::from(text, true)));
        }
        for key in ["additional_special_tokens", "extra_special_tokens"] {
            let texts = match source.get(key) {
                Some(Value::Array(list)) => list.iter().filter_map(token_text).collect(),
                Some(Value::Object(named)) => named.values().filter_map(token_text).collect(),
                _ => Vec::new(),
            };
            wanted.extend(texts.into_iter().map(|text| AddedToken::from(text, true)));
        }
    }
    let added = pipeline.get_added_vocabulary();
    wanted.retain(|token| {
        pipeline.token_to_id(&token.content).is_some() && !added.is_special_token(&token.content)
    });
    // A token that is known already keeps its other properties.
    for token in &mut wanted {
        let known = pipeline
            .token_to_id(&token.content)
            .and_then(|id| added.get_added_tokens_decoder().get(&id));
        if let Some(known) = known {
            *token = known.clone().special(true);
        }
    }
    pipeline
        .add_special_tokens(wanted)
        .map(drop)
        .map_err(|error| error.to_string())
}

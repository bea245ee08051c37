//! What the `tokenizers` crate takes for granted about a `tokenizer.json`, and would panic or go on silently without.

use std::collections::HashSet;

use serde_json::Value;

/// No vocabulary comes near, and tables indexed by id must not be sized by a damaged number.
pub(super) const MAX_ID: u64 = 1 << 24;

/// Checks a parsed `tokenizer.json`; an error is a sentence about what is wrong with it.
pub(super) fn check(root: &Value) -> Result<(), String> {
    let model = root.get("model").ok_or("it has no `model`")?;
    if !model.is_object() {
        return Err("its `model` is not an object".to_owned());
    }
    check_added_tokens(root)?;
    match model.get("vocab") {
        Some(Value::Object(vocab)) => {
            for (token, id) in vocab {
                check_id(id).map_err(|found| format!("token `{token}` has id {found}"))?;
            }
            // Files of the first years do not name the model's type.
            let bpe = match model.get("type") {
                Some(kind) => kind == "BPE",
                None => model.get("merges").is_some(),
            };
            if bpe {
                check_merges(model, vocab)?;
            }
            Ok(())
        }
        Some(Value::Array(_)) => Ok(()),
        _ => Err("its model has no `vocab`".to_owned()),
    }
}

fn check_id(id: &Value) -> Result<u64, String> {
    id.as_u64()
        .filter(|&id| id < MAX_ID)
        .ok_or_else(|| format!("{id}, but ids are integers from 0 to {}", MAX_ID - 1))
}

fn check_added_tokens(root: &Value) -> Result<(), String> {
    let Some(Value::Array(tokens)) = root.get("added_tokens") else {
        return Ok(());
    };
    for token in tokens {
        let content = token.get("content").and_then(Value::as_str).unwrap_or("");
        check_id(token.get("id").unwrap_or(&Value::Null))
            .map_err(|found| format!("added token `{content}` has id {found}"))?;
    }
    Ok(())
}

fn check_merges(model: &Value, vocab: &serde_json::Map<String, Value>) -> Result<(), String> {
    let prefix = model
        .get("continuing_subword_prefix")
        .and_then(Value::as_str)
        .unwrap_or("");
    let Some(Value::Array(merges)) = model.get("merges") else {
        return Err("its BPE model has no `merges`".to_owned());
    };
    let known: HashSet<&str> = vocab.keys().map(String::as_str).collect();
    for (i, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Value::String(pair) => pair.split_once(' '),
            Value::Array(pair) => match pair.as_slice() {
                [Value::String(left), Value::String(right)] => {
                    Some((left.as_str(), right.as_str()))
                }
                _ => None,
            },
            _ => None,
        };
        let Some((left, right)) = pair else {
            return Err(format!("merge {i} is not a pair of tokens"));
        };
        // `right` is always a continuation; without its prefix the merge cannot be carried out.
        let Some(tail) = right.strip_prefix(prefix) else {
            return Err(format!(
                "merge {i} (`{left} {right}`) lacks the prefix `{prefix}`"
            ));
        };
        for token in [left, right, &format!("{left}{tail}")] {
            if !known.contains(token) {
                return Err(format!(
                    "merge {i} (`{left} {right}`) needs the token `{token}`, which is not in the vocabulary"
                ));
            }
        }
    }
    Ok(())
}

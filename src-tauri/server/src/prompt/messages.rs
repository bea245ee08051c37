//! Checks the messages of a chat request, and undoes what the wire format does to them.

use serde_json::{Map, Value};

use super::PromptError;

type Result<T> = std::result::Result<T, PromptError>;

/// Brings messages as a client sent them (chat-completions shape) into the form that templates are written for. Fields that this
/// server does not know are kept.
///
/// - A field that is `null` is left out, as if it had not been sent, except `content`: templates ask `is defined`, and clients
///   send back whole objects with `tool_call_id: null` or `tool_calls: null` in them. An empty `tool_calls` is left out too.
/// - `tool_calls[].function.arguments` is a string of JSON on the wire and a dict in templates: it is decoded, once. A string
///   that is not the JSON of an object stays a string; an empty one is an empty dict.
///
/// # Errors
/// [`PromptError::InvalidMessages`] with the path of the first value of a wrong type.
pub(super) fn normalize(messages: &[Value]) -> Result<Vec<Value>> {
    if messages.is_empty() {
        return Err(PromptError::invalid(
            "messages",
            "must hold at least one message",
        ));
    }
    messages
        .iter()
        .enumerate()
        .map(|(i, message)| normalize_message(message, &format!("messages[{i}]")))
        .collect()
}

fn normalize_message(message: &Value, path: &str) -> Result<Value> {
    let Value::Object(fields) = message else {
        return Err(wrong_type(path, "an object", message));
    };
    let role = match fields.get("role") {
        Some(Value::String(role)) if !role.is_empty() => role.as_str(),
        Some(Value::String(_)) => {
            return Err(PromptError::invalid(
                format!("{path}.role"),
                "must not be empty",
            ));
        }
        Some(other) => return Err(wrong_type(&format!("{path}.role"), "a string", other)),
        None => return Err(PromptError::invalid(format!("{path}.role"), "is missing")),
    };
    let mut out = Map::with_capacity(fields.len());
    for (name, value) in fields {
        let path = format!("{path}.{name}");
        let value = match (name.as_str(), value) {
            ("content", value) => {
                check_content(value, &path)?;
                value.clone()
            }
            (_, Value::Null) => continue,
            ("tool_calls", Value::Array(calls)) if calls.is_empty() => continue,
            ("tool_calls", Value::Array(calls)) => Value::Array(
                calls
                    .iter()
                    .enumerate()
                    .map(|(i, call)| normalize_call(call, &format!("{path}[{i}]")))
                    .collect::<Result<_>>()?,
            ),
            ("tool_calls", other) => return Err(wrong_type(&path, "a list", other)),
            ("name" | "tool_call_id" | "reasoning_content" | "reasoning", other)
                if !other.is_string() =>
            {
                return Err(wrong_type(&path, "a string", other));
            }
            (_, value) => value.clone(),
        };
        out.insert(name.clone(), value);
    }
    // An assistant may have called tools or only thought, and a tool may have had nothing to say.
    let may_lack_content = matches!(role, "assistant" | "tool" | "function");
    if out.get("content").is_none_or(Value::is_null) && !may_lack_content {
        return Err(PromptError::invalid(
            format!("{path}.content"),
            format!("is missing; a message of role '{role}' needs one"),
        ));
    }
    Ok(Value::Object(out))
}

fn check_content(content: &Value, path: &str) -> Result<()> {
    let parts = match content {
        Value::Null | Value::String(_) => return Ok(()),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(path, "a string or a list of parts", other)),
    };
    for (i, part) in parts.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let Value::Object(fields) = part else {
            return Err(wrong_type(&path, "an object", part));
        };
        match (fields.get("type"), fields.get("text")) {
            (Some(Value::String(kind)), None) if kind == "text" => {
                return Err(PromptError::invalid(format!("{path}.text"), "is missing"));
            }
            (Some(Value::String(_)), None | Some(Value::String(_))) => {}
            (Some(Value::String(_)), Some(text)) => {
                return Err(wrong_type(&format!("{path}.text"), "a string", text));
            }
            (Some(kind), _) => return Err(wrong_type(&format!("{path}.type"), "a string", kind)),
            (None, _) => return Err(PromptError::invalid(format!("{path}.type"), "is missing")),
        }
    }
    Ok(())
}

fn normalize_call(call: &Value, path: &str) -> Result<Value> {
    let Value::Object(fields) = call else {
        return Err(wrong_type(path, "an object", call));
    };
    let mut out = fields.clone();
    match fields.get("function") {
        Some(Value::Object(function)) => {
            out.insert(
                "function".into(),
                Value::Object(normalize_function(function, &format!("{path}.function"))?),
            );
        }
        Some(other) => return Err(wrong_type(&format!("{path}.function"), "an object", other)),
        // Some templates take calls without the `function` level; a call needs a name at one of the two.
        None => out = normalize_function(fields, path)?,
    }
    Ok(Value::Object(out))
}

fn normalize_function(function: &Map<String, Value>, path: &str) -> Result<Map<String, Value>> {
    match function.get("name") {
        Some(Value::String(_)) => {}
        Some(other) => return Err(wrong_type(&format!("{path}.name"), "a string", other)),
        None => return Err(PromptError::invalid(format!("{path}.name"), "is missing")),
    }
    let mut out = function.clone();
    let decoded = match function.get("arguments") {
        None | Some(Value::Null) => Some(Value::Object(Map::new())),
        Some(Value::Object(_)) => None,
        Some(Value::String(text)) if text.trim().is_empty() => Some(Value::Object(Map::new())),
        Some(Value::String(text)) => serde_json::from_str::<Value>(text)
            .ok()
            .filter(Value::is_object),
        Some(other) => {
            return Err(wrong_type(
                &format!("{path}.arguments"),
                "a string or an object",
                other,
            ));
        }
    };
    if let Some(decoded) = decoded {
        out.insert("arguments".into(), decoded);
    }
    Ok(out)
}

/// Checks the tools of a request: a list of objects.
pub(super) fn check_tools(tools: &[Value]) -> Result<()> {
    match tools.iter().enumerate().find(|(_, tool)| !tool.is_object()) {
        Some((i, tool)) => Err(wrong_type(&format!("tools[{i}]"), "an object", tool)),
        None => Ok(()),
    }
}

fn wrong_type(path: &str, expected: &str, found: &Value) -> PromptError {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    PromptError::invalid(path, format!("must be {expected}, not {found}"))
}

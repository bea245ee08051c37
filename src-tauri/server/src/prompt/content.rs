//! A message's content is a string or a list of parts; a template may read only one of the two.
//!
//! Many templates for text models print `message['content']` and fail on a list (or print Python's view of it), while chat apps
//! send `[{"type": "text", "text": "hi"}]` to every model. Templates of image models may read parts only, and lose a plain string
//! without an error. Which of them a template reads is found out by trying, once, when it is compiled.

use serde_json::{Map, Value, json};

use super::PromptError;

/// Whether contents are adapted to what the template reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ContentShape {
    /// A list of text parts is joined (without anything in between) into one string for a template that does not read lists; a
    /// string becomes one text part for a template that reads only lists; `null` or no content becomes an empty one. For a
    /// template that reads lists, parts of type `image_url` are renamed to `image`, the name templates ask for.
    #[default]
    Auto,
    /// The template gets the contents as they were sent, as transformers would give them to it.
    AsSent,
}

/// What a template reads, for one role.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    Strings,
    Parts,
    Both,
}

/// What a template reads, by role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContentSupport {
    system: Reads,
    user: Reads,
    assistant: Reads,
    tool: Reads,
}

/// A text that no template prints by itself.
const PROBE: &str = "zq7probe7qz";

impl ContentSupport {
    /// Tries a template: `render` gives its text for messages and tools, or nothing if it fails.
    ///
    /// A template reads a form if the probe text appears in its output, and not in quotes (which would be JSON or Python's view
    /// of a list). One that reads neither, say because it refuses the role, is taken to read strings.
    pub(super) fn probe(render: impl Fn(&[Value], bool) -> Option<String>) -> Self {
        let reads = |conversation: &dyn Fn(Value) -> Vec<Value>, with_tools: bool| {
            let reads_form = |content: Value| {
                render(&conversation(content), with_tools).is_some_and(|text| {
                    text.contains(PROBE)
                        && !text.contains(&format!("'{PROBE}'"))
                        && !text.contains(&format!("\"{PROBE}\""))
                })
            };
            match (reads_form(json!(PROBE)), reads_form(text_part(PROBE))) {
                (true, true) => Reads::Both,
                (false, true) => Reads::Parts,
                _ => Reads::Strings,
            }
        };
        let user = reads(
            &|content| vec![json!({"role": "user", "content": content})],
            false,
        );
        let other = if user == Reads::Parts {
            text_part("x")
        } else {
            json!("x")
        };
        let other = |role: &str| json!({"role": role, "content": other});
        let call = json!({"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {}}});
        Self {
            system: reads(
                &|content| vec![json!({"role": "system", "content": content}), other("user")],
                false,
            ),
            user,
            assistant: reads(
                &|content| {
                    vec![
                        other("user"),
                        json!({"role": "assistant", "content": content}),
                        other("user"),
                    ]
                },
                false,
            ),
            tool: reads(
                &|content| {
                    let mut asks = other("assistant");
                    asks["tool_calls"] = json!([call]);
                    vec![
                        other("user"),
                        asks,
                        json!({"role": "tool", "name": "f", "tool_call_id": "call00001", "content": content}),
                    ]
                },
                true,
            ),
        }
    }

    fn reads(&self, role: &str) -> Reads {
        match role {
            "system" | "developer" => self.system,
            "assistant" => self.assistant,
            "tool" | "function" => self.tool,
            _ => self.user,
        }
    }

    /// Adapts the contents of normalized messages.
    ///
    /// # Errors
    /// [`PromptError::InvalidMessages`] for a part that is no text where the template reads strings only.
    pub(super) fn adapt(&self, messages: &mut [Value]) -> Result<(), PromptError> {
        for (i, message) in messages.iter_mut().enumerate() {
            let Value::Object(fields) = message else {
                continue;
            };
            let role = fields
                .get("role")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let reads = self.reads(role);
            let content = fields.entry("content").or_insert(Value::Null);
            match (content.take(), reads) {
                (Value::Null, Reads::Parts) => *content = json!([]),
                (Value::Null, _) => *content = json!(""),
                (Value::String(text), Reads::Parts) => *content = text_part(&text),
                (Value::Array(parts), Reads::Strings) => *content = Value::String(join(&parts, i)?),
                (Value::Array(parts), _) => {
                    *content = parts.into_iter().map(rename_image).collect()
                }
                (sent, _) => *content = sent,
            }
        }
        Ok(())
    }
}

fn text_part(text: &str) -> Value {
    json!([{"type": "text", "text": text}])
}

fn join(parts: &[Value], message: usize) -> Result<String, PromptError> {
    let mut joined = String::new();
    for (i, part) in parts.iter().enumerate() {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(text)) => joined.push_str(text),
            (kind, _) => {
                let kind = kind.unwrap_or_default();
                return Err(PromptError::invalid(
                    format!("messages[{message}].content[{i}]"),
                    format!(
                        "this model's chat template takes text only, not a part of type '{kind}'"
                    ),
                ));
            }
        }
    }
    Ok(joined)
}

fn rename_image(part: Value) -> Value {
    match part {
        Value::Object(mut fields) if fields.get("type").is_some_and(|kind| kind == "image_url") => {
            let mut renamed = Map::new();
            renamed.insert("type".into(), json!("image"));
            fields.remove("type");
            renamed.extend(fields);
            Value::Object(renamed)
        }
        part => part,
    }
}

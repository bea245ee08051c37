//! Between the wire, the model's files and the prompt: which template a model has, and which conversation a request holds.

use headstart_engine::{checkpoint::Checkpoint, gguf::Metadata};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::prompt::{ChatTemplate, PromptError, RenderRequest, SpecialTokens};

/// The fields of a chat request that reach its template.
#[derive(Debug, Default, Deserialize)]
pub struct Conversation {
    /// The messages, as sent.
    pub messages: Vec<Value>,
    /// The tools, as sent.
    pub tools: Option<Vec<Value>>,
    /// Further variables of the template.
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Reaches the template as a variable, as do the members of `chat_template_kwargs`, which win.
    pub reasoning_effort: Option<String>,
    /// Likewise.
    pub enable_thinking: Option<bool>,
    /// Whether the prompt ends with the beginning of an answer; yes unless the last message is to be continued.
    pub add_generation_prompt: Option<bool>,
    /// Whether the model continues the last message.
    pub continue_final_message: Option<bool>,
}

/// Kinds of message parts that are not text.
const MEDIA: [&str; 9] = [
    "image_url",
    "image",
    "input_image",
    "video_url",
    "video",
    "input_video",
    "audio_url",
    "audio",
    "input_audio",
];

impl Conversation {
    /// The first part of a message that is an image, a video or a sound: where it stands and its kind.
    pub fn media(&self) -> Option<(String, &str)> {
        self.messages.iter().enumerate().find_map(|(i, message)| {
            let parts = message.get("content")?.as_array()?;
            parts.iter().enumerate().find_map(|(j, part)| {
                let kind = part.get("type")?.as_str()?;
                MEDIA
                    .contains(&kind)
                    .then(|| (format!("messages[{i}].content[{j}]"), kind))
            })
        })
    }

    /// What the template is given.
    pub fn into_request(self) -> RenderRequest {
        let mut kwargs = Map::new();
        if let Some(effort) = self.reasoning_effort {
            kwargs.insert("reasoning_effort".into(), effort.into());
        }
        if let Some(thinking) = self.enable_thinking {
            kwargs.insert("enable_thinking".into(), thinking.into());
        }
        kwargs.extend(self.chat_template_kwargs.unwrap_or_default());
        let continues = self.continue_final_message.unwrap_or(false);
        RenderRequest {
            messages: self.messages,
            tools: self.tools.filter(|tools| !tools.is_empty()),
            kwargs,
            add_generation_prompt: self.add_generation_prompt.unwrap_or(!continues),
            continue_final_message: continues,
            ..RenderRequest::default()
        }
    }
}

/// The chat template of a model: from its folder's files or its GGUF's metadata. `None` when it has none.
///
/// # Errors
/// When there is one but it cannot be used.
pub fn template_of(checkpoint: &Checkpoint) -> Result<Option<ChatTemplate>, PromptError> {
    match checkpoint.gguf() {
        None => ChatTemplate::from_model_dir(checkpoint.path()),
        Some(file) => {
            let metadata = file.metadata();
            let templates = gguf_templates(metadata);
            if templates.is_empty() {
                return Ok(None);
            }
            ChatTemplate::from_named(templates, gguf_special_tokens(metadata)).map(Some)
        }
    }
}

const TEMPLATE: &str = "tokenizer.chat_template";

/// `tokenizer.chat_template` is the default one, `tokenizer.chat_template.NAME` a named one.
fn gguf_templates(metadata: &Metadata) -> Vec<(String, String)> {
    metadata
        .iter()
        .filter_map(|(key, _)| {
            let rest = key.strip_prefix(TEMPLATE)?;
            let name = if rest.is_empty() {
                "default"
            } else {
                rest.strip_prefix('.')?
            };
            let source = metadata.get_str(key).ok()??;
            Some((name.to_string(), source.to_string()))
        })
        .collect()
}

fn gguf_special_tokens(metadata: &Metadata) -> SpecialTokens {
    let token = |key: &str| -> Option<String> {
        let id = metadata
            .get_usize(&format!("tokenizer.ggml.{key}_token_id"))
            .ok()??;
        let tokens = metadata.get_array_text("tokenizer.ggml.tokens").ok()??;
        Some(tokens.get(id)?.to_string_lossy().into_owned())
    };
    SpecialTokens {
        bos_token: token("bos"),
        eos_token: token("eos"),
        pad_token: token("padding"),
        unk_token: token("unknown"),
        ..SpecialTokens::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(value: Value) -> RenderRequest {
        serde_json::from_value::<Conversation>(value)
            .unwrap()
            .into_request()
    }

    #[test]
    fn template_arguments_reach_the_template_and_explicit_ones_win() {
        let request = request(json!({
            "messages": [], "reasoning_effort": "low", "enable_thinking": true, "tools": [],
            "chat_template_kwargs": {"enable_thinking": false, "extra": 1}
        }));
        assert_eq!(
            Value::Object(request.kwargs),
            json!({"reasoning_effort": "low", "enable_thinking": false, "extra": 1})
        );
        assert_eq!(request.tools, None);
        assert!(request.add_generation_prompt);
    }

    #[test]
    fn images_are_found() {
        let of = |content: Value| {
            let value = json!({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": content}]});
            let conversation: Conversation = serde_json::from_value(value).unwrap();
            conversation
                .media()
                .map(|(place, kind)| (place, kind.to_string()))
        };
        assert_eq!(of(json!([{"type": "text", "text": "image_url"}])), None);
        assert_eq!(of(json!("image")), None);
        assert_eq!(
            of(
                json!([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}])
            ),
            Some(("messages[1].content[1]".into(), "image_url".into()))
        );
    }

    #[test]
    fn a_continued_message_gets_no_generation_prompt() {
        let request = request(json!({"messages": [], "continue_final_message": true}));
        assert!(request.continue_final_message && !request.add_generation_prompt);
    }
}

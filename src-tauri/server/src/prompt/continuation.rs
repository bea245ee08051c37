//! `continue_final_message`: the prompt ends inside the last message, so that the model goes on with it.
//!
//! As in transformers: a mark is put at the end of the last message before rendering, and the prompt is cut there. A search for
//! the message itself would not do, since its text may appear in the template's words too, and templates trim.

use serde_json::Value;

use super::PromptError;

/// The trailing space shows whether the template trims contents.
const MARK: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// Puts the mark at the end of the last message. Returns the text that stood there.
///
/// # Errors
/// [`PromptError::InvalidMessages`] if the last message has no text.
pub(super) fn mark(messages: &mut [Value]) -> Result<String, PromptError> {
    let last = messages.len().saturating_sub(1);
    let path = format!("messages[{last}].content");
    let no_text = || PromptError::invalid(&path, "has no text that could be continued");
    let content = messages
        .last_mut()
        .and_then(|message| message.get_mut("content"))
        .ok_or_else(no_text)?;
    let text = match content {
        Value::String(text) => text,
        Value::Array(parts) => match parts.iter_mut().rev().find_map(|part| part.get_mut("text")) {
            Some(Value::String(text)) => text,
            _ => return Err(no_text()),
        },
        _ => return Err(no_text()),
    };
    let before = text.clone();
    text.push_str(MARK);
    Ok(before)
}

/// Cuts a prompt at the mark.
///
/// # Errors
/// [`PromptError::Template`] if the template did not print the last message.
pub(super) fn cut(mut prompt: String, final_text: &str) -> Result<String, PromptError> {
    let found = prompt
        .rfind(MARK.trim_end())
        .filter(|_| prompt.contains(final_text.trim()));
    let Some(at) = found else {
        return Err(PromptError::Template {
            message: "it does not print the text of the last message, so that message cannot be continued".into(),
            line: None,
            refused: false,
        });
    };
    let keeps_spaces = prompt[at..].starts_with(MARK);
    prompt.truncate(at);
    if !keeps_spaces {
        prompt.truncate(prompt.trim_end().len());
    }
    Ok(prompt)
}

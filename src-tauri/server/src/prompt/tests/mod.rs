#![allow(clippy::unwrap_used, clippy::expect_used)]

mod behaviours;
mod contents;
mod conversations;
mod model_dirs;
mod shared;
mod static_prefixes;

use serde_json::Value;

use super::{ChatTemplate, PromptError, RenderRequest, SpecialTokens};

fn compile(source: &str) -> ChatTemplate {
    ChatTemplate::compile(source, SpecialTokens::default()).unwrap()
}

fn request(messages: Value) -> RenderRequest {
    RenderRequest {
        messages: messages.as_array().unwrap().clone(),
        ..RenderRequest::default()
    }
}

/// Renders a conversation as the server does by default.
fn render(source: &str, messages: Value) -> Result<String, PromptError> {
    compile(source).render(&request(messages))
}

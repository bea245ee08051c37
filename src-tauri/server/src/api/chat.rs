//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use headstart_engine::{request::GeneratedToken, tokenizer::Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    error::ApiError,
    extract::RawBody,
    logprobs,
    params::{GenerationParams, TopLogprobs},
    reply::{Job, Shape, Target, reply},
};
use crate::{
    conversation::Conversation, prompt::RenderRequest, settings::RequestSettings, state::AppState,
};

/// The fields of a chat request that neither the template nor the generation needs.
#[derive(Debug, Deserialize)]
struct ChatRequest {
    model: String,
    tool_choice: Option<Value>,
    logprobs: Option<bool>,
    top_logprobs: Option<TopLogprobs>,
}

impl ChatRequest {
    /// Whether the prompt shows the tools: not when the client says that none may be called.
    fn shows_tools(&self) -> Result<bool, ApiError> {
        match &self.tool_choice {
            None | Some(Value::Null) => Ok(true),
            Some(Value::String(choice)) if choice == "auto" => Ok(true),
            Some(Value::String(choice)) if choice == "none" => Ok(false),
            Some(other) => Err(ApiError::bad_field(
                "tool_choice",
                format!(
                    "The tool choice {other} cannot be enforced here; use \"auto\" or \"none\"."
                ),
            )),
        }
    }

    fn wanted_logprobs(&self) -> Result<Option<usize>, ApiError> {
        match (self.logprobs.unwrap_or(false), self.top_logprobs) {
            (true, top) => Ok(Some(top.map_or(0, |top| top.0))),
            (false, None | Some(TopLogprobs(0))) => Ok(None),
            (false, Some(_)) => Err(ApiError::bad_field(
                "top_logprobs",
                "top_logprobs needs \"logprobs\": true.",
            )),
        }
    }
}

/// Answers a conversation.
pub(super) async fn chat_completions(
    State(state): State<AppState>,
    body: RawBody,
) -> Result<Response, ApiError> {
    let params: GenerationParams = body.parse()?;
    let chat: ChatRequest = body.parse()?;
    let speed: RequestSettings = body.parse()?;
    let mut conversation: Conversation = body.parse()?;
    params.check_supported()?;
    let logprobs = chat.wanted_logprobs()?;
    if !chat.shows_tools()? {
        conversation.tools = None;
    }
    if let Some((place, kind)) = conversation.media() {
        return Err(ApiError::bad_field(
            &place,
            format!(
                "{place} is of the type \"{kind}\", but only text can be read. Remove it and send the request again."
            ),
        ));
    }
    let entry = state.find_model(&chat.model).await?;
    let settings = state.resolve(&entry, speed).await?;
    let request = Arc::new(RenderRequest {
        // Read once for all renderings of this request: a clock in the template must not part the prompt from its probes.
        now: Some(chrono::Local::now().naive_local()),
        ..conversation.into_request()
    });
    let text = state.render_chat(&entry, request.clone()).await?;
    let model = state.load(&entry).await?;
    // The template writes the special tokens itself.
    let tokens = state.tokenize(&model, text, false).await?;
    let prompt = state
        .prepare_chat(&entry, &model, request, tokens, &settings)
        .await?;
    let target = Target {
        entry,
        model,
        settings,
    };
    let job = Job::new(&state, &target, &params, prompt, logprobs, body.arrived)?;
    let shape = ChatShape::new(target.entry.id, logprobs.is_some(), params.includes_usage());
    reply(&state, job, shape).await
}

/// `chat.completion` and `chat.completion.chunk`.
struct ChatShape {
    id: String,
    created: i64,
    model: String,
    logprobs: bool,
    include_usage: bool,
}

impl ChatShape {
    fn new(model: String, logprobs: bool, include_usage: bool) -> Self {
        Self {
            id: format!("chatcmpl-{}", uuid::Uuid::new_v4().simple()),
            created: chrono::Utc::now().timestamp(),
            model,
            logprobs,
            include_usage,
        }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        });
        // OpenAI's own server sends null in all chunks but the last where usage is asked for.
        if self.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice(&self, delta: Value, logprobs: Value, reason: Value) -> Value {
        self.chunk(
            json!([{"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}]),
        )
    }

    fn logprobs(&self, tokens: &[GeneratedToken], tokenizer: &Tokenizer) -> Value {
        if self.logprobs {
            json!({"content": logprobs::chat(tokenizer, tokens), "refusal": null})
        } else {
            Value::Null
        }
    }
}

impl Shape for ChatShape {
    fn opening(&mut self) -> Option<Value> {
        Some(self.choice(
            json!({"role": "assistant", "content": ""}),
            Value::Null,
            Value::Null,
        ))
    }

    fn delta(&mut self, text: &str, tokens: &[GeneratedToken], tokenizer: &Tokenizer) -> Value {
        self.choice(
            json!({"content": text}),
            self.logprobs(tokens, tokenizer),
            Value::Null,
        )
    }

    fn idle(&mut self) -> Value {
        self.choice(json!({"content": ""}), Value::Null, Value::Null)
    }

    fn closing(&mut self, reason: &str) -> Value {
        self.choice(json!({}), Value::Null, json!(reason))
    }

    fn usage_chunk(&mut self, usage: Value) -> Value {
        let mut chunk = self.chunk(json!([]));
        chunk["usage"] = usage;
        chunk
    }

    fn whole(
        &mut self,
        text: String,
        tokens: &[GeneratedToken],
        tokenizer: &Tokenizer,
        reason: &str,
        usage: Value,
    ) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [{
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": null},
                "logprobs": self.logprobs(tokens, tokenizer),
                "finish_reason": reason,
            }],
            "usage": usage,
        })
    }
}

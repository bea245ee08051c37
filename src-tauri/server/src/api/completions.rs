//! `POST /v1/completions`: plain text in, text out; needs no chat template.

use axum::{extract::State, response::Response};
use headstart_engine::{request::GeneratedToken, tokenizer::Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    error::ApiError,
    extract::RawBody,
    logprobs::LegacyLogprobs,
    params::{GenerationParams, TopLogprobs},
    reply::{Job, Shape, Target, reply},
};
use crate::{
    prompt::{NoStaticPrefix, PreparedPrompt},
    settings::RequestSettings,
    state::AppState,
};

#[derive(Debug, Deserialize)]
struct CompletionRequest {
    model: String,
    prompt: Prompt,
    echo: Option<bool>,
    suffix: Option<String>,
    logprobs: Option<TopLogprobs>,
}

/// The forms that OpenAI's API allows, of which one prompt a request is taken.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a string, a list of token ids, or a list with one of them"
)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<u32>>),
}

/// One prompt.
enum Single {
    Text(String),
    Tokens(Vec<u32>),
}

impl Prompt {
    fn single(self) -> Result<Single, ApiError> {
        let several = |count: usize| {
            ApiError::bad_field(
                "prompt",
                format!("One prompt a request, please; this one has {count}."),
            )
        };
        match self {
            Self::Text(text) => Ok(Single::Text(text)),
            Self::Tokens(tokens) => Ok(Single::Tokens(tokens)),
            Self::Texts(mut texts) => match texts.len() {
                1 => Ok(Single::Text(texts.remove(0))),
                count => Err(several(count)),
            },
            Self::TokenLists(mut lists) => match lists.len() {
                1 => Ok(Single::Tokens(lists.remove(0))),
                count => Err(several(count)),
            },
        }
    }
}

/// Continues a text.
pub(super) async fn completions(
    State(state): State<AppState>,
    body: RawBody,
) -> Result<Response, ApiError> {
    let params: GenerationParams = body.parse()?;
    let completion: CompletionRequest = body.parse()?;
    let speed: RequestSettings = body.parse()?;
    params.check_supported()?;
    if completion.suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::bad_field(
            "suffix",
            "Filling in before a suffix is not supported.",
        ));
    }
    let prompt = completion.prompt.single()?;
    let entry = state.find_model(&completion.model).await?;
    let settings = state.resolve(&entry, speed).await?;
    let model = state.load(&entry).await?;
    let echo = completion.echo.unwrap_or(false);
    let (prompt_tokens, echoed) = match prompt {
        Single::Text(text) => {
            let echoed = echo.then(|| text.clone());
            (state.tokenize(&model, text, true).await?, echoed)
        }
        Single::Tokens(tokens) => {
            let mut decoder = model.tokenizer.stream_decoder(true);
            let echoed = echo.then(|| {
                let mut text: String = tokens.iter().map(|id| decoder.push(*id)).collect();
                text.push_str(&decoder.finish());
                text
            });
            (tokens, echoed)
        }
    };
    if prompt_tokens.is_empty() {
        return Err(ApiError::bad_field("prompt", "The prompt is empty."));
    }
    let target = Target {
        entry,
        model,
        settings,
    };
    let job = Job::new(
        &state,
        &target,
        &params,
        PreparedPrompt::without_boundaries(prompt_tokens, NoStaticPrefix::NoTemplate),
        completion.logprobs.map(|top| top.0),
        body.arrived,
    )?;
    let echoed = echoed.unwrap_or_default();
    let logprobs = LegacyLogprobs::after(&echoed);
    let shape = CompletionShape {
        id: format!("cmpl-{}", uuid::Uuid::new_v4().simple()),
        created: chrono::Utc::now().timestamp(),
        model: target.entry.id,
        echoed,
        logprobs: completion.logprobs.map(|_| logprobs),
        include_usage: params.includes_usage(),
    };
    reply(&state, job, shape).await
}

/// `text_completion`, whole and in chunks.
struct CompletionShape {
    id: String,
    created: i64,
    model: String,
    echoed: String,
    logprobs: Option<LegacyLogprobs>,
    include_usage: bool,
}

impl CompletionShape {
    fn object(&self, choices: Value, usage: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage,
        })
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = self.object(choices, Value::Null);
        if !self.include_usage
            && let Some(fields) = chunk.as_object_mut()
        {
            fields.remove("usage");
        }
        chunk
    }

    fn choice(text: &str, logprobs: Value, reason: Value) -> Value {
        json!([{"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}])
    }

    fn logprobs(&mut self, tokens: &[GeneratedToken], tokenizer: &Tokenizer) -> Value {
        match &mut self.logprobs {
            Some(lists) => {
                lists.extend(tokenizer, tokens);
                lists.take()
            }
            None => Value::Null,
        }
    }
}

impl Shape for CompletionShape {
    fn opening(&mut self) -> Option<Value> {
        let echoed = std::mem::take(&mut self.echoed);
        (!echoed.is_empty()).then(|| self.chunk(Self::choice(&echoed, Value::Null, Value::Null)))
    }

    fn delta(&mut self, text: &str, tokens: &[GeneratedToken], tokenizer: &Tokenizer) -> Value {
        let logprobs = self.logprobs(tokens, tokenizer);
        self.chunk(Self::choice(text, logprobs, Value::Null))
    }

    fn idle(&mut self) -> Value {
        self.chunk(Self::choice("", Value::Null, Value::Null))
    }

    fn closing(&mut self, reason: &str) -> Value {
        self.chunk(Self::choice("", Value::Null, json!(reason)))
    }

    fn usage_chunk(&mut self, usage: Value) -> Value {
        self.object(json!([]), usage)
    }

    fn whole(
        &mut self,
        text: String,
        tokens: &[GeneratedToken],
        tokenizer: &Tokenizer,
        reason: &str,
        usage: Value,
    ) -> Value {
        let text = std::mem::take(&mut self.echoed) + &text;
        let logprobs = self.logprobs(tokens, tokenizer);
        self.object(Self::choice(&text, logprobs, json!(reason)), usage)
    }
}

//! From a generation to a reply: one JSON object or an event stream, in the shape of either endpoint.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use headstart_engine::{
    error::EngineError,
    request::{FinishReason, GeneratedToken, GenerationEvent, GenerationRequest},
    scheduler::ModelInfo,
    stop::StopStrings,
    tokenizer::Tokenizer,
};
use serde_json::Value;

use super::{error::ApiError, params::GenerationParams, stream, usage::usage};
use crate::{library::ModelEntry, prompt::PreparedPrompt, settings::Resolved, state::AppState};

/// The model of a request, and how it is to be run.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) entry: ModelEntry,
    pub(super) model: Arc<ModelInfo>,
    pub(super) settings: Resolved,
}

/// A generation ready to run.
#[derive(Debug)]
pub(super) struct Job {
    request: GenerationRequest,
    tokenizer: Arc<Tokenizer>,
    stream: bool,
    include_usage: bool,
}

impl Job {
    /// Resolves the parameters for this model and prompt: the one place where both endpoints do so.
    ///
    /// # Errors
    /// 400 when a parameter is out of its range.
    pub(super) fn new(
        state: &AppState,
        target: &Target,
        params: &GenerationParams,
        prompt: PreparedPrompt,
        logprobs: Option<usize>,
        arrived: Instant,
    ) -> Result<Self, ApiError> {
        let Target {
            entry,
            model,
            settings,
        } = target;
        let prompt_tokens = prompt.tokens;
        if prompt_tokens.len() >= model.context_length {
            return Err(EngineError::ContextOverflow {
                prompt_tokens: prompt_tokens.len(),
                context_length: model.context_length,
            }
            .into());
        }
        // The engine checks these again; but by then a stream has begun, and its client takes a 200 for an answer.
        if let Some(id) = prompt_tokens
            .iter()
            .find(|id| **id as usize >= model.vocab_size)
        {
            return Err(ApiError::bad_field(
                "prompt",
                format!(
                    "Token {id} of the prompt is outside this model's vocabulary of {} tokens.",
                    model.vocab_size
                ),
            ));
        }
        let stop_strings = params.stop_strings();
        StopStrings::new(&stop_strings).map_err(|error| {
            ApiError::bad_field(
                "stop",
                format!("These stop strings cannot be used: {error}."),
            )
        })?;
        let sampling =
            params.sampling(&state.sampling_defaults(entry), logprobs, model.vocab_size)?;
        Ok(Self {
            request: GenerationRequest {
                stop_strings,
                stop_ids: params.stop_ids(model.tokenizer.stop_ids()),
                max_tokens: params.max_tokens()?,
                show_special_tokens: params.shows_special_tokens(),
                arrived,
                static_prefix: prompt.static_prefix,
                protected_tail: prompt.protected_tail,
                specprefill: settings.specprefill.clone(),
                mtp: settings.mtp,
                ..GenerationRequest::new(state.model_spec(entry), prompt_tokens, sampling)
            },
            tokenizer: model.tokenizer.clone(),
            stream: params.streams(),
            include_usage: params.includes_usage(),
        })
    }
}

/// The shape of one endpoint's objects.
pub(super) trait Shape: Send + 'static {
    /// The chunk that opens a stream, if there is one.
    fn opening(&mut self) -> Option<Value>;
    /// A chunk with text.
    fn delta(&mut self, text: &str, tokens: &[GeneratedToken], tokenizer: &Tokenizer) -> Value;
    /// An empty chunk: a sign of life.
    fn idle(&mut self) -> Value;
    /// The chunk that ends the answer.
    fn closing(&mut self, reason: &str) -> Value;
    /// The chunk that carries the usage.
    fn usage_chunk(&mut self, usage: Value) -> Value;
    /// The whole reply.
    fn whole(
        &mut self,
        text: String,
        tokens: &[GeneratedToken],
        tokenizer: &Tokenizer,
        reason: &str,
        usage: Value,
    ) -> Value;
}

/// The API's word for why an answer ended.
pub(super) fn reason_name(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop(_) => "stop",
        FinishReason::Length => "length",
    }
}

/// Runs the job and answers in its form.
pub(super) async fn reply(
    state: &AppState,
    job: Job,
    mut shape: impl Shape,
) -> Result<Response, ApiError> {
    let mut events = state.engine().submit(job.request)?;
    if job.stream {
        return Ok(stream::event_stream(
            state,
            events,
            job.tokenizer,
            job.include_usage,
            shape,
        ));
    }
    let mut answer = String::new();
    let mut all_tokens = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            GenerationEvent::Admitted | GenerationEvent::Prefill { .. } => {}
            GenerationEvent::Text { text, tokens } => {
                answer.push_str(&text);
                all_tokens.extend(tokens);
            }
            GenerationEvent::Finished {
                reason,
                usage: counts,
            } => {
                let body = shape.whole(
                    answer,
                    &all_tokens,
                    &job.tokenizer,
                    reason_name(&reason),
                    usage(&counts),
                );
                return Ok(Json(body).into_response());
            }
            GenerationEvent::Failed(error) => return Err(error.into()),
        }
    }
    Err(ApiError::internal(
        "The engine stopped in the middle of the answer.",
    ))
}

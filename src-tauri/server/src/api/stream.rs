//! Server-sent events (WHATWG HTML, section 9.2) as OpenAI's clients read them.

use std::{
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::response::{IntoResponse, Response, Sse, sse::Event};
use headstart_engine::{
    request::{GenerationEvent, GenerationStream},
    tokenizer::Tokenizer,
};
use serde_json::Value;

use super::{
    error::ApiError,
    reply::{Shape, reason_name},
    usage::usage,
};
use crate::{settings::KeepAlive, state::AppState};

fn data(value: &Value) -> Event {
    Event::default().data(value.to_string())
}

/// Streams `events` in the given shape. While nothing is generated, signs of life go out as the settings say. When the client goes
/// away the stream is dropped, and with it the request.
pub(super) fn event_stream(
    state: &AppState,
    mut events: GenerationStream,
    tokenizer: Arc<Tokenizer>,
    include_usage: bool,
    mut shape: impl Shape,
) -> Response {
    let keep_alive = state.settings().sse_keepalive;
    let period = Duration::from_secs(state.settings().sse_keepalive_seconds.max(1));
    let stream = async_stream::stream! {
        if let Some(opening) = shape.opening() {
            yield Ok::<_, Infallible>(data(&opening));
        }
        let mut progress = "waiting".to_string();
        // Counted from what was last sent, not from what the engine last said: it may work for minutes without text.
        let mut last_sent = Instant::now();
        loop {
            let event = match tokio::time::timeout(period.saturating_sub(last_sent.elapsed()), events.next()).await {
                Ok(event) => event,
                Err(_) => {
                    last_sent = Instant::now();
                    match keep_alive {
                        KeepAlive::Comment => yield Ok(Event::default().comment(progress.clone())),
                        KeepAlive::Chunk => yield Ok(data(&shape.idle())),
                        KeepAlive::Off => {}
                    }
                    continue;
                }
            };
            match event {
                Some(GenerationEvent::Admitted) => progress = "prefill".into(),
                Some(GenerationEvent::Prefill { phase, done, total }) => progress = format!("{} {done}/{total}", phase.as_str()),
                Some(GenerationEvent::Text { text, tokens }) => {
                    progress = "decoding".into();
                    if !text.is_empty() || tokens.iter().any(|token| token.logprobs.is_some()) {
                        yield Ok(data(&shape.delta(&text, &tokens, &tokenizer)));
                        last_sent = Instant::now();
                    }
                }
                Some(GenerationEvent::Finished { reason, usage: counts }) => {
                    yield Ok(data(&shape.closing(reason_name(&reason))));
                    if include_usage {
                        yield Ok(data(&shape.usage_chunk(usage(&counts))));
                    }
                    break;
                }
                Some(GenerationEvent::Failed(error)) => {
                    yield Ok(data(&ApiError::from(error).body()));
                    break;
                }
                None => {
                    yield Ok(data(&ApiError::internal("The engine stopped in the middle of the answer.").body()));
                    break;
                }
            }
        }
        yield Ok(Event::default().data("[DONE]"));
    };
    // Proxies must not collect the events.
    ([("x-accel-buffering", "no")], Sse::new(stream)).into_response()
}

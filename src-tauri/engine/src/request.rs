//! What the server asks of the engine and what it hears back.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::{
    error::EngineError,
    sampling::{SamplingParams, TokenLogprobs},
    scheduler::ModelSpec,
};

/// One request, fully resolved: nothing in it depends on a setting any more.
#[derive(Debug, Clone)]
pub struct GenerationRequest {
    /// The model; loaded on admission if it is not.
    pub model: ModelSpec,
    /// The prompt's token ids; at least one.
    pub prompt_tokens: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Texts that end the answer; they are not part of it.
    pub stop_strings: Vec<String>,
    /// Tokens that end the answer.
    pub stop_ids: Vec<u32>,
    /// The most tokens to generate; `None`: as many as the context holds.
    pub max_tokens: Option<usize>,
    /// Show special tokens in the text.
    pub show_special_tokens: bool,
    /// When the request reached the server: the zero of all its times.
    pub arrived: Instant,
}

/// One generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// Its id.
    pub id: u32,
    /// Its log-probabilities, when asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model ended it, or a stop string did (then the string).
    Stop(Option<String>),
    /// `max_tokens` or the context was reached.
    Length,
}

/// Counts and times of one finished request.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Usage {
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens that a cache served.
    pub cached_tokens: usize,
    /// Prompt tokens that were computed.
    pub computed_tokens: usize,
    /// Tokens generated, the hidden end token included.
    pub completion_tokens: usize,
    /// From arrival to the first token's event.
    pub time_to_first_token: Duration,
    /// Time that the engine spent on this prompt.
    pub prompt_eval: Duration,
    /// From the first token to the last.
    pub generation: Duration,
    /// From arrival to the end.
    pub total: Duration,
}

impl Usage {
    /// Prompt tokens computed a second of the time spent on them; `None` when nothing was computed.
    pub fn prompt_tokens_per_second(&self) -> Option<f64> {
        rate(self.computed_tokens, self.prompt_eval)
    }

    /// Decode speed: (tokens - 1) / (last - first); `None` below two tokens.
    pub fn generation_tokens_per_second(&self) -> Option<f64> {
        rate(self.completion_tokens.saturating_sub(1), self.generation)
    }
}

fn rate(tokens: usize, time: Duration) -> Option<f64> {
    (tokens > 0 && !time.is_zero()).then(|| tokens as f64 / time.as_secs_f64())
}

/// What happens to a request, in order: at most one `Admitted`, some `Prefill`, some `Text`, and one of `Finished` and `Failed`.
#[derive(Debug, Clone)]
pub enum GenerationEvent {
    /// It left the queue and the engine works on it.
    Admitted,
    /// A part of the prompt is done.
    Prefill {
        /// Tokens done.
        done: usize,
        /// Tokens in all.
        total: usize,
    },
    /// A step is done: text that is certain now (empty while bytes or a possible stop string are held back) and the tokens that this
    /// text completes.
    Text {
        /// The text.
        text: String,
        /// The tokens whose text is now out; empty when `text` is.
        tokens: Vec<GeneratedToken>,
    },
    /// The end.
    Finished {
        /// Why.
        reason: FinishReason,
        /// Counts and times.
        usage: Usage,
    },
    /// It could not be answered.
    Failed(EngineError),
}

/// The events of one request. Dropping it cancels the request within one step of the engine.
#[derive(Debug)]
pub struct GenerationStream {
    events: mpsc::UnboundedReceiver<GenerationEvent>,
}

impl GenerationStream {
    pub(crate) fn new(events: mpsc::UnboundedReceiver<GenerationEvent>) -> Self {
        Self { events }
    }

    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<GenerationEvent> {
        self.events.recv().await
    }

    /// As [`GenerationStream::next`], for threads outside any async runtime.
    pub fn next_blocking(&mut self) -> Option<GenerationEvent> {
        self.events.blocking_recv()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_divide_only_what_was_done() {
        let usage = Usage {
            prompt_tokens: 1000,
            cached_tokens: 900,
            computed_tokens: 100,
            completion_tokens: 11,
            prompt_eval: Duration::from_secs(2),
            generation: Duration::from_secs(5),
            ..Usage::default()
        };
        assert_eq!(usage.prompt_tokens_per_second(), Some(50.0));
        assert_eq!(usage.generation_tokens_per_second(), Some(2.0));
        let one = Usage {
            completion_tokens: 1,
            ..Usage::default()
        };
        assert_eq!(one.generation_tokens_per_second(), None);
        assert_eq!(one.prompt_tokens_per_second(), None);
    }
}

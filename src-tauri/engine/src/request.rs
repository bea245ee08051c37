//! What the server asks of the engine and what it hears back.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::{
    error::EngineError,
    sampling::{SamplingParams, TokenLogprobs},
    scheduler::ModelSpec,
    specprefill::{SpecPrefillReport, SpecPrefillSettings},
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
    /// System text and tools at the prompt's beginning: never dropped by SpecPrefill.
    pub static_prefix: StaticPrefix,
    /// Tokens at the prompt's end that SpecPrefill never drops, besides its own tail: the last messages, where the settings protect them.
    pub protected_tail: usize,
    /// Whether and how the prompt may be read sparsely.
    pub specprefill: SpecPrefillSettings,
    /// Whether and how several tokens are decoded in one step.
    pub mtp: MtpSettings,
}

impl GenerationRequest {
    /// A request that arrived now, without stops, limits, SpecPrefill or MTP.
    pub fn new(model: ModelSpec, prompt_tokens: Vec<u32>, sampling: SamplingParams) -> Self {
        Self {
            model,
            prompt_tokens,
            sampling,
            stop_strings: Vec::new(),
            stop_ids: Vec::new(),
            max_tokens: None,
            show_special_tokens: false,
            arrived: Instant::now(),
            static_prefix: StaticPrefix::default(),
            protected_tail: 0,
            specprefill: SpecPrefillSettings::default(),
            mtp: MtpSettings::default(),
        }
    }
}

/// How many of the prompt's first tokens are its static prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StaticPrefix {
    /// The number of tokens.
    pub tokens: usize,
    /// Why there is none, when there is none.
    pub reason: Option<&'static str>,
}

/// How verified drafts are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MtpMode {
    /// By kernels whose result for a row does not depend on the rows beside it: greedy answers equal plain decoding's.
    #[default]
    Exact,
    /// By whatever is fastest.
    Fast,
}

impl MtpMode {
    /// As in settings and replies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Fast => "fast",
        }
    }
}

/// The most tokens that an MTP head may draft in one step.
pub const MAX_MTP_DEPTH: usize = 8;

/// The MTP settings of one request, fully resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MtpSettings {
    /// Off: one token a step.
    pub enabled: bool,
    /// The most tokens drafted in one step, 1 to [`MAX_MTP_DEPTH`]; how many are is found by measuring.
    pub max_depth: usize,
    /// Always draft so many tokens instead, 1 to [`MAX_MTP_DEPTH`].
    pub fixed_depth: Option<usize>,
    /// How drafts are verified.
    pub mode: MtpMode,
    /// Draft from the most frequent part of the vocabulary only.
    pub draft_vocabulary: bool,
}

impl Default for MtpSettings {
    fn default() -> Self {
        Self {
            enabled: false,
            max_depth: 3,
            fixed_depth: None,
            mode: MtpMode::Exact,
            draft_vocabulary: true,
        }
    }
}

/// What MTP did for one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MtpReport {
    /// True when drafts were verified.
    pub applied: bool,
    /// Why not, when not.
    pub reason: Option<&'static str>,
    /// How drafts were verified.
    pub mode: MtpMode,
    /// Verify passes.
    pub cycles: usize,
    /// Tokens drafted.
    pub drafted: usize,
    /// Of these, tokens that became part of the answer.
    pub accepted: usize,
    /// Cycles by their depth: entry d counts those that drafted d tokens.
    pub depth_histogram: Vec<usize>,
    /// Times that speculation was given up for a while.
    pub parks: usize,
    /// Time in the model's own layers, all cycles together.
    pub backbone: Duration,
    /// Time in the head, all cycles together.
    pub head: Duration,
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
#[derive(Debug, Clone, PartialEq, Default)]
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
    /// What SpecPrefill did.
    pub specprefill: SpecPrefillReport,
    /// What MTP did.
    pub mtp: MtpReport,
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

/// What a prompt is going through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefillPhase {
    /// The model reads every token.
    Dense,
    /// The draft model, or the model's first layers, rank the tokens.
    Scoring,
    /// The model reads the kept tokens.
    Sparse,
}

impl PrefillPhase {
    /// As in logs and progress comments.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dense => "prefill",
            Self::Scoring => "scoring",
            Self::Sparse => "sparse prefill",
        }
    }
}

/// What happens to a request, in order: at most one `Admitted`, some `Prefill`, some `Text`, and one of `Finished` and `Failed`.
#[derive(Debug, Clone)]
pub enum GenerationEvent {
    /// It left the queue and the engine works on it.
    Admitted,
    /// A part of the prompt is done.
    Prefill {
        /// What is being done.
        phase: PrefillPhase,
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
        usage: Box<Usage>,
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

//! One running request: prefill, then decode, one step at a time.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::loaded::ModelInfo;
use crate::{
    cache::SequenceCache,
    error::EngineError,
    models::{ForwardInput, LogitRows, Model},
    positions::Positions,
    request::{FinishReason, GeneratedToken, GenerationEvent, GenerationRequest, Usage},
    sampling::Sampler,
    stop::StopStrings,
    tokenizer::StreamDecoder,
};

/// What a running request does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// `done` prompt tokens are in the cache.
    Prefill { done: usize },
    /// `last` was generated but is not in the cache yet.
    Decode { last: u32 },
    /// Nothing: the last event is out.
    Done,
}

/// A token whose text is not out yet.
#[derive(Debug)]
struct PendingToken {
    /// Bytes of the answer's text before this token.
    start: usize,
    /// Bytes of the answer's text once this token is out.
    end: usize,
    token: GeneratedToken,
}

/// One running request.
pub(super) struct Sequence {
    request: GenerationRequest,
    events: mpsc::UnboundedSender<GenerationEvent>,
    info: Arc<ModelInfo>,
    cache: SequenceCache,
    sampler: Sampler,
    decoder: StreamDecoder,
    stops: StopStrings,
    phase: Phase,
    pending: VecDeque<PendingToken>,
    /// Bytes that the detokenizer gave and that went out.
    produced: usize,
    emitted: usize,
    max_tokens: usize,
    generated: usize,
    prompt_eval: Duration,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

impl Sequence {
    /// Checks the request against its model and prepares its state; computes nothing yet.
    ///
    /// # Errors
    /// When the prompt does not fit or a parameter is out of range.
    pub(super) fn new(
        request: GenerationRequest,
        events: mpsc::UnboundedSender<GenerationEvent>,
        info: Arc<ModelInfo>,
        model: &dyn Model,
    ) -> Result<Self, EngineError> {
        let prompt_tokens = request.prompt_tokens.len();
        let context_length = info.context_length;
        // At least one token must fit behind the prompt.
        if prompt_tokens >= context_length {
            return Err(EngineError::ContextOverflow {
                prompt_tokens,
                context_length,
            });
        }
        let room = context_length - prompt_tokens;
        let max_tokens = request.max_tokens.unwrap_or(room).min(room);
        if max_tokens == 0 {
            return Err(EngineError::InvalidRequest(
                "max_tokens must be at least 1.".into(),
            ));
        }
        if let Some(id) = request
            .prompt_tokens
            .iter()
            .find(|id| **id as usize >= info.vocab_size)
        {
            return Err(EngineError::InvalidRequest(format!(
                "Token {id} of the prompt is outside this model's vocabulary of {} tokens.",
                info.vocab_size
            )));
        }
        let sampler = Sampler::new(
            request.sampling.clone(),
            info.vocab_size,
            &request.prompt_tokens,
        )
        .map_err(|e| EngineError::InvalidRequest(e.to_string()))?;
        let stops = StopStrings::new(&request.stop_strings)
            .map_err(|e| EngineError::InvalidRequest(e.to_string()))?;
        let decoder = info.tokenizer.stream_decoder(!request.show_special_tokens);
        Ok(Self {
            cache: model.new_cache(),
            sampler,
            decoder,
            stops,
            phase: Phase::Prefill { done: 0 },
            pending: VecDeque::new(),
            produced: 0,
            emitted: 0,
            max_tokens,
            generated: 0,
            prompt_eval: Duration::ZERO,
            first_token: None,
            last_token: None,
            request,
            events,
            info,
        })
    }

    /// The model that it runs on.
    pub(super) fn model_key(&self) -> &str {
        &self.info.key
    }

    /// What it does next.
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// True when nobody listens any more.
    pub(super) fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// How long ago it arrived.
    pub(super) fn age(&self) -> Duration {
        self.request.arrived.elapsed()
    }

    /// Ends it with an error.
    pub(super) fn fail(&mut self, error: EngineError) {
        self.send(GenerationEvent::Failed(error));
        self.phase = Phase::Done;
    }

    // A send fails when the client is gone; that is noticed before the next step.
    fn send(&self, event: GenerationEvent) {
        let _ = self.events.send(event);
    }

    /// Takes one step: a chunk of at most `chunk` prompt tokens, or one generated token.
    ///
    /// # Errors
    /// When the model or the sampler fails; the request cannot go on then.
    pub(super) fn step(&mut self, model: &dyn Model, chunk: usize) -> Result<(), EngineError> {
        match self.phase {
            Phase::Prefill { done } => self.prefill(model, done, chunk),
            Phase::Decode { last } => {
                let positions = Positions::contiguous(self.cache.next_position(), 1);
                self.advance(model, &[last], &positions)
            }
            Phase::Done => Ok(()),
        }
    }

    fn prefill(&mut self, model: &dyn Model, done: usize, chunk: usize) -> Result<(), EngineError> {
        let started = Instant::now();
        let total = self.request.prompt_tokens.len();
        let end = total.min(done + chunk.max(1));
        if done == 0 {
            self.cache.reserve(total)?;
        }
        let tokens = self.request.prompt_tokens[done..end].to_vec();
        let positions = Positions::contiguous(done as u32, end - done);
        if end < total {
            let input = ForwardInput {
                tokens: &tokens,
                positions: &positions,
                logits: LogitRows::None,
                hidden: false,
                queries: false,
                replayable: false,
            };
            model.forward(input, &mut self.cache)?;
            self.prompt_eval += started.elapsed();
            self.phase = Phase::Prefill { done: end };
            self.send(GenerationEvent::Prefill { done: end, total });
            return Ok(());
        }
        let mut logits = self.logits(model, &tokens, &positions)?;
        self.prompt_eval += started.elapsed();
        self.send(GenerationEvent::Prefill { done: total, total });
        self.take_token(&mut logits)
    }

    fn advance(
        &mut self,
        model: &dyn Model,
        tokens: &[u32],
        positions: &Positions,
    ) -> Result<(), EngineError> {
        let mut logits = self.logits(model, tokens, positions)?;
        self.take_token(&mut logits)
    }

    /// Runs the tokens and returns the last one's logits.
    fn logits(
        &mut self,
        model: &dyn Model,
        tokens: &[u32],
        positions: &Positions,
    ) -> Result<Vec<f32>, EngineError> {
        let input = ForwardInput {
            tokens,
            positions,
            logits: LogitRows::Last,
            hidden: false,
            queries: false,
            replayable: false,
        };
        let logits = model.forward(input, &mut self.cache)?.logits()?;
        Ok(logits.flatten_all()?.to_vec1::<f32>()?)
    }

    /// Samples a token, sends its text, and decides whether the answer ends.
    fn take_token(&mut self, logits: &mut [f32]) -> Result<(), EngineError> {
        let sampled = self
            .sampler
            .sample(logits)
            .map_err(|e| EngineError::Compute(e.to_string()))?;
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.generated += 1;
        self.phase = Phase::Decode {
            last: sampled.token,
        };
        if self.request.stop_ids.contains(&sampled.token) {
            return self.end_of_text(FinishReason::Stop(None));
        }
        let text = self.decoder.push(sampled.token);
        let start = self.produced;
        self.produced += text.len();
        self.pending.push_back(PendingToken {
            start,
            end: self.produced,
            token: GeneratedToken {
                id: sampled.token,
                logprobs: sampled.logprobs,
            },
        });
        if self.push_text(&text) {
            return Ok(());
        }
        if self.generated >= self.max_tokens {
            return self.end_of_text(FinishReason::Length);
        }
        Ok(())
    }

    /// Sends what of `text` is certain; true when a stop string ended the answer.
    fn push_text(&mut self, text: &str) -> bool {
        let piece = self.stops.push(text);
        match piece.matched {
            Some(stop) => {
                self.emit(piece.text, true);
                self.finish(FinishReason::Stop(Some(stop)));
                true
            }
            None => {
                self.emit(piece.text, false);
                false
            }
        }
    }

    /// The model or a limit ended the answer: what was held back goes out, unless a stop string is found in it after all.
    fn end_of_text(&mut self, reason: FinishReason) -> Result<(), EngineError> {
        let rest = self.decoder.finish();
        self.produced += rest.len();
        if let Some(last) = self.pending.back_mut() {
            last.end = self.produced;
        }
        if self.push_text(&rest) {
            return Ok(());
        }
        let held_back = self.stops.finish();
        self.emit(held_back, false);
        self.finish(reason);
        Ok(())
    }

    /// Sends `text` with the tokens that it completes. `cut`: the answer ends inside the pending text, so a token that is out in part
    /// goes along.
    fn emit(&mut self, text: String, cut: bool) {
        self.emitted += text.len();
        let mut tokens = Vec::new();
        while let Some(pending) = self.pending.front() {
            let out = pending.end <= self.emitted || (cut && pending.start < self.emitted);
            if !out {
                break;
            }
            tokens.extend(self.pending.pop_front().map(|pending| pending.token));
        }
        self.send(GenerationEvent::Text { text, tokens });
    }

    fn finish(&mut self, reason: FinishReason) {
        let since_arrival = |at: Option<Instant>| {
            at.map_or(Duration::ZERO, |at| at.duration_since(self.request.arrived))
        };
        let usage = Usage {
            prompt_tokens: self.request.prompt_tokens.len(),
            cached_tokens: 0,
            computed_tokens: self.request.prompt_tokens.len(),
            completion_tokens: self.generated,
            time_to_first_token: since_arrival(self.first_token),
            prompt_eval: self.prompt_eval,
            generation: match (self.first_token, self.last_token) {
                (Some(first), Some(last)) => last.duration_since(first),
                _ => Duration::ZERO,
            },
            total: self.request.arrived.elapsed(),
        };
        tracing::info!(
            model = self.info.key,
            prompt_tokens = usage.prompt_tokens,
            completion_tokens = usage.completion_tokens,
            ttft_seconds = usage.time_to_first_token.as_secs_f64(),
            prompt_tokens_per_second = usage.prompt_tokens_per_second(),
            generation_tokens_per_second = usage.generation_tokens_per_second(),
            reason = ?reason,
            "request answered"
        );
        self.send(GenerationEvent::Finished { reason, usage });
        self.phase = Phase::Done;
    }
}

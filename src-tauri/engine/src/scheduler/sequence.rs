//! One running request: prefill, then decode, one step at a time.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::{
    loaded::{ModelInfo, ModelSpec, MtpShared},
    prompt::{Progress, PromptRun, Resources, guarded},
    recovery::Recovery,
    stores::Stores,
};
use crate::{
    cache::{BLOCK_TOKENS, SequenceCache},
    error::EngineError,
    models::{ForwardInput, LogitRows, Model},
    mtp::{CycleLimits, Speculator},
    positions::Positions,
    request::{
        FinishReason, GeneratedToken, GenerationEvent, GenerationRequest, MtpReport, PrefillPhase,
        Usage,
    },
    sampling::{Sampled, Sampler},
    specprefill::{DraftState, SkipReason},
    stop::StopStrings,
    tokenizer::StreamDecoder,
};

/// What a running request does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The prompt is not in the cache yet.
    Prefill,
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
    /// The prompt's way into the cache; `None` until it is planned.
    prompt: Option<PromptRun>,
    /// Drafting, where it is on.
    speculator: Option<Speculator>,
    /// Why there is none.
    mtp_reason: Option<&'static str>,
    /// What was done before it was given up.
    mtp_report: Option<MtpReport>,
    /// The prompt and what was generated so far.
    tokens: Vec<u32>,
    /// Position of the newest token, which is not in the cache yet.
    next_position: u32,
    pending: VecDeque<PendingToken>,
    /// Bytes that the detokenizer gave and that went out.
    produced: usize,
    emitted: usize,
    max_tokens: usize,
    generated: usize,
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
            phase: Phase::Prefill,
            prompt: None,
            speculator: None,
            mtp_reason: None,
            mtp_report: None,
            tokens: request.prompt_tokens.clone(),
            next_position: 0,
            pending: VecDeque::new(),
            produced: 0,
            emitted: 0,
            max_tokens,
            generated: 0,
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

    /// The draft model that it wants.
    pub(super) fn draft_spec(&self) -> Option<ModelSpec> {
        self.request.specprefill.draft.clone()
    }

    /// True until its prompt is planned.
    pub(super) fn is_unplanned(&self) -> bool {
        self.prompt.is_none()
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
        // What the failed pass left in the cache is nobody's prefix.
        self.prompt = None;
        self.phase = Phase::Done;
    }

    // A send fails when the client is gone; that is noticed before the next step.
    fn send(&self, event: GenerationEvent) {
        let _ = self.events.send(event);
    }

    /// Looks up what is known of the prompt and plans how to read the rest. `draft` says what is known of a draft model.
    pub(super) fn plan(&mut self, stores: &mut Stores, draft: impl FnOnce() -> DraftState) {
        let run = PromptRun::start(&self.request, &self.info, &mut self.cache, stores, draft);
        self.prompt = Some(run);
    }

    /// Takes one step: a chunk of the prompt, or one generated token.
    ///
    /// # Errors
    /// When the model or the sampler fails; the request cannot go on then.
    pub(super) fn step(&mut self, resources: &mut Resources<'_>) -> Result<(), EngineError> {
        match self.phase {
            Phase::Prefill => self.prefill(resources),
            Phase::Decode { last } => self.decode(resources, last),
            Phase::Done => Ok(()),
        }
    }

    fn prefill(&mut self, resources: &mut Resources<'_>) -> Result<(), EngineError> {
        let Some(prompt) = &mut self.prompt else {
            return Err(EngineError::Compute("the prompt was not planned".into()));
        };
        match prompt.step(
            &self.request,
            &mut self.cache,
            resources,
            &mut self.speculator,
        )? {
            Progress::More { phase, done, total } => {
                self.send(GenerationEvent::Prefill { phase, done, total });
                Ok(())
            }
            Progress::Ready(mut logits) => {
                let total = self.request.prompt_tokens.len();
                self.next_position = total as u32;
                self.send(GenerationEvent::Prefill {
                    phase: PrefillPhase::Dense,
                    done: total,
                    total,
                });
                self.take_token(&mut logits)
            }
        }
    }

    /// Decides whether tokens are drafted.
    pub(super) fn plan_mtp(&mut self, model: &dyn Model, shared: &mut MtpShared) {
        let settings = self.request.mtp;
        if !settings.enabled {
            self.mtp_reason = Some("disabled");
            return;
        }
        let support = model.mtp();
        let Some(head) = support.head() else {
            self.mtp_reason = support.reason();
            return;
        };
        let draft_head = if settings.draft_vocabulary {
            match shared.draft_head(head, &self.info, &self.request.prompt_tokens) {
                Ok(draft_head) => Some(draft_head),
                Err(error) => {
                    tracing::warn!(%error, "the draft vocabulary could not be gathered; the whole one is used");
                    None
                }
            }
        } else {
            None
        };
        self.speculator = Some(Speculator::new(
            head,
            settings,
            shared.memory.as_ref(),
            draft_head,
        ));
    }

    /// Hands on what this request taught about its model.
    pub(super) fn teach(&self, shared: &mut MtpShared) {
        if let Some(memory) = self.speculator.as_ref().and_then(Speculator::memory) {
            shared.memory = Some(memory);
        }
        if let Some(heads) = &mut shared.heads {
            let (prompt, answer) = self.tokens.split_at(self.request.prompt_tokens.len());
            heads.count(prompt, answer);
        }
    }

    /// One decode step: a cycle of drafts where speculation pays, else one token.
    fn decode(&mut self, resources: &mut Resources<'_>, last: u32) -> Result<(), EngineError> {
        let block = self.next_position as usize / BLOCK_TOKENS;
        if !self.speculate(resources, last)? {
            self.plain_step(resources, last)?;
        }
        // States can be kept at a block's end only, and no cycle goes beyond one.
        if self.next_position as usize / BLOCK_TOKENS != block && self.phase != Phase::Done {
            self.publish(resources.stores, false);
        }
        Ok(())
    }

    fn plain_step(&mut self, resources: &mut Resources<'_>, last: u32) -> Result<(), EngineError> {
        let started = Instant::now();
        let position = self.next_position;
        let positions = Positions::contiguous(position, 1);
        let tokens = [last];
        let mut input = ForwardInput::new(&tokens, &positions, LogitRows::Last);
        input.hidden = self.speculator.is_some();
        let mut output = resources.model.forward(input, &mut self.cache)?;
        let hidden = output.hidden.take();
        let mut logits = output.logits()?.flatten_all()?.to_vec1::<f32>()?;
        self.next_position += 1;
        let sampled = self.sample(&mut logits)?;
        if let (Some(active), Some(hidden)) = (&mut self.speculator, hidden) {
            let elapsed = started.elapsed();
            let contended = resources.contended;
            let outcome = guarded(|| match resources.model.mtp().head() {
                Some(head) => active.plain_step(head, last, position, &hidden, elapsed, contended),
                None => Ok(()),
            });
            if let Err(error) = outcome {
                self.give_up_mtp(&error);
            }
        }
        self.accept(sampled)
    }

    /// One cycle of drafts, unless a plain step is due. False: nothing was done.
    fn speculate(&mut self, resources: &mut Resources<'_>, last: u32) -> Result<bool, EngineError> {
        let (Some(active), Some(head)) = (&mut self.speculator, resources.model.mtp().head())
        else {
            return Ok(false);
        };
        let mut most = self.max_tokens - self.generated;
        if self.cache.has_recurrent_layers() && resources.stores.prefix.is_enabled() {
            most = most.min(BLOCK_TOKENS - self.next_position as usize % BLOCK_TOKENS);
        }
        let Some(depth) = active.depth(most) else {
            return Ok(false);
        };
        let limits = CycleLimits {
            most,
            stop_ids: &self.request.stop_ids,
            contended: resources.contended,
        };
        let before = self.cache.mark()?;
        let (sampler, cache) = (&mut self.sampler, &mut self.cache);
        let at = (last, self.next_position);
        let outcome =
            guarded(|| active.cycle(resources.model, head, sampler, cache, at, depth, limits));
        match outcome {
            Ok(tokens) => {
                self.next_position += tokens.len() as u32;
                for sampled in tokens {
                    // A stop string ends the answer in the middle of a cycle.
                    if self.phase != Phase::Done {
                        self.accept(sampled)?;
                    }
                }
                Ok(true)
            }
            Err(error) => {
                self.cache.rewind(&before)?;
                self.give_up_mtp(&error);
                Ok(false)
            }
        }
    }

    fn give_up_mtp(&mut self, error: &EngineError) {
        tracing::warn!(%error, "speculation failed; the rest of the answer is decoded without it");
        self.mtp_report = self.speculator.take().map(|active| active.report());
    }

    fn mtp_report(&self) -> MtpReport {
        let mode = self.request.mtp.mode;
        match (&self.speculator, &self.mtp_report) {
            (Some(active), _) => active.report(),
            (None, Some(report)) => MtpReport {
                reason: Some("head_failed"),
                ..report.clone()
            },
            (None, None) => MtpReport {
                reason: self.mtp_reason.or(Some("head_failed")),
                mode,
                ..MtpReport::default()
            },
        }
    }

    fn publish(&mut self, stores: &mut Stores, finished: bool) {
        if let Some(prompt) = &mut self.prompt {
            prompt.publish_answer(&self.tokens, &self.cache, stores, finished);
        }
    }

    /// Leaves behind what a next turn can use: dense blocks, or a sparse session and a prompt to read in idle time.
    pub(super) fn leave(mut self, stores: &mut Stores) -> Option<Recovery> {
        self.publish(stores, true);
        let prompt = self.prompt?;
        if !prompt.report().applied {
            return None;
        }
        let settings = &self.request.specprefill;
        let recovery = settings
            .dense_recovery
            .then(|| Recovery::new(&self.info.key, self.tokens.clone()));
        if settings.reuse_sessions {
            let session = prompt.into_session(&self.info.key, self.tokens, self.cache);
            stores.sessions.insert(session);
        }
        recovery
    }

    /// Samples a token, sends its text, and decides whether the answer ends.
    fn take_token(&mut self, logits: &mut [f32]) -> Result<(), EngineError> {
        let sampled = self.sample(logits)?;
        self.accept(sampled)
    }

    fn sample(&mut self, logits: &mut [f32]) -> Result<Sampled, EngineError> {
        self.sampler
            .sample(logits)
            .map_err(|e| EngineError::Compute(e.to_string()))
    }

    /// Adds a token to the answer, sends its text, and decides whether the answer ends.
    fn accept(&mut self, sampled: Sampled) -> Result<(), EngineError> {
        let now = Instant::now();
        self.first_token.get_or_insert(now);
        self.last_token = Some(now);
        self.generated += 1;
        self.tokens.push(sampled.token);
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
        let prompt = self.prompt.as_ref();
        let usage = Usage {
            prompt_tokens: self.request.prompt_tokens.len(),
            cached_tokens: prompt.map_or(0, PromptRun::cached_tokens),
            computed_tokens: prompt.map_or(0, PromptRun::computed_tokens),
            completion_tokens: self.generated,
            time_to_first_token: since_arrival(self.first_token),
            prompt_eval: prompt.map_or(Duration::ZERO, PromptRun::eval),
            generation: match (self.first_token, self.last_token) {
                (Some(first), Some(last)) => last.duration_since(first),
                _ => Duration::ZERO,
            },
            total: self.request.arrived.elapsed(),
            specprefill: prompt.map(PromptRun::report).cloned().unwrap_or_default(),
            mtp: self.mtp_report(),
        };
        tracing::info!(
            model = self.info.key,
            prompt_tokens = usage.prompt_tokens,
            completion_tokens = usage.completion_tokens,
            ttft_seconds = usage.time_to_first_token.as_secs_f64(),
            prompt_tokens_per_second = usage.prompt_tokens_per_second(),
            generation_tokens_per_second = usage.generation_tokens_per_second(),
            cached_tokens = usage.cached_tokens,
            specprefill = usage
                .specprefill
                .reason
                .map_or("applied", SkipReason::as_str),
            kept_tokens = usage.specprefill.kept_tokens,
            mtp = usage.mtp.reason.unwrap_or("applied"),
            drafted = usage.mtp.drafted,
            accepted = usage.mtp.accepted,
            cycles = usage.mtp.cycles,
            reason = ?reason,
            "request answered"
        );
        self.send(GenerationEvent::Finished {
            reason,
            usage: Box::new(usage),
        });
        self.phase = Phase::Done;
    }
}

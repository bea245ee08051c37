//! From a prompt to its last token's logits: cached, dense, ranked or sparse, one step at a time.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use super::{
    loaded::ModelInfo,
    stores::{Stores, prefix_root},
};
use crate::{
    cache::{BLOCK_TOKENS, PrefixWriter, SequenceCache, SequenceMark},
    error::EngineError,
    models::{ForwardInput, LogitRows, Model},
    mtp::Speculator,
    positions::Positions,
    request::{GenerationRequest, PrefillPhase},
    specprefill::{
        DraftScorer, DraftState, Facts, OwnScorer, OwnWork, Plan, Scored, Scorer, SkipReason,
        SparsePlan, SparsePrefill, SpecPrefillReport, plan, select,
        select::TAIL_TOKENS,
        session::{RESUME_MARGIN, SparseSession},
    },
};

/// What a step may use.
pub(super) struct Resources<'a> {
    /// The target.
    pub(super) model: &'a dyn Model,
    /// The draft model, if one is loaded.
    pub(super) draft: Option<&'a dyn Model>,
    /// The caches that outlive the request.
    pub(super) stores: &'a mut Stores,
    /// Prompt tokens of one step.
    pub(super) chunk: usize,
    /// Whether other requests run beside this one.
    pub(super) contended: bool,
}

/// What a step came to.
#[derive(Debug)]
pub(super) enum Progress {
    /// More steps are needed.
    More {
        phase: PrefillPhase,
        done: usize,
        total: usize,
    },
    /// The logits of the prompt's last token.
    Ready(Vec<f32>),
}

/// What is being done.
#[derive(Debug)]
enum Stage {
    /// Every token up to `until` is read.
    Dense {
        until: usize,
        /// What follows, unless the prompt ends there.
        then: Option<SparsePlan>,
    },
    /// The tokens after the dense part are ranked.
    Score(SparsePlan, Ranking),
    /// The kept ones are read.
    Sparse(SparsePrefill),
}

/// Who ranks the tokens.
#[derive(Debug)]
enum Ranking {
    Draft(Box<DraftScorer>),
    Own(Box<OwnScorer>),
}

/// The way of one prompt into its cache.
#[derive(Debug)]
pub(super) struct PromptRun {
    stage: Stage,
    /// Tokens of the prompt that the cache stands for.
    done: usize,
    /// Tokens that the target computed.
    computed: usize,
    /// Time spent.
    eval: Duration,
    writer: PrefixWriter,
    /// The end of the dense part: where everything is right whatever follows.
    dense_end: Option<SequenceMark>,
    /// Where a sparse session can be taken up again.
    marks: Vec<SequenceMark>,
    report: SpecPrefillReport,
}

impl PromptRun {
    /// Looks up what is known of the prompt and plans the rest. `cache` is filled with what was found. `draft` says what is known of the
    /// draft model, loading it if needed.
    pub(super) fn start(
        request: &GenerationRequest,
        info: &ModelInfo,
        cache: &mut SequenceCache,
        stores: &mut Stores,
        draft: impl FnOnce() -> DraftState,
    ) -> Self {
        let started = Instant::now();
        let prompt = &request.prompt_tokens;
        let settings = &request.specprefill;
        let static_prefix = request.static_prefix.tokens.min(prompt.len());
        let mut done = restore_prefix(request, info, cache, stores, static_prefix);
        let facts = Facts {
            prompt_tokens: prompt.len(),
            cached_tokens: done,
            static_prefix,
            has_image: false,
            settings,
        };
        let mut report = SpecPrefillReport {
            prompt_tokens: prompt.len(),
            static_prefix_tokens: static_prefix,
            static_prefix_reason: request.static_prefix.reason,
            keep_ratio: settings.keep_ratio,
            ..SpecPrefillReport::default()
        };
        let mut stage = Stage::Dense {
            until: prompt.len(),
            then: None,
        };
        match plan(facts, draft) {
            Plan::Dense(reason) => report.reason = Some(reason),
            Plan::Sparse(plan) => match resume(request, info, stores) {
                Some((session, tokens)) => {
                    *cache = session;
                    done = tokens;
                    report.applied = true;
                    report.session_reused = true;
                    report.kept_tokens = cache.token_count().unwrap_or(0);
                }
                None => {
                    stage = Stage::Dense {
                        until: plan.window_start,
                        then: Some(plan),
                    }
                }
            },
        }
        report.cached_tokens = done;
        let held = cache.positions().as_slice().len();
        let expected = match &stage {
            Stage::Dense {
                then: Some(plan), ..
            } => {
                let window = prompt.len() - plan.window_start;
                plan.window_start - done + (window as f32 * plan.keep_ratio) as usize + TAIL_TOKENS
            }
            _ => prompt.len() - done,
        };
        if let Err(error) = cache.reserve(held + expected) {
            // Not fatal: the buffers grow as they are filled, or fail then.
            tracing::debug!(%error, "room for the whole prompt could not be reserved");
        }
        Self {
            stage,
            done,
            computed: 0,
            eval: started.elapsed(),
            writer: PrefixWriter::new(prefix_root(&info.key)),
            dense_end: None,
            marks: Vec::new(),
            report,
        }
    }

    /// What was done so far.
    pub(super) fn report(&self) -> &SpecPrefillReport {
        &self.report
    }

    /// Tokens that a cache served.
    pub(super) fn cached_tokens(&self) -> usize {
        self.report.cached_tokens
    }

    /// Tokens that the target computed.
    pub(super) fn computed_tokens(&self) -> usize {
        self.computed
    }

    /// Time spent on the prompt.
    pub(super) fn eval(&self) -> Duration {
        self.eval
    }

    /// Takes one step.
    ///
    /// # Errors
    /// When the target fails on a dense step; every other failure is made good by going on densely.
    pub(super) fn step(
        &mut self,
        request: &GenerationRequest,
        cache: &mut SequenceCache,
        resources: &mut Resources<'_>,
        speculator: &mut Option<Speculator>,
    ) -> Result<Progress, EngineError> {
        let started = Instant::now();
        let progress = match std::mem::replace(
            &mut self.stage,
            Stage::Dense {
                until: 0,
                then: None,
            },
        ) {
            Stage::Dense { until, then } => {
                self.dense(request, cache, resources, speculator, until, then)
            }
            Stage::Score(plan, ranking) => {
                let progress = self.score(request, cache, resources, plan, ranking);
                self.report.scoring += started.elapsed();
                Ok(progress)
            }
            Stage::Sparse(sparse) => {
                let progress = self.sparse(request, cache, resources, speculator, sparse);
                self.report.sparse_prefill += started.elapsed();
                Ok(progress)
            }
        };
        self.eval += started.elapsed();
        progress
    }

    /// The rest of the prompt is read whole.
    fn go_dense(&mut self, prompt: usize) -> Progress {
        self.stage = Stage::Dense {
            until: prompt,
            then: None,
        };
        Progress::More {
            phase: PrefillPhase::Dense,
            done: self.done,
            total: prompt,
        }
    }

    fn dense(
        &mut self,
        request: &GenerationRequest,
        cache: &mut SequenceCache,
        resources: &mut Resources<'_>,
        speculator: &mut Option<Speculator>,
        until: usize,
        then: Option<SparsePlan>,
    ) -> Result<Progress, EngineError> {
        let prompt = &request.prompt_tokens;
        let total = prompt.len();
        let mut logits = None;
        if self.done < until {
            let end = self.dense_chunk_end(until, request, cache, resources.chunk);
            let rows = if end == total {
                LogitRows::Last
            } else {
                LogitRows::None
            };
            let positions = Positions::contiguous(self.done as u32, end - self.done);
            let tokens = &prompt[self.done..end];
            let mut input = ForwardInput::new(tokens, &positions, rows);
            input.hidden = speculator.is_some();
            let output = resources.model.forward(input, cache)?;
            let hidden = output.hidden.as_ref();
            prime(
                speculator,
                resources.model,
                hidden,
                tokens,
                positions.order(),
            );
            self.computed += end - self.done;
            self.done = end;
            if end == total {
                logits = Some(output.logits()?.flatten_all()?.to_vec1::<f32>()?);
            }
            if !self.report.applied {
                self.publish(request, cache, resources.stores);
            } else if self.done + RESUME_MARGIN >= total {
                self.marks.extend(cache.mark().ok());
            }
        }
        if let Some(logits) = logits {
            return Ok(Progress::Ready(logits));
        }
        if let Some(plan) = then
            && self.done >= until
        {
            return Ok(self.begin_scoring(request, cache, resources, plan));
        }
        self.stage = Stage::Dense { until, then };
        Ok(Progress::More {
            phase: PrefillPhase::Dense,
            done: self.done,
            total,
        })
    }

    /// Where the next dense chunk ends: at a place that is worth keeping, if one comes first.
    fn dense_chunk_end(
        &self,
        until: usize,
        request: &GenerationRequest,
        cache: &SequenceCache,
        chunk: usize,
    ) -> usize {
        let total = request.prompt_tokens.len();
        let mut end = until.min(self.done + chunk.max(1));
        let aligned = end / BLOCK_TOKENS * BLOCK_TOKENS;
        if cache.has_recurrent_layers() && end < until && aligned > self.done {
            // States can be kept at block boundaries only.
            end = aligned;
        }
        let mut stop_at = |place: usize| {
            if self.done < place && place < end {
                end = place;
            }
        };
        stop_at(request.static_prefix.tokens);
        if self.report.applied {
            stop_at(total.saturating_sub(RESUME_MARGIN));
        } else if cache.has_recurrent_layers() {
            stop_at((total - 1) / BLOCK_TOKENS * BLOCK_TOKENS);
        }
        end
    }

    /// Shares what is dense. A failure costs only later requests' time.
    fn publish(&mut self, request: &GenerationRequest, cache: &SequenceCache, stores: &mut Stores) {
        let prompt = &request.prompt_tokens;
        let outcome = if self.done == request.static_prefix.tokens {
            self.writer
                .finish_static_prefix(&mut stores.prefix, &prompt[..self.done], cache)
        } else {
            self.writer
                .advance(&mut stores.prefix, &prompt[..self.done], cache)
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "a prompt could not be kept in the prefix cache");
        }
        if self.done == (prompt.len() - 1) / BLOCK_TOKENS * BLOCK_TOKENS {
            self.writer.keep_states(&mut stores.prefix);
        }
    }

    fn begin_scoring(
        &mut self,
        request: &GenerationRequest,
        cache: &SequenceCache,
        resources: &mut Resources<'_>,
        plan: SparsePlan,
    ) -> Progress {
        if plan.scorer == Scorer::Own && resources.model.ranking_layers().is_none() {
            self.report.reason = Some(SkipReason::NoAttention);
            return self.go_dense(request.prompt_tokens.len());
        }
        let started = Instant::now();
        let window = request.prompt_tokens[plan.window_start..].to_vec();
        let total = window.len();
        self.report.scored_tokens = total;
        self.report.scorer = Some(plan.scorer);
        let ranking = guarded(|| match plan.scorer {
            Scorer::Own => OwnScorer::new(resources.model, cache, window)
                .map(|scorer| Ranking::Own(Box::new(scorer))),
            Scorer::Draft => {
                let draft = draft(resources.draft)?;
                let spec = request.specprefill.draft.as_ref();
                let key = spec.map_or("", |spec| &spec.key);
                // Without a seed of the request's own: the same prompt is always ranked alike.
                let seed = request.sampling.seed.unwrap_or(0);
                let prefix = &mut resources.stores.draft_prefix;
                let start = plan.window_start;
                DraftScorer::new(draft, key, prefix, window, start, seed)
                    .map(|scorer| Ranking::Draft(Box::new(scorer)))
            }
        });
        self.report.scoring += started.elapsed();
        match ranking {
            Ok(ranking) => {
                let mut done = 0;
                if let Ranking::Draft(scorer) = &ranking {
                    let spec = request.specprefill.draft.as_ref();
                    self.report.draft_model = spec.map(|spec| spec.key.clone());
                    done = scorer.restored();
                }
                self.stage = Stage::Score(plan, ranking);
                Progress::More {
                    phase: PrefillPhase::Scoring,
                    done,
                    total,
                }
            }
            Err(error) => self.scoring_failed(request, &error),
        }
    }

    fn scoring_failed(&mut self, request: &GenerationRequest, error: &EngineError) -> Progress {
        tracing::warn!(%error, "ranking the prompt's tokens failed; it is read whole");
        self.report.reason = Some(SkipReason::ScoringFailed);
        self.report.scored_tokens = 0;
        self.go_dense(request.prompt_tokens.len())
    }

    fn score(
        &mut self,
        request: &GenerationRequest,
        cache: &mut SequenceCache,
        resources: &mut Resources<'_>,
        plan: SparsePlan,
        mut ranking: Ranking,
    ) -> Progress {
        let scored = guarded(|| match &mut ranking {
            Ranking::Own(scorer) => scorer.step(resources.model, resources.chunk),
            Ranking::Draft(scorer) => {
                let prefix = &mut resources.stores.draft_prefix;
                scorer.step(draft(resources.draft)?, prefix, resources.chunk)
            }
        });
        match scored {
            Ok(Scored::More(done)) => {
                self.stage = Stage::Score(plan, ranking);
                Progress::More {
                    phase: PrefillPhase::Scoring,
                    done,
                    total: self.report.scored_tokens,
                }
            }
            Ok(Scored::Done(importance)) => {
                let work = match ranking {
                    Ranking::Draft(_) => Ok(None),
                    Ranking::Own(scorer) => scorer.into_work().map(Some),
                };
                match work {
                    Ok(work) => {
                        self.begin_sparse(request, cache, resources.model, plan, &importance, work)
                    }
                    Err(error) => self.scoring_failed(request, &error),
                }
            }
            Err(error) => self.scoring_failed(request, &error),
        }
    }

    fn begin_sparse(
        &mut self,
        request: &GenerationRequest,
        cache: &SequenceCache,
        model: &dyn Model,
        plan: SparsePlan,
        importance: &[f32],
        work: Option<OwnWork>,
    ) -> Progress {
        let selection = select(importance, plan.keep_ratio, request.protected_tail);
        let prompt = request.prompt_tokens.len();
        let sparse = SparsePrefill::new(
            plan.window_start,
            prompt,
            &selection,
            model.sliding_window(),
        );
        let sparse = match work {
            Some(work) => sparse.with_work(work),
            None => sparse,
        };
        match cache.mark() {
            Ok(mark) => self.dense_end = Some(mark),
            Err(error) => return self.scoring_failed(request, &error.into()),
        }
        tracing::info!(
            scored = importance.len(),
            kept = sparse.total(),
            seconds = self.report.scoring.as_secs_f64(),
            "prompt tokens ranked"
        );
        self.report.kept_tokens = sparse.total();
        let total = sparse.total();
        self.stage = Stage::Sparse(sparse);
        Progress::More {
            phase: PrefillPhase::Sparse,
            done: 0,
            total,
        }
    }

    fn sparse(
        &mut self,
        request: &GenerationRequest,
        cache: &mut SequenceCache,
        resources: &mut Resources<'_>,
        speculator: &mut Option<Speculator>,
        mut sparse: SparsePrefill,
    ) -> Progress {
        let range = sparse.next_chunk(resources.chunk, RESUME_MARGIN);
        let before_last = range.end == sparse.total();
        let outcome = guarded(|| {
            if before_last {
                self.marks.push(cache.mark()?);
            }
            let prompt = &request.prompt_tokens;
            let hidden = speculator.is_some();
            let output = sparse.step(resources.model, cache, prompt, range.clone(), hidden)?;
            let kept = &sparse.kept()[range.clone()];
            let tokens: Vec<u32> = kept.iter().map(|at| prompt[*at as usize]).collect();
            prime(
                speculator,
                resources.model,
                output.hidden.as_ref(),
                &tokens,
                kept,
            );
            Ok(match output.logits {
                Some(logits) => Some(logits.flatten_all()?.to_vec1::<f32>()?),
                None => None,
            })
        });
        match outcome {
            Ok(logits) => {
                self.computed += range.len();
                match logits {
                    Some(logits) => {
                        self.done = request.prompt_tokens.len();
                        self.report.applied = true;
                        self.marks.extend(cache.mark().ok());
                        Progress::Ready(logits)
                    }
                    None => {
                        let (done, total) = (sparse.done(), sparse.total());
                        self.stage = Stage::Sparse(sparse);
                        Progress::More {
                            phase: PrefillPhase::Sparse,
                            done,
                            total,
                        }
                    }
                }
            }
            Err(error) => self.sparse_failed(request, cache, &error),
        }
    }

    /// Back to the end of the dense part; if even that cannot be had, to the beginning.
    fn sparse_failed(
        &mut self,
        request: &GenerationRequest,
        cache: &mut SequenceCache,
        error: &EngineError,
    ) -> Progress {
        tracing::warn!(%error, "the sparse prefill failed; the prompt is read whole");
        self.report.reason = Some(SkipReason::SparsePrefillFailed);
        self.report.kept_tokens = 0;
        self.marks.clear();
        let rewound = self
            .dense_end
            .take()
            .is_some_and(|mark| cache.rewind(&mark).is_ok());
        if !rewound {
            cache.clear();
            self.report.cached_tokens = 0;
        }
        self.done = cache.next_position() as usize;
        self.go_dense(request.prompt_tokens.len())
    }

    /// Shares the dense tokens of an answer in progress, `tokens` long with its prompt. Called whenever a block may be complete.
    pub(super) fn publish_answer(
        &mut self,
        tokens: &[u32],
        cache: &SequenceCache,
        stores: &mut Stores,
        finished: bool,
    ) {
        if self.report.applied {
            return;
        }
        if let Err(error) = self.writer.advance(&mut stores.prefix, tokens, cache) {
            tracing::warn!(%error, "an answer could not be kept in the prefix cache");
        }
        if finished {
            self.writer.keep_states(&mut stores.prefix);
        }
    }

    /// The session that a sparse answer leaves behind; `tokens`: prompt and answer.
    pub(super) fn into_session(
        self,
        model: &str,
        tokens: Vec<u32>,
        cache: SequenceCache,
    ) -> SparseSession {
        SparseSession {
            model: model.to_string(),
            least: self.report.prompt_tokens.saturating_sub(RESUME_MARGIN),
            tokens,
            cache,
            marks: self.marks,
        }
    }
}

/// Fills `cache` from the prefix cache; gives the number of tokens found.
fn restore_prefix(
    request: &GenerationRequest,
    info: &ModelInfo,
    cache: &mut SequenceCache,
    stores: &mut Stores,
    static_prefix: usize,
) -> usize {
    let hit = stores.prefix.lookup(
        prefix_root(&info.key),
        &request.prompt_tokens,
        static_prefix,
        cache.has_recurrent_layers(),
    );
    let Some(hit) = hit else { return 0 };
    match cache.restore_dense(&hit.blocks, hit.tokens, hit.states.as_ref()) {
        Ok(()) => hit.tokens,
        Err(error) => {
            tracing::warn!(%error, "a cached prefix could not be restored; it is computed again");
            0
        }
    }
}

/// The sparse cache of the conversation's last turn, if this prompt goes on from it.
fn resume(
    request: &GenerationRequest,
    info: &ModelInfo,
    stores: &mut Stores,
) -> Option<(SequenceCache, usize)> {
    let settings = &request.specprefill;
    if !settings.reuse_sessions {
        return None;
    }
    match stores
        .sessions
        .resume(&info.key, &request.prompt_tokens, settings.threshold)
    {
        Ok(session) => session.map(|session| (session.cache, session.tokens)),
        Err(error) => {
            tracing::warn!(%error, "a sparse session could not be continued");
            None
        }
    }
}

/// Shows a pass to the MTP head. If that fails, the answer is decoded without it.
fn prime(
    speculator: &mut Option<Speculator>,
    model: &dyn Model,
    hidden: Option<&candle_core::Tensor>,
    tokens: &[u32],
    positions: &[u32],
) {
    let Some(active) = speculator else { return };
    let outcome = guarded(|| match (model.mtp().head(), hidden) {
        (Some(head), Some(hidden)) => active.observe(head, hidden, tokens, positions),
        _ => Err(EngineError::Compute("there are no hidden states".into())),
    });
    if let Err(error) = outcome {
        tracing::warn!(%error, "the MTP head failed; the answer is decoded without it");
        *speculator = None;
    }
}

fn draft(draft: Option<&dyn Model>) -> Result<&dyn Model, EngineError> {
    draft.ok_or_else(|| EngineError::Compute("the draft model is not loaded".into()))
}

/// Runs something that may fail without ending the request: a panic becomes an error.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(EngineError::Compute(
            "an internal error; the log has the details".into(),
        ))
    })
}

#[cfg(test)]
mod tests;

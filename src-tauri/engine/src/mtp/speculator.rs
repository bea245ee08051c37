//! One sequence's speculation: what the head has seen, what it drafts, and what the model says to it.

use std::time::{Duration, Instant};

use candle_core::Tensor;

use super::{
    HeadCache, MtpHead,
    accept::{Drafts, verify},
    controller::{CycleReport, Decision, DepthController, ModelMemory},
    draft_head::DraftHead,
};
use crate::{
    cache::SequenceCache,
    error::EngineError,
    models::{ForwardInput, LogitRows, Model},
    positions::Positions,
    request::{MAX_MTP_DEPTH, MtpReport, MtpSettings},
    sampling::{Sampled, Sampler},
};

/// Pairs that wait to be folded, at most: while speculation is parked they gather.
const MOST_WAITING: usize = 512;

/// A pass's limits.
#[derive(Debug, Clone, Copy)]
pub struct CycleLimits<'a> {
    /// Tokens that may be added, at least one.
    pub most: usize,
    /// Tokens after which nothing follows.
    pub stop_ids: &'a [u32],
    /// Whether another request had a part in the time since the last cycle.
    pub contended: bool,
}

/// The state of speculation in one sequence.
#[derive(Debug)]
pub struct Speculator {
    settings: MtpSettings,
    controller: DepthController,
    cache: HeadCache,
    /// Pairs that are not folded yet: hidden states, the tokens after them, and these tokens' positions.
    hidden: Vec<Tensor>,
    next: Vec<u32>,
    positions: Vec<u32>,
    /// The newest token's hidden state and position: the token after it is not known yet.
    newest: Option<(Tensor, u32)>,
    drafts: Drafts,
    draft_head: Option<DraftHead>,
    backbone: Duration,
    head: Duration,
}

impl Speculator {
    /// For one sequence. `memory`: what the model's last request learned. `draft_head`: the part of the vocabulary to draft from; `None`
    /// for all of it.
    pub fn new(
        head: &MtpHead,
        settings: MtpSettings,
        memory: Option<&ModelMemory>,
        draft_head: Option<DraftHead>,
    ) -> Self {
        let controller = match settings.fixed_depth {
            Some(depth) => DepthController::fixed(depth),
            None => DepthController::adaptive(settings.max_depth, memory),
        };
        Self {
            settings,
            controller,
            cache: head.new_cache(),
            hidden: Vec::new(),
            next: Vec::new(),
            positions: Vec::new(),
            newest: None,
            drafts: Drafts::default(),
            draft_head,
            backbone: Duration::ZERO,
            head: Duration::ZERO,
        }
    }

    /// Takes in a pass over known tokens at ascending `positions`, with its `hidden [tokens, hidden size]`. Only tokens that are
    /// neighbours in the true text make a pair: after a sparse prefill the head sees no false ones.
    ///
    /// # Errors
    /// When the head fails.
    pub fn observe(
        &mut self,
        head: &MtpHead,
        hidden: &Tensor,
        tokens: &[u32],
        positions: &[u32],
    ) -> Result<(), EngineError> {
        let (Some(token), Some(position)) = (tokens.first(), positions.first()) else {
            return Ok(());
        };
        self.pair_newest(*token, *position);
        let mut start = 0;
        for end in 1..=tokens.len() {
            // A run of neighbours ends here.
            if end == tokens.len() || positions[end] != positions[end - 1] + 1 {
                if end - start > 1 {
                    self.hidden.push(hidden.narrow(0, start, end - 1 - start)?);
                    self.next.extend_from_slice(&tokens[start + 1..end]);
                    self.positions.extend_from_slice(&positions[start + 1..end]);
                }
                start = end;
            }
        }
        let last = tokens.len() - 1;
        self.newest = Some((hidden.narrow(0, last, 1)?, positions[last]));
        if self.next.len() >= MOST_WAITING {
            self.fold(head)?;
        }
        Ok(())
    }

    /// The token after the newest hidden state is known now.
    fn pair_newest(&mut self, token: u32, position: u32) {
        if let Some((hidden, at)) = self.newest.take()
            && at + 1 == position
        {
            self.hidden.push(hidden);
            self.next.push(token);
            self.positions.push(position);
        }
    }

    /// Folds what waits; gives the head's hidden state of the last pair, if there was one.
    fn fold(&mut self, head: &MtpHead) -> Result<Option<Tensor>, EngineError> {
        if self.next.is_empty() {
            return Ok(None);
        }
        let hidden = match self.hidden.as_slice() {
            [one] => one.clone(),
            many => Tensor::cat(many, 0)?,
        };
        let positions = Positions::selected(std::mem::take(&mut self.positions))
            .map_err(EngineError::Compute)?;
        let next = std::mem::take(&mut self.next);
        self.hidden.clear();
        head.fold(&hidden, &next, &positions, &mut self.cache)
            .map(Some)
    }

    /// What to do next: how many tokens to draft, or `None` for a plain step.
    pub fn depth(&self, most: usize) -> Option<usize> {
        match self.controller.next() {
            // As many rows as there may be tokens: one of them is no draft's.
            Decision::Speculate { depth } if most > 1 => Some(depth.min(most - 1)),
            _ => None,
        }
    }

    /// Takes in a plain step: `last` at `position` was run and gave `hidden [1, hidden size]`.
    ///
    /// # Errors
    /// When the head fails.
    pub fn plain_step(
        &mut self,
        head: &MtpHead,
        last: u32,
        position: u32,
        hidden: &Tensor,
        elapsed: Duration,
        contended: bool,
    ) -> Result<(), EngineError> {
        self.observe(head, hidden, &[last], &[position])?;
        self.controller.report_plain(1, elapsed, contended);
        Ok(())
    }

    /// One cycle: drafts up to `depth` tokens after `last`, which stands at `position` and is not in `cache` yet, runs them all through
    /// the model, and gives the tokens that follow. `cache` then holds `last` and all of these but the newest. The caller may take fewer
    /// of them into the answer only if it ends there.
    ///
    /// # Errors
    /// When the head, the model or the sampler fails; `cache` is then as it was.
    #[allow(clippy::too_many_arguments)]
    pub fn cycle(
        &mut self,
        model: &dyn Model,
        head: &MtpHead,
        sampler: &mut Sampler,
        cache: &mut SequenceCache,
        (last, position): (u32, u32),
        depth: usize,
        limits: CycleLimits<'_>,
    ) -> Result<Vec<Sampled>, EngineError> {
        let started = Instant::now();
        // After a parked stretch the head first catches up: work done only once.
        let catches_up = self.next.len() > 2 * MAX_MTP_DEPTH;
        self.draft(head, sampler, last, position, depth, limits.stop_ids)?;
        let drafted = started.elapsed();
        let mut tokens = vec![last];
        tokens.extend_from_slice(self.drafts.tokens());
        let positions = Positions::contiguous(position, tokens.len());
        let input = ForwardInput::new(&tokens, &positions, LogitRows::All)
            .with_hidden()
            .replayable();
        let mut output = model.forward(input, cache)?;
        let hidden = output
            .hidden
            .take()
            .ok_or_else(|| EngineError::Compute("the model returned no hidden states".into()))?;
        let mut logits = output.logits()?.flatten_all()?.to_vec1::<f32>()?;
        let verified = started.elapsed();
        let verdict = verify(sampler, &self.drafts, &mut logits, limits.most, |sampled| {
            !limits.stop_ids.contains(&sampled.token)
        })
        .map_err(|e| EngineError::Compute(e.to_string()));
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(error) => {
                cache.rollback(0)?;
                return Err(error);
            }
        };
        let kept = verdict.tokens.len();
        cache.rollback(kept)?;
        let positions = positions.order();
        self.observe(
            head,
            &hidden.narrow(0, 0, kept)?,
            &tokens[..kept],
            &positions[..kept],
        )?;
        if let Some(draft_head) = &mut self.draft_head {
            for sampled in &verdict.tokens {
                draft_head.observe(sampled.token);
            }
        }
        self.head += drafted;
        self.backbone += verified.saturating_sub(drafted);
        self.controller.report(CycleReport {
            depth,
            drafted: self.drafts.len(),
            accepted: verdict.accepted,
            cut: verdict.was_cut(self.drafts.len()),
            elapsed: started.elapsed(),
            contended: limits.contended || catches_up,
        });
        Ok(verdict.tokens)
    }

    fn draft(
        &mut self,
        head: &MtpHead,
        sampler: &mut Sampler,
        last: u32,
        position: u32,
        depth: usize,
        stop_ids: &[u32],
    ) -> Result<(), EngineError> {
        self.drafts.clear(sampler);
        self.pair_newest(last, position);
        let Some(mut state) = self.fold(head)? else {
            // Nothing that the head could go on from, at a sequence's very beginning: the pass is a plain one.
            return Ok(());
        };
        let committed = self.cache.token_count()?;
        for offset in 0..depth {
            let token = self.propose(head, sampler, &state)?;
            if stop_ids.contains(&token) || offset + 1 == depth {
                break;
            }
            let at = Positions::contiguous(position + 1 + offset as u32, 1);
            state = head.fold(&state, &[token], &at, &mut self.cache)?;
        }
        // Drafts are nobody's text yet: what was folded of them is folded again from the model's own hidden states.
        self.cache.trim(committed)?;
        Ok(())
    }

    fn propose(
        &mut self,
        head: &MtpHead,
        sampler: &mut Sampler,
        state: &Tensor,
    ) -> Result<u32, EngineError> {
        let drafts = &mut self.drafts;
        let proposed = match &mut self.draft_head {
            Some(draft_head) if !draft_head.wants_whole() => {
                let (ids, logits) = draft_head.logits(state)?;
                drafts.propose(sampler, Some(ids), logits)
            }
            _ => {
                let mut logits = head.logits(state)?.flatten_all()?.to_vec1::<f32>()?;
                drafts.propose(sampler, None, &mut logits)
            }
        };
        proposed.map_err(|e| EngineError::Compute(e.to_string()))
    }

    /// What the next request of this model should know.
    pub fn memory(&self) -> Option<ModelMemory> {
        self.controller.memory()
    }

    /// Bytes of the head's cache.
    pub fn bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// What was done so far.
    pub fn report(&self) -> MtpReport {
        let statistics = self.controller.statistics();
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        MtpReport {
            applied: statistics.cycles > 0,
            reason: (statistics.cycles == 0).then_some(if statistics.parks > 0 {
                "parked"
            } else {
                "no_cycle"
            }),
            mode: self.settings.mode,
            cycles: count(statistics.cycles),
            drafted: count(statistics.drafted),
            accepted: count(statistics.accepted),
            depth_histogram: statistics
                .depth_histogram
                .iter()
                .map(|n| count(*n))
                .collect(),
            parks: count(statistics.parks),
            backbone: self.backbone,
            head: self.head,
        }
    }
}

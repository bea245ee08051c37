//! Ranking by a draft model: it reads the window, writes a few tokens, and what these look at is what matters.

use crate::{
    cache::{BLOCK_TOKENS, PrefixCache, PrefixRoot, PrefixWriter, SequenceCache},
    error::EngineError,
    models::{ForwardInput, LayerQueries, LogitRows, Model},
    positions::Positions,
    sampling::{Sampler, SamplingParams},
    specprefill::LOOK_AHEAD_STEPS,
};

/// Width of the moving average over a prompt's attention weights: one token is seldom the whole of what matters.
pub const POOL: usize = 13;

/// How look-ahead tokens are chosen: neither the one most likely text nor any.
const LOOK_AHEAD_TEMPERATURE: f32 = 0.6;
const LOOK_AHEAD_TOP_P: f32 = 0.95;

/// What a step of scoring came to.
#[derive(Debug)]
pub enum Scored {
    /// More steps are needed; so many tokens of the window have been read.
    More(usize),
    /// The importance of every token of the window.
    Done(Vec<f32>),
}

/// One scoring, a chunk of the window or one look-ahead token a step.
#[derive(Debug)]
pub struct DraftScorer {
    window: Vec<u32>,
    cache: SequenceCache,
    writer: PrefixWriter,
    sampler: Sampler,
    done: usize,
    /// Tokens of the window that the draft's prefix cache served.
    restored: usize,
    next: Option<u32>,
    look_ahead: Vec<Vec<LayerQueries>>,
}

impl DraftScorer {
    /// Prepares to rank `window`, the prompt's tokens from index `origin` on. The draft reads them as a prompt of their own. What it
    /// computes is found again in `prefix` by a later window that begins at the same place: its states depend on where it began.
    ///
    /// # Errors
    /// When the window is empty or cached blocks cannot be restored.
    pub fn new(
        draft: &dyn Model,
        draft_key: &str,
        prefix: &mut PrefixCache,
        window: Vec<u32>,
        origin: usize,
        seed: u64,
    ) -> Result<Self, EngineError> {
        let params = SamplingParams {
            temperature: LOOK_AHEAD_TEMPERATURE,
            top_p: LOOK_AHEAD_TOP_P,
            seed: Some(seed),
            ..SamplingParams::greedy()
        };
        let sampler = Sampler::new(params, draft.vocab_size(), &window)
            .map_err(|e| EngineError::Compute(e.to_string()))?;
        let root = PrefixRoot::new(draft_key, &format!("draft window at {origin}"));
        let mut cache = draft.new_cache();
        let hit = prefix.lookup(root, &window, 0, cache.has_recurrent_layers());
        let restored = match &hit {
            Some(hit) => {
                cache.restore_dense(&hit.blocks, hit.tokens, hit.states.as_ref())?;
                hit.tokens
            }
            None => 0,
        };
        cache.reserve(window.len() + LOOK_AHEAD_STEPS)?;
        Ok(Self {
            window,
            cache,
            writer: PrefixWriter::new(root),
            sampler,
            done: restored,
            restored,
            next: None,
            look_ahead: Vec::new(),
        })
    }

    /// Tokens of the window that did not have to be read.
    pub fn restored(&self) -> usize {
        self.restored
    }

    /// Takes one step: at most `chunk` tokens.
    ///
    /// # Errors
    /// When the draft or the sampler fails, or the draft has no attention that could rank tokens.
    pub fn step(
        &mut self,
        draft: &dyn Model,
        prefix: &mut PrefixCache,
        chunk: usize,
    ) -> Result<Scored, EngineError> {
        if self.done < self.window.len() {
            self.read(draft, prefix, chunk)?;
            return Ok(Scored::More(self.done));
        }
        if self.look_ahead.len() < LOOK_AHEAD_STEPS {
            self.look_further(draft)?;
            if self.look_ahead.len() < LOOK_AHEAD_STEPS {
                return Ok(Scored::More(self.done));
            }
        }
        self.importance().map(Scored::Done)
    }

    fn read(
        &mut self,
        draft: &dyn Model,
        prefix: &mut PrefixCache,
        chunk: usize,
    ) -> Result<(), EngineError> {
        let total = self.window.len();
        let mut end = total.min(self.done + chunk.max(1));
        // A hybrid draft can resume only where its state was kept: at the last block boundary that leaves a token to run.
        let boundary = (total - 1) / BLOCK_TOKENS * BLOCK_TOKENS;
        if self.cache.has_recurrent_layers() && self.done < boundary && boundary < end {
            end = boundary;
        }
        let tokens = &self.window[self.done..end];
        let positions = Positions::contiguous(self.done as u32, tokens.len());
        let rows = if end == total {
            LogitRows::Last
        } else {
            LogitRows::None
        };
        let output = draft.forward(ForwardInput::new(tokens, &positions, rows), &mut self.cache)?;
        self.done = end;
        // Before the look-ahead, whose tokens are nobody's prompt.
        self.writer.advance(prefix, &self.window, &self.cache)?;
        if end == boundary {
            self.writer.keep_states(prefix);
        }
        if end == total {
            self.choose(output.logits()?.flatten_all()?.to_vec1()?)?;
        }
        Ok(())
    }

    fn choose(&mut self, mut logits: Vec<f32>) -> Result<(), EngineError> {
        let sampled = self
            .sampler
            .sample(&mut logits)
            .map_err(|e| EngineError::Compute(e.to_string()))?;
        self.next = Some(sampled.token);
        Ok(())
    }

    fn look_further(&mut self, draft: &dyn Model) -> Result<(), EngineError> {
        let token = self
            .next
            .ok_or_else(|| EngineError::Compute("the look-ahead has no token".into()))?;
        let positions = Positions::contiguous(self.cache.next_position(), 1);
        let tokens = [token];
        let input = ForwardInput::new(&tokens, &positions, LogitRows::Last).with_queries();
        let mut output = draft.forward(input, &mut self.cache)?;
        self.look_ahead.push(std::mem::take(&mut output.queries));
        self.choose(output.logits()?.flatten_all()?.to_vec1()?)
    }

    /// For each look-ahead token the maximum over layers and heads of the smoothed attention weights, then the mean over these tokens
    /// (section 3.2 of the paper).
    fn importance(&self) -> Result<Vec<f32>, EngineError> {
        let layers = self.look_ahead.first().map_or(0, Vec::len);
        if layers == 0 {
            return Err(EngineError::Compute(
                "the draft model has no attention layer that sees the whole window".into(),
            ));
        }
        let mut scores = vec![0f32; LOOK_AHEAD_STEPS * self.window.len()];
        for index in 0..layers {
            let rows: Vec<_> = self
                .look_ahead
                .iter()
                .filter_map(|step| step.get(index).map(|layer| layer.queries.clone()))
                .collect();
            let layer = self.look_ahead[0][index].layer;
            rank(
                &candle_core::Tensor::cat(&rows, 0)?,
                &self.cache.keys(layer)?,
                &mut scores,
            )?;
        }
        Ok(mean_rows(&scores, self.window.len()))
    }
}

/// Raises `scores` by one layer's attention: `queries [rows, heads, head_dim]` over the first keys of `keys [kv_heads, tokens, head_dim]`.
pub(super) fn rank(
    queries: &candle_core::Tensor,
    keys: &candle_core::Tensor,
    scores: &mut [f32],
) -> Result<(), EngineError> {
    let scale = 1.0 / (queries.dim(2)? as f32).sqrt();
    headstart_kernels::attention_importance(queries, keys, scale, POOL, scores)?;
    Ok(())
}

/// The mean over the rows of `scores`, row-major of width `len`.
pub(super) fn mean_rows(scores: &[f32], len: usize) -> Vec<f32> {
    let rows = (scores.len() / len.max(1)).max(1) as f32;
    let mut mean = vec![0f32; len];
    for row in scores.chunks_exact(len) {
        for (mean, score) in mean.iter_mut().zip(row) {
            *mean += score / rows;
        }
    }
    mean
}

//! Ranking by the target itself: its first layers read the whole window, the last tokens' attention ranks all others, and what these
//! layers computed for the kept tokens is not computed again.

use candle_core::Tensor;

use super::{
    score::{Scored, mean_rows, rank},
    session::RESUME_MARGIN,
};
use crate::{
    cache::{RecurrentStates, SequenceCache},
    error::EngineError,
    models::{ForwardInput, ForwardOutput, LogitRows, Model, RanLayers},
    positions::Positions,
};

/// Tokens at the window's end whose queries rank the others: the question, beside the template's words.
const TAIL_QUERIES: usize = 32;

/// One scoring by the target's own first layers, a chunk of the window a step.
#[derive(Debug)]
pub struct OwnScorer {
    window: Vec<u32>,
    /// Index of the window's first token in the prompt.
    start: usize,
    done: usize,
    layers: usize,
    /// The first layers, with everything up to the end of what was read.
    cache: SequenceCache,
    /// After the first layers, a tensor `[tokens, hidden]` a step.
    hidden: Vec<Tensor>,
    /// Queries of each layer, `[tokens, heads, head_dim]` a step: those of the last tokens.
    queries: Vec<(usize, Vec<Tensor>)>,
    /// States before the window's last [`RESUME_MARGIN`] tokens: where a session may be taken up again.
    margin_states: Option<RecurrentStates>,
}

/// What the first layers computed for the whole window.
#[derive(Debug)]
pub struct OwnWork {
    start: usize,
    layers: usize,
    cache: SequenceCache,
    hidden: Tensor,
    margin_states: Option<RecurrentStates>,
}

impl OwnScorer {
    /// Prepares to rank `window`, the tokens after those that `cache` holds.
    ///
    /// # Errors
    /// When the model has no layers for it, or memory ran out.
    pub fn new(
        model: &dyn Model,
        cache: &SequenceCache,
        window: Vec<u32>,
    ) -> Result<Self, EngineError> {
        let layers = model.ranking_layers().ok_or_else(|| {
            EngineError::Compute(
                "the model has no early attention layer that sees everything".into(),
            )
        })?;
        let mut cache = model.copy_first_layers(layers, cache)?;
        let start = cache.next_position() as usize;
        cache.reserve(start + window.len())?;
        Ok(Self {
            window,
            start,
            done: 0,
            layers,
            cache,
            hidden: Vec::new(),
            queries: Vec::new(),
            margin_states: None,
        })
    }

    /// Takes one step: at most `chunk` tokens.
    ///
    /// # Errors
    /// When the model fails.
    pub fn step(&mut self, model: &dyn Model, chunk: usize) -> Result<Scored, EngineError> {
        let total = self.window.len();
        if self.done < total {
            // The last tokens are steps of their own: only their queries are wanted, and the states before the margin.
            let tail = total.saturating_sub(TAIL_QUERIES);
            let margin = total.saturating_sub(RESUME_MARGIN);
            let mut end = total.min(self.done + chunk.max(1));
            for place in [margin, tail] {
                if self.done < place && place < end {
                    end = place;
                }
            }
            let tokens = &self.window[self.done..end];
            let positions = Positions::contiguous((self.start + self.done) as u32, tokens.len());
            let mut input = ForwardInput::new(tokens, &positions, LogitRows::None);
            input.queries = self.done >= tail;
            let output = model.forward_first(self.layers, input, &mut self.cache)?;
            self.hidden.push(output.hidden);
            for layer in output.queries {
                match self
                    .queries
                    .iter_mut()
                    .find(|(index, _)| *index == layer.layer)
                {
                    Some((_, queries)) => queries.push(layer.queries),
                    None => self.queries.push((layer.layer, vec![layer.queries])),
                }
            }
            self.done = end;
            if end == margin {
                self.margin_states = Some(self.cache.recurrent_states());
            }
            if self.done < total {
                return Ok(Scored::More(self.done));
            }
        }
        self.importance().map(Scored::Done)
    }

    /// Importance of every token; the last ones, which ask, get none: they are kept anyway.
    fn importance(&self) -> Result<Vec<f32>, EngineError> {
        let total = self.window.len();
        let asked = total.saturating_sub(TAIL_QUERIES);
        if asked == 0 {
            return Ok(vec![0.0; total]);
        }
        let mut scores = vec![0f32; TAIL_QUERIES * asked];
        for (layer, queries) in &self.queries {
            let keys = self.cache.keys(*layer)?;
            let window = keys.narrow(1, self.start, total)?;
            rank(&Tensor::cat(queries, 0)?, &window, &mut scores)?;
        }
        let mut importance = mean_rows(&scores, asked);
        importance.resize(total, 0.0);
        Ok(importance)
    }

    /// What was computed on the way.
    ///
    /// # Errors
    /// When memory ran out.
    pub fn into_work(self) -> Result<OwnWork, EngineError> {
        Ok(OwnWork {
            start: self.start,
            layers: self.layers,
            hidden: Tensor::cat(&self.hidden, 0)?,
            cache: self.cache,
            margin_states: self.margin_states,
        })
    }
}

impl OwnWork {
    /// Runs the kept tokens `kept`, indices into the prompt, through the layers that are left.
    ///
    /// # Errors
    /// When the model fails; the cache is then as it was before.
    pub(super) fn forward(
        &self,
        model: &dyn Model,
        input: ForwardInput<'_>,
        kept: &[u32],
        cache: &mut SequenceCache,
    ) -> Result<ForwardOutput, EngineError> {
        // In the window's cache and hidden states every token has the row of its index.
        let indices: Vec<u32> = kept.iter().map(|index| index - self.start as u32).collect();
        let indices = Tensor::new(indices, self.hidden.device())?;
        // These layers have seen the whole window, not only what is kept; but never what comes after the margin, if that is not read yet.
        let end = self.cache.next_position();
        let before_margin = |last: &u32| last + (RESUME_MARGIN as u32) < end;
        let states = match &self.margin_states {
            Some(states) if kept.last().is_some_and(before_margin) => states.clone(),
            _ => self.cache.recurrent_states(),
        };
        let first = RanLayers {
            layers: self.layers,
            hidden: &self.hidden.index_select(&indices, 0)?,
            rows: &self.cache.gather_rows(kept)?,
            states: &states,
        };
        model.forward_rest(first, input, cache)
    }
}

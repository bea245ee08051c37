//! The sparse prefill: the target reads the selected tokens, each at its own position.

use std::collections::BTreeSet;

use super::own::OwnWork;
use crate::{
    cache::SequenceCache,
    error::EngineError,
    models::{ForwardInput, ForwardOutput, LogitRows, Model},
    positions::Positions,
};

/// Which tokens of a prompt are read after its dense beginning, and how far that has got.
#[derive(Debug)]
pub struct SparsePrefill {
    /// Indices into the prompt, ascending; the last one is the prompt's last token.
    kept: Vec<u32>,
    done: usize,
    /// The self scorer's.
    work: Option<OwnWork>,
}

impl SparsePrefill {
    /// For a prompt of `prompt` tokens of which the first `start` are in the cache. `selection` holds indices counted from `start`. The
    /// kickoff, the prompt's last token, is added if it is missing: its logits begin the answer. So are the last `window` tokens, if a
    /// layer sees only so many: it must see all of these.
    pub fn new(start: usize, prompt: usize, selection: &[u32], window: Option<usize>) -> Self {
        let mut kept: BTreeSet<u32> = selection
            .iter()
            .map(|index| start as u32 + index)
            .filter(|index| (*index as usize) < prompt)
            .collect();
        if let Some(window) = window {
            kept.extend(start.max(prompt.saturating_sub(window)) as u32..prompt as u32);
        }
        kept.extend(prompt.checked_sub(1).map(|last| last as u32));
        Self {
            kept: kept.into_iter().collect(),
            done: 0,
            work: None,
        }
    }

    /// The same, with what the first layers computed already.
    pub fn with_work(self, work: OwnWork) -> Self {
        Self {
            work: Some(work),
            ..self
        }
    }

    /// Tokens to read, in all.
    pub fn total(&self) -> usize {
        self.kept.len()
    }

    /// Tokens read so far.
    pub fn done(&self) -> usize {
        self.done
    }

    /// The indices that are read.
    pub fn kept(&self) -> &[u32] {
        &self.kept
    }

    /// The next step's share of [`SparsePrefill::kept`]: at most `chunk` tokens. The last `margin` tokens are a step of their own, so that
    /// a caller can mark the place before them.
    pub fn next_chunk(&self, chunk: usize, margin: usize) -> std::ops::Range<usize> {
        let total = self.kept.len();
        let mut end = total.min(self.done + chunk.max(1));
        let place = total.saturating_sub(margin);
        if self.done < place && place < end {
            end = place;
        }
        self.done..end
    }

    /// Reads one chunk; the pass gives logits once the last token is read, and hidden states if `hidden` is set.
    ///
    /// # Errors
    /// When the model fails; the cache is then as it was before this step.
    pub fn step(
        &mut self,
        model: &dyn Model,
        cache: &mut SequenceCache,
        prompt: &[u32],
        chunk: std::ops::Range<usize>,
        hidden: bool,
    ) -> Result<ForwardOutput, EngineError> {
        let kept = &self.kept[chunk.clone()];
        let tokens: Vec<u32> = kept.iter().map(|index| prompt[*index as usize]).collect();
        let positions = Positions::selected(kept.to_vec()).map_err(EngineError::Compute)?;
        let rows = if chunk.end == self.kept.len() {
            LogitRows::Last
        } else {
            LogitRows::None
        };
        let mut input = ForwardInput::new(&tokens, &positions, rows);
        input.hidden = hidden;
        let output = match &self.work {
            Some(work) => work.forward(model, input, kept, cache)?,
            None => model.forward(input, cache)?,
        };
        self.done = chunk.end;
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_the_selected_ones_plus_the_start() {
        let sparse = SparsePrefill::new(12_288, 12_400, &[0, 1, 40, 80], None);
        assert_eq!(sparse.kept(), [12_288, 12_289, 12_328, 12_368, 12_399]);
        let sparse = SparsePrefill::new(0, 112, &[5, 110, 111, 300], None);
        assert_eq!(sparse.kept(), [5, 110, 111]);
    }

    #[test]
    fn sliding_layers_get_their_last_window() {
        let sparse = SparsePrefill::new(10, 100, &[0, 3], Some(4));
        assert_eq!(sparse.kept(), [10, 13, 96, 97, 98, 99]);
        // Not what is in the cache already.
        let sparse = SparsePrefill::new(98, 100, &[0], Some(50));
        assert_eq!(sparse.kept(), [98, 99]);
    }

    #[test]
    fn the_margin_is_a_step_of_its_own() {
        let mut sparse = SparsePrefill::new(0, 1000, &(0..600).collect::<Vec<_>>(), None);
        assert_eq!(sparse.total(), 601);
        assert_eq!(sparse.next_chunk(512, 16), 0..512);
        sparse.done = 512;
        assert_eq!(sparse.next_chunk(512, 16), 512..585);
        sparse.done = 585;
        assert_eq!(sparse.next_chunk(512, 16), 585..601);
    }
}

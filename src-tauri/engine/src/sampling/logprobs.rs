//! Log-probabilities of the model's own distribution, before anything was done to it.

use super::{
    filter::{largest, logit_of, token_of},
    softmax::sum_of_exponentials,
};

/// Natural log-probabilities of one position, from the logits as the model gave them (see [`crate::sampling`]).
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The chosen token's. Never more than 0; `-inf` for a token that the model ruled out and another part chose.
    pub logprob: f32,
    /// The most probable tokens, best first, the lowest id first among equals: (token, log-probability). As many as were asked for, fewer when
    /// the model ruled out more. The chosen token is among them only if it is one of the best.
    pub top: Vec<(u32, f32)>,
}

/// What must be remembered of a row before it is edited.
#[derive(Clone, Debug, Default)]
pub(super) struct RawRow {
    max: f32,
    /// `ln(sum(e^(x - max)))`
    log_sum: f64,
    /// Order keys of the best tokens, best first.
    top: Vec<u64>,
    /// (token, the model's logit) of every edited token.
    edited: Vec<(u32, f32)>,
}

impl RawRow {
    /// Reads an unedited row, whose maximum is `max` (finite).
    pub(super) fn read(&mut self, logits: &[f32], max: f32, top: usize) {
        self.max = max;
        self.log_sum = sum_of_exponentials(logits, max).ln();
        largest(logits, top, &mut self.top);
        self.top.sort_unstable_by(|a, b| b.cmp(a));
        self.edited.clear();
    }

    /// Notes that a token's logit, `before`, is about to change.
    pub(super) fn note_edit(&mut self, token: u32, before: f32) {
        self.edited.push((token, before));
    }

    /// The log-probabilities of the row that was read; `logits` is that row after the edits. `None` for a token beyond it.
    pub(super) fn logprobs(&self, logits: &[f32], token: u32) -> Option<TokenLogprobs> {
        let now = *logits.get(token as usize)?;
        let before = self.edited.iter().find(|(edited, _)| *edited == token);
        let raw = before.map_or(now, |&(_, raw)| raw);
        let top = self
            .top
            .iter()
            .map(|&key| (token_of(key), self.logprob(logit_of(key))));
        Some(TokenLogprobs {
            logprob: self.logprob(raw),
            top: top.collect(),
        })
    }

    fn logprob(&self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.max) - self.log_sum) as f32
    }
}

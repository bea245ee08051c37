//! What a sequence has seen, and the penalties and biases that follow from it.

use std::collections::{HashMap, hash_map::Entry};

use super::params::SamplingParams;

/// A distinct token of the prompt or the generated text.
#[derive(Clone, Copy, Debug)]
struct Seen {
    token: u32,
    /// How often it was generated; 0 when it is in the prompt only.
    generated: u32,
}

/// The distinct tokens seen so far. Empty when no penalty is on.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    seen: Vec<Seen>,
    /// From a token to its place in `seen`. Only looked up, never walked: its order is arbitrary.
    places: HashMap<u32, usize>,
    /// Drafted tokens that are counted until they are verified, oldest first: (token, whether it was not seen before).
    drafted: Vec<(u32, bool)>,
    track_prompt: bool,
    track_generated: bool,
}

impl History {
    pub(super) fn new(params: &SamplingParams, prompt: &[u32]) -> Self {
        let track_prompt = params.repetition_penalty != 1.0;
        let counted = params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
        let mut history = Self {
            track_prompt,
            track_generated: track_prompt || counted,
            ..Self::default()
        };
        if track_prompt {
            for &token in prompt {
                history.entry(token);
            }
        }
        history
    }

    /// Counts a generated token, after forgetting the drafted ones.
    pub(super) fn record(&mut self, token: u32) {
        self.forget_drafted();
        if self.track_generated {
            let seen = self.entry(token);
            seen.generated = seen.generated.saturating_add(1);
        }
    }

    /// Counts a drafted token until [`Self::forget_drafted`].
    pub(super) fn record_drafted(&mut self, token: u32) {
        if self.track_generated {
            let known = self.seen.len();
            let seen = self.entry(token);
            seen.generated = seen.generated.saturating_add(1);
            self.drafted.push((token, self.seen.len() > known));
        }
    }

    /// Takes every drafted token out again.
    pub(super) fn forget_drafted(&mut self) {
        // The latest first, so that a token which is not seen any more is the last of `seen`.
        while let Some((token, new)) = self.drafted.pop() {
            if new {
                self.seen.pop();
                self.places.remove(&token);
            } else {
                let seen = self.entry(token);
                seen.generated = seen.generated.saturating_sub(1);
            }
        }
    }

    fn entry(&mut self, token: u32) -> &mut Seen {
        let place = match self.places.entry(token) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(vacant) => {
                self.seen.push(Seen {
                    token,
                    generated: 0,
                });
                *vacant.insert(self.seen.len() - 1)
            }
        };
        &mut self.seen[place]
    }

    /// Whether [`Self::edit`] would change any logit.
    pub(super) fn edits_anything(&self, params: &SamplingParams) -> bool {
        !params.logit_bias.is_empty() || !self.seen.is_empty()
    }

    /// Adds the biases, then the repetition penalty, then the presence and frequency penalties. `changed` is told of every
    /// (token, logit before the change), in order; a token can come twice, and its first entry is the model's logit. Tokens beyond
    /// the row have no logit and are passed over.
    pub(super) fn edit(
        &self,
        logits: &mut [f32],
        params: &SamplingParams,
        changed: impl FnMut(u32, f32),
    ) {
        self.edit_at(logits, params, |token| Some(token as usize), changed);
    }

    /// [`Self::edit`] of a row that may hold other tokens than the first ones: `place` says where a token's logit is.
    pub(super) fn edit_at(
        &self,
        logits: &mut [f32],
        params: &SamplingParams,
        place: impl Fn(u32) -> Option<usize>,
        mut changed: impl FnMut(u32, f32),
    ) {
        let mut change = |token: u32, new: &dyn Fn(f32) -> f32| {
            if let Some(logit) = place(token).and_then(|place| logits.get_mut(place)) {
                changed(token, *logit);
                if logit.is_finite() {
                    // A finite logit stays finite: overflow would make the token impossible or certain.
                    *logit = new(*logit).clamp(f32::MIN, f32::MAX);
                }
            }
        };
        for &(token, bias) in &params.logit_bias {
            change(token, &|logit| logit + bias);
        }
        let repetition = params.repetition_penalty;
        for seen in &self.seen {
            let count = seen.generated;
            change(seen.token, &|mut logit| {
                if self.track_prompt {
                    logit = if logit > 0.0 {
                        logit / repetition
                    } else {
                        logit * repetition
                    };
                    logit = logit.clamp(f32::MIN, f32::MAX);
                }
                if count > 0 {
                    logit -= params.presence_penalty + params.frequency_penalty * count as f32;
                }
                logit
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(history: &History, params: &SamplingParams, row: &[f32]) -> Vec<f32> {
        let mut row = row.to_vec();
        history.edit(&mut row, params, |_, _| {});
        row
    }

    #[test]
    fn repetition_penalty_covers_prompt_and_generated_tokens_once_each() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            ..Default::default()
        };
        let mut history = History::new(&params, &[0, 0, 1]);
        history.record(2);
        history.record(2);
        history.record(0);
        let row = [4.0, -4.0, 3.0, 5.0, -5.0];
        assert_eq!(edited(&history, &params, &row), [2.0, -8.0, 1.5, 5.0, -5.0]);
    }

    #[test]
    fn presence_and_frequency_penalties_cover_generated_tokens_only() {
        let params = SamplingParams {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..Default::default()
        };
        let mut history = History::new(&params, &[0, 1]);
        for token in [1, 2, 2, 2] {
            history.record(token);
        }
        assert_eq!(
            edited(&history, &params, &[1.0, 1.0, 1.0, 1.0]),
            [1.0, 0.25, -0.25, 1.0]
        );
    }

    #[test]
    fn the_order_is_bias_then_repetition_then_presence() {
        let params = SamplingParams {
            logit_bias: vec![(0, 3.0), (0, 2.0)],
            repetition_penalty: 2.0,
            presence_penalty: 1.0,
            ..Default::default()
        };
        let mut history = History::new(&params, &[]);
        history.record(0);
        // (1 + 5) / 2 - 1
        assert_eq!(edited(&history, &params, &[1.0]), [2.0]);
        // Adding after dividing would have left a negative logit multiplied: (-4 + 5) / 2 - 1
        assert_eq!(edited(&history, &params, &[-4.0]), [-0.5]);
    }

    #[test]
    fn infinities_and_overflow_keep_their_meaning() {
        let params = SamplingParams {
            repetition_penalty: 10.0,
            logit_bias: vec![(0, 100.0)],
            ..Default::default()
        };
        let history = History::new(&params, &[0, 1, 2]);
        let row = [f32::NEG_INFINITY, f32::MIN, f32::MAX];
        assert_eq!(
            edited(&history, &params, &row),
            [f32::NEG_INFINITY, f32::MIN, f32::MAX / 10.0]
        );
    }

    #[test]
    fn tokens_beyond_the_row_are_passed_over() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            ..Default::default()
        };
        let history = History::new(&params, &[1, 7]);
        assert_eq!(edited(&history, &params, &[2.0, 2.0]), [2.0, 1.0]);
    }

    #[test]
    fn nothing_is_kept_when_no_penalty_is_on() {
        let params = SamplingParams::default();
        let mut history = History::new(&params, &[1, 2, 3]);
        history.record(4);
        assert!(history.seen.is_empty() && !history.edits_anything(&params));
    }

    #[test]
    fn forgotten_drafts_leave_no_trace() {
        let params = SamplingParams {
            repetition_penalty: 2.0,
            frequency_penalty: 0.5,
            ..Default::default()
        };
        let row = [4.0, 4.0, 4.0, 4.0];
        let mut history = History::new(&params, &[0]);
        history.record(1);
        let before = edited(&history, &params, &row);
        for token in [2, 1, 2, 0, 3, 2] {
            history.record_drafted(token);
        }
        assert_eq!(edited(&history, &params, &row), [1.5, 1.0, 0.5, 1.5]);
        history.forget_drafted();
        assert_eq!(edited(&history, &params, &row), before);
        assert_eq!((history.seen.len(), history.places.len()), (2, 2));

        history.record_drafted(3);
        history.record(2);
        assert_eq!(edited(&history, &params, &row), [2.0, 1.5, 1.5, 4.0]);
    }

    #[test]
    fn a_row_of_other_tokens_is_edited_where_they_are() {
        let params = SamplingParams {
            logit_bias: vec![(7, 1.0), (5, 9.0)],
            repetition_penalty: 2.0,
            ..Default::default()
        };
        let history = History::new(&params, &[3, 5]);
        let tokens = [1_u32, 3, 7];
        let mut row = [8.0, 8.0, 8.0];
        let place = |token: u32| tokens.binary_search(&token).ok();
        history.edit_at(&mut row, &params, place, |_, _| {});
        assert_eq!(row, [8.0, 4.0, 9.0]);
    }

    #[test]
    fn the_models_own_logit_is_told_first() {
        let params = SamplingParams {
            logit_bias: vec![(1, 1.0)],
            repetition_penalty: 2.0,
            ..Default::default()
        };
        let history = History::new(&params, &[1]);
        let mut told = Vec::new();
        history.edit(&mut [5.0, 3.0], &params, |token, logit| {
            told.push((token, logit))
        });
        assert_eq!(told, [(1, 3.0), (1, 4.0)]);
    }
}

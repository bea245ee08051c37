//! One sequence's sampler.

use super::{
    distribution::FilteredDistribution,
    filter::Filter,
    history::History,
    logprobs::{RawRow, TokenLogprobs},
    params::{InvalidParam, SamplingParams},
    rng::SeededRng,
    softmax::{Weights, first_equal, maximum, pick_index},
};

/// Why no token could be chosen. The sampler is as it was before the call; the logits may have been edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// The row has another length than the vocabulary.
    #[error(
        "the model gave {found} logits, but its vocabulary has {expected} tokens; the model's files do not fit together"
    )]
    WrongLength {
        /// The vocabulary's size.
        expected: usize,
        /// The row's length.
        found: usize,
    },
    /// A logit is not a number.
    #[error(
        "the model produced NaN (the logit of token {token} is not a number), so no token can be chosen; \
         the weights are damaged or a computation overflowed"
    )]
    NotANumber {
        /// The first token with such a logit.
        token: u32,
    },
    /// Every logit is `-inf`.
    #[error("every token was ruled out (all logits are -inf), so none can be chosen")]
    NoCandidate,
}

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token's id.
    pub token: u32,
    /// Present when [`SamplingParams::logprobs`] asks for them.
    pub logprobs: Option<TokenLogprobs>,
}

/// Chooses the tokens of one sequence: its parameters, random numbers, history and scratch memory.
///
/// The order of operations is described in [`crate::sampling`]. In the steady state a call allocates nothing, except the list in
/// [`TokenLogprobs`] where it was asked for; scratch grows to what the rows need and stays.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplingParams,
    vocab: usize,
    rng: SeededRng,
    history: History,
    filter: Filter,
    weights: Weights,
    raw: RawRow,
}

impl Sampler {
    /// A sampler for rows of `vocab` logits, after `prompt_tokens`.
    ///
    /// Prompt tokens that the rows do not cover have no logit and are passed over.
    ///
    /// # Errors
    /// A parameter out of its range, or an empty vocabulary.
    pub fn new(
        params: SamplingParams,
        vocab: usize,
        prompt_tokens: &[u32],
    ) -> Result<Self, InvalidParam> {
        // Token ids are 32 bits wide.
        if vocab == 0 || u32::try_from(vocab).is_err() {
            return Err(InvalidParam {
                name: "vocab",
                value: vocab.to_string(),
                expected: format!("between 1 and {}", u32::MAX),
            });
        }
        params.validate(vocab)?;
        Ok(Self {
            rng: SeededRng::new(params.seed),
            history: History::new(&params, prompt_tokens),
            params,
            vocab,
            filter: Filter::default(),
            weights: Weights::default(),
            raw: RawRow::default(),
        })
    }

    /// The parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The seed in use: the one given, else the one that was taken from the operating system (below 2^53).
    pub fn seed(&self) -> u64 {
        self.rng.seed()
    }

    /// The tokens of the vocabulary, which is the length of a row of logits.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Whether every choice is the plain argmax of the model's row (the lowest token among equals), so that rows of logits need not
    /// be looked at: greedy, with no bias, no penalty and no log-probabilities.
    pub fn takes_argmax(&self) -> bool {
        let params = &self.params;
        params.is_greedy()
            && params.logprobs.is_none()
            && params.logit_bias.is_empty()
            && params.repetition_penalty == 1.0
            && params.presence_penalty == 0.0
            && params.frequency_penalty == 0.0
    }

    /// Chooses a token and records it in the history. `logits` (one per token of the vocabulary) are edited in place.
    ///
    /// # Errors
    /// See [`SampleError`]; nothing is recorded and no random number is used up then.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<Sampled, SampleError> {
        let max = self.prepare(logits)?;
        let token = if self.params.is_greedy() {
            greedy(logits, max)?
        } else {
            let u = self.rng.uniform_f64();
            if self.params.is_filtered(self.vocab) {
                self.filter
                    .apply(logits, max, &self.params, &mut self.weights);
                let kept = &self.filter.kept;
                let place = pick_index(kept.iter().map(|entry| entry.1), u * self.filter.total);
                // The largest logit has weight 1 and passes every filter, so something is kept.
                kept.get(place as usize).ok_or(SampleError::NoCandidate)?.0
            } else {
                self.weights.compute(logits, max, self.params.temperature);
                self.weights.pick(u)
            }
        };
        self.history.record(token);
        Ok(Sampled {
            token,
            logprobs: self.token_logprobs(logits, token),
        })
    }

    /// The distribution that [`Self::sample`] would draw from now, after every penalty and filter; greedy has one token with
    /// probability 1. Uses no random number and records nothing.
    ///
    /// `logits` are edited in place: each row is given once only.
    ///
    /// # Errors
    /// See [`SampleError`].
    pub fn distribution(
        &mut self,
        logits: &mut [f32],
    ) -> Result<FilteredDistribution, SampleError> {
        let mut distribution = FilteredDistribution::default();
        self.distribution_into(logits, &mut distribution)?;
        Ok(distribution)
    }

    /// [`Self::distribution`] into memory that is used again.
    ///
    /// # Errors
    /// See [`SampleError`]; `distribution` is unchanged then.
    pub fn distribution_into(
        &mut self,
        logits: &mut [f32],
        distribution: &mut FilteredDistribution,
    ) -> Result<(), SampleError> {
        let max = self.prepare(logits)?;
        if self.params.is_greedy() {
            distribution.set_certain(greedy(logits, max)?);
        } else if self.params.is_filtered(self.vocab) {
            self.filter
                .apply(logits, max, &self.params, &mut self.weights);
            distribution.set(self.filter.kept.iter().copied(), self.filter.total);
        } else {
            self.weights.compute(logits, max, self.params.temperature);
            let weights = (0..).zip(self.weights.values.iter().copied());
            distribution.set(weights.filter(|entry| entry.1 > 0.0), self.weights.total);
        }
        Ok(())
    }

    /// Draws from a distribution with this sequence's random numbers (one is used up, even when only one token is left). Records
    /// nothing. `None` only for an empty distribution.
    pub fn draw(&mut self, distribution: &FilteredDistribution) -> Option<u32> {
        let u = self.rng.uniform_f64();
        distribution.pick(u)
    }

    /// Records a token that was chosen elsewhere (an accepted draft, a drawn residual), so that penalties count it.
    pub fn accept(&mut self, token: u32) {
        self.history.record(token);
    }

    /// Proposes a token from a draft's `logits`, under the same biases, penalties, filters and temperature as the model's own rows.
    ///
    /// `tokens` are the ids that the row's logits belong to, ascending; `None` for a row over the whole vocabulary. `q`
    /// becomes the distribution that the token was drawn from, which its verification needs. Greedy takes the argmax and draws nothing;
    /// otherwise one random number is used up. Penalties count the token in the drafts that follow it, until
    /// [`Self::forget_drafts`] or any other call that looks at a row or records a token.
    ///
    /// # Errors
    /// See [`SampleError`], whose lengths are those of the row and of `tokens`; nothing is proposed then.
    pub fn draft(
        &mut self,
        tokens: Option<&[u32]>,
        logits: &mut [f32],
        q: &mut FilteredDistribution,
    ) -> Result<u32, SampleError> {
        let token_at = |place: u32| tokens.map_or(place, |tokens| tokens[place as usize]);
        let expected = tokens.map_or(self.vocab, <[u32]>::len);
        let mut max = check_row(logits, expected).map_err(|error| match error {
            SampleError::NotANumber { token } => SampleError::NotANumber {
                token: token_at(token),
            },
            other => other,
        })?;
        if self.history.edits_anything(&self.params) {
            let place = |token: u32| match tokens {
                Some(tokens) => tokens.binary_search(&token).ok(),
                None => Some(token as usize),
            };
            self.history.edit_at(logits, &self.params, place, |_, _| {});
            max = maximum(logits).0;
        }
        let drafted = if self.params.is_greedy() {
            let token = token_at(greedy(logits, max)?);
            q.set_certain(token);
            token
        } else {
            if self.params.is_filtered(logits.len()) {
                self.filter
                    .apply(logits, max, &self.params, &mut self.weights);
                let kept = self.filter.kept.iter();
                q.set(
                    kept.map(|&(place, weight)| (token_at(place), weight)),
                    self.filter.total,
                );
            } else {
                self.weights.compute(logits, max, self.params.temperature);
                let weights = (0..).zip(self.weights.values.iter().copied());
                let possible = weights.filter(|entry| entry.1 > 0.0);
                q.set(
                    possible.map(|(place, weight)| (token_at(place), weight)),
                    self.weights.total,
                );
            }
            self.draw(q).ok_or(SampleError::NoCandidate)?
        };
        self.history.record_drafted(drafted);
        Ok(drafted)
    }

    /// Penalties no longer count the tokens of [`Self::draft`].
    pub fn forget_drafts(&mut self) {
        self.history.forget_drafted();
    }

    /// A uniform random number in [0, 1), for the acceptance test of speculative decoding.
    pub fn uniform(&mut self) -> f32 {
        self.rng.uniform_f32()
    }

    /// The log-probabilities for `token` at the row last given to [`Self::sample`] or [`Self::distribution`]. `logits` is that same row, as
    /// it was left. `None` when the parameters ask for none or the row does not cover the token.
    pub fn token_logprobs(&self, logits: &[f32], token: u32) -> Option<TokenLogprobs> {
        self.params.logprobs?;
        self.raw.logprobs(logits, token)
    }

    /// Checks a row, notes what log-probabilities need, applies biases and penalties. Returns the largest logit, finite.
    fn prepare(&mut self, logits: &mut [f32]) -> Result<f32, SampleError> {
        let mut max = check_row(logits, self.vocab)?;
        self.history.forget_drafted();
        if let Some(top) = self.params.logprobs {
            self.raw.read(logits, max, top);
        }
        if self.history.edits_anything(&self.params) {
            let Self {
                history,
                params,
                raw,
                ..
            } = self;
            let wanted = params.logprobs.is_some();
            history.edit(logits, params, |token, before| {
                if wanted {
                    raw.note_edit(token, before);
                }
            });
            max = maximum(logits).0;
        }
        Ok(max)
    }
}

/// Checks a row and makes `+inf` the largest finite value. Returns the largest logit, finite.
fn check_row(logits: &mut [f32], expected: usize) -> Result<f32, SampleError> {
    if logits.len() != expected {
        return Err(SampleError::WrongLength {
            expected,
            found: logits.len(),
        });
    }
    let (mut max, nan) = maximum(logits);
    if nan {
        let token = logits.iter().position(|logit| logit.is_nan()).unwrap_or(0) as u32;
        return Err(SampleError::NotANumber { token });
    }
    if max == f32::NEG_INFINITY {
        return Err(SampleError::NoCandidate);
    }
    if max == f32::INFINITY {
        max = f32::MAX;
        for logit in logits.iter_mut() {
            *logit = logit.min(max);
        }
    }
    Ok(max)
}

/// The lowest token with the largest logit.
fn greedy(logits: &[f32], max: f32) -> Result<u32, SampleError> {
    first_equal(logits, max)
        .map(|token| token as u32)
        .ok_or(SampleError::NoCandidate)
}

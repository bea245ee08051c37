//! The sampling settings of one request, and the check of their ranges.

use std::fmt::Display;

/// The most alternatives that can be asked for with [`SamplingParams::logprobs`] (the OpenAI API's limit).
pub const MAX_LOGPROBS: usize = 20;

/// A sampling setting outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is {value}, but must be {expected}")]
pub struct InvalidParam {
    /// The setting, as the field of [`SamplingParams`] is called.
    pub name: &'static str,
    /// The value that was given.
    pub value: String,
    /// What would have been accepted, to follow "must be".
    pub expected: String,
}

impl InvalidParam {
    fn new(name: &'static str, value: impl Display, expected: impl Into<String>) -> Self {
        Self {
            name,
            value: value.to_string(),
            expected: expected.into(),
        }
    }
}

/// How the next token is chosen. [`Default`] is the OpenAI API's: temperature 1 and nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy decoding. Finite, not negative.
    pub temperature: f32,
    /// Keeps this many of the largest logits; 0 is off, as is a value of the vocabulary's size or more.
    pub top_k: usize,
    /// Keeps the smallest most-probable set with at least this share of the mass, 0 to 1; 1 is off, 0 keeps one token.
    pub top_p: f32,
    /// Keeps tokens with at least this fraction of the largest probability, 0 to 1; 0 is off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in the prompt or the generated text. Finite, more than 0; 1 is
    /// off.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every generated token, -2 to 2; 0 is off.
    pub presence_penalty: f32,
    /// Subtracted from the logit of every generated token as often as it was generated, -2 to 2; 0 is off.
    pub frequency_penalty: f32,
    /// Added to single logits: (token id, -100 to 100). Entries for the same token add up.
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes the draws repeatable; `None` takes a seed from the operating system (see [`super::Sampler::seed`]).
    pub seed: Option<u64>,
    /// `None`: no log-probabilities. `Some(n)`: those of the chosen token and of the `n` most probable ones, `n` up to
    /// [`MAX_LOGPROBS`].
    pub logprobs: Option<usize>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            logprobs: None,
        }
    }
}

impl SamplingParams {
    /// Greedy decoding: always the largest logit.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            ..Self::default()
        }
    }

    /// Whether the choice is the largest logit, with no draw.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// Whether the mass is cut by top-k, top-p or min-p on a vocabulary of `vocab` tokens.
    pub(super) fn is_filtered(&self, vocab: usize) -> bool {
        self.top_k_active(vocab) || self.top_p < 1.0 || self.min_p > 0.0
    }

    pub(super) fn top_k_active(&self, vocab: usize) -> bool {
        self.top_k > 0 && self.top_k < vocab
    }

    /// Checks every setting against its range, for a model with `vocab` logits.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn validate(&self, vocab: usize) -> Result<(), InvalidParam> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(InvalidParam::new(
                "temperature",
                self.temperature,
                "a finite number, 0 or more",
            ));
        }
        within("top_p", self.top_p, 0.0, 1.0)?;
        within("min_p", self.min_p, 0.0, 1.0)?;
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            return Err(InvalidParam::new(
                "repetition_penalty",
                self.repetition_penalty,
                "a finite number greater than 0",
            ));
        }
        within("presence_penalty", self.presence_penalty, -2.0, 2.0)?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)?;
        for &(token, bias) in &self.logit_bias {
            if token as usize >= vocab {
                return Err(InvalidParam::new(
                    "logit_bias",
                    format_args!("for token {token}"),
                    format!("for token ids below {vocab}, the size of the model's vocabulary"),
                ));
            }
            within("logit_bias", bias, -100.0, 100.0)?;
        }
        match self.logprobs {
            Some(count) if count > MAX_LOGPROBS => Err(InvalidParam::new(
                "logprobs",
                count,
                format!("at most {MAX_LOGPROBS}"),
            )),
            _ => Ok(()),
        }
    }
}

/// Refuses NaN too: no comparison with it holds.
fn within(name: &'static str, value: f32, low: f32, high: f32) -> Result<(), InvalidParam> {
    if value >= low && value <= high {
        return Ok(());
    }
    Err(InvalidParam::new(
        name,
        value,
        format!("between {low} and {high}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    type Change = fn(&mut SamplingParams);

    #[test]
    fn accepts_the_edges_of_every_range() {
        let changes: [Change; 12] = [
            |p| p.temperature = 0.0,
            |p| p.temperature = 100.0,
            |p| p.top_k = usize::MAX,
            |p| p.top_p = 0.0,
            |p| p.min_p = 1.0,
            |p| p.repetition_penalty = 1e-3,
            |p| p.presence_penalty = -2.0,
            |p| p.frequency_penalty = 2.0,
            |p| p.logit_bias = vec![(0, -100.0), (9, 100.0)],
            |p| p.logprobs = Some(0),
            |p| p.logprobs = Some(20),
            |p| p.seed = Some(u64::MAX),
        ];
        for change in changes {
            let mut params = SamplingParams::default();
            change(&mut params);
            assert_eq!(params.validate(10), Ok(()), "{params:?}");
        }
    }

    #[test]
    fn refuses_what_lies_outside_and_names_it() {
        let changes: [(&str, Change); 17] = [
            ("temperature", |p| p.temperature = -0.1),
            ("temperature", |p| p.temperature = f32::INFINITY),
            ("temperature", |p| p.temperature = f32::NAN),
            ("top_p", |p| p.top_p = -0.1),
            ("top_p", |p| p.top_p = 1.001),
            ("top_p", |p| p.top_p = f32::NAN),
            ("min_p", |p| p.min_p = 1.5),
            ("min_p", |p| p.min_p = -1e-6),
            ("repetition_penalty", |p| p.repetition_penalty = 0.0),
            ("repetition_penalty", |p| p.repetition_penalty = f32::NAN),
            ("presence_penalty", |p| p.presence_penalty = 2.1),
            ("frequency_penalty", |p| p.frequency_penalty = -2.1),
            ("logit_bias", |p| p.logit_bias = vec![(10, 1.0)]),
            ("logit_bias", |p| p.logit_bias = vec![(1, 100.5)]),
            ("logit_bias", |p| p.logit_bias = vec![(1, f32::NAN)]),
            ("logprobs", |p| p.logprobs = Some(21)),
            ("logprobs", |p| p.logprobs = Some(usize::MAX)),
        ];
        for (name, change) in changes {
            let mut params = SamplingParams::default();
            change(&mut params);
            assert_eq!(params.validate(10).unwrap_err().name, name, "{params:?}");
        }
    }

    #[test]
    fn the_message_says_what_is_wrong_and_what_is_right() {
        let error = SamplingParams {
            top_p: 1.5,
            ..Default::default()
        }
        .validate(10)
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "`top_p` is 1.5, but must be between 0 and 1"
        );
    }
}

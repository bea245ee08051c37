//! The parameters that both generation endpoints take, resolved once: request, then the model's own defaults, then ours.

use std::{collections::BTreeMap, fmt};

use headstart_engine::sampling::SamplingParams;
use serde::{Deserialize, Deserializer, de};
use serde_json::Number;

use super::error::ApiError;
use crate::defaults::SamplingDefaults;

/// The most alternatives that are reported beside a token.
const MAX_TOP_LOGPROBS: usize = 20;

/// How many alternatives are reported beside a token: a number from 0 to [`MAX_TOP_LOGPROBS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TopLogprobs(pub(super) usize);

impl<'de> Deserialize<'de> for TopLogprobs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = TopLogprobs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an integer from 0 to {MAX_TOP_LOGPROBS}")
            }

            fn visit_u64<E: de::Error>(self, count: u64) -> Result<TopLogprobs, E> {
                usize::try_from(count)
                    .ok()
                    .filter(|count| *count <= MAX_TOP_LOGPROBS)
                    .map(TopLogprobs)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(count), &self))
            }
        }

        deserializer.deserialize_u64(Visitor)
    }
}

/// Parameters as clients send them; all optional, unknown ones ignored.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct GenerationParams {
    pub(super) stream: Option<bool>,
    pub(super) stream_options: Option<StreamOptions>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<i64>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    repeat_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<String, f32>>,
    seed: Option<Number>,
    stop: Option<OneOrMany>,
    stop_token_ids: Option<Vec<u32>>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    n: Option<i64>,
    response_format: Option<ResponseFormat>,
}

/// `stream_options`.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct StreamOptions {
    pub(super) include_usage: Option<bool>,
}

#[derive(Debug, Clone, Deserialize)]
struct ResponseFormat {
    r#type: String,
}

/// One text or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged, expecting = "expected a string or a list of strings")]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

impl GenerationParams {
    /// True when the answer is to be streamed.
    pub(super) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    /// True when a streamed answer ends with a usage chunk.
    pub(super) fn includes_usage(&self) -> bool {
        self.stream_options
            .as_ref()
            .and_then(|options| options.include_usage)
            .unwrap_or(false)
    }

    /// Refuses what this server would otherwise silently not do.
    pub(super) fn check_supported(&self) -> Result<(), ApiError> {
        if self.n.is_some_and(|n| n != 1) {
            return Err(ApiError::bad_field(
                "n",
                "This server gives one answer a request: n must be 1.",
            ));
        }
        match &self.response_format {
            Some(format) if format.r#type != "text" => Err(ApiError::bad_field(
                "response_format",
                format!(
                    "The response format \"{}\" is not supported: only \"text\" is. Ask for JSON in the prompt instead.",
                    format.r#type
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Texts that end the answer; empty ones are ignored.
    pub(super) fn stop_strings(&self) -> Vec<String> {
        match &self.stop {
            None => Vec::new(),
            Some(OneOrMany::One(one)) => vec![one.clone()],
            Some(OneOrMany::Many(many)) => many.clone(),
        }
        .into_iter()
        .filter(|stop| !stop.is_empty())
        .collect()
    }

    /// Tokens that end the answer, besides the model's own unless those are ignored.
    pub(super) fn stop_ids(&self, model: &[u32]) -> Vec<u32> {
        let own = if self.ignore_eos.unwrap_or(false) {
            &[]
        } else {
            model
        };
        let mut ids = own.to_vec();
        ids.extend(self.stop_token_ids.iter().flatten());
        ids
    }

    /// True when special tokens are shown in the text.
    pub(super) fn shows_special_tokens(&self) -> bool {
        !self.skip_special_tokens.unwrap_or(true)
    }

    /// The most tokens to generate. -1 is what several clients send for "no limit".
    pub(super) fn max_tokens(&self) -> Result<Option<usize>, ApiError> {
        let (name, value) = match (self.max_completion_tokens, self.max_tokens) {
            (Some(value), _) => ("max_completion_tokens", value),
            (None, Some(value)) => ("max_tokens", value),
            (None, None) => return Ok(None),
        };
        match value {
            -1 => Ok(None),
            value if value > 0 => Ok(Some(usize::try_from(value).unwrap_or(usize::MAX))),
            value => Err(ApiError::bad_field(
                name,
                format!("{name} is {value}; it must be at least 1."),
            )),
        }
    }

    /// How tokens are chosen. `logprobs`: alternatives to report, if any are wanted.
    ///
    /// # Errors
    /// When a value is out of its range: the message names it.
    pub(super) fn sampling(
        &self,
        defaults: &SamplingDefaults,
        logprobs: Option<usize>,
        vocab_size: usize,
    ) -> Result<SamplingParams, ApiError> {
        let top_k = match self.top_k {
            // -1 is another way of saying off.
            Some(-1) => 0,
            Some(k) => usize::try_from(k).map_err(|_| {
                ApiError::bad_field(
                    "top_k",
                    format!("top_k is {k}; it must be 0 (off) or more."),
                )
            })?,
            None => defaults.top_k,
        };
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k,
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self
                .repetition_penalty
                .or(self.repeat_penalty)
                .unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            logit_bias: self.logit_bias()?,
            seed: self.seed()?,
            logprobs,
        };
        params
            .validate(vocab_size)
            .map_err(|e| ApiError::bad_field(e.name, format!("{e}.")))?;
        Ok(params)
    }

    fn logit_bias(&self) -> Result<Vec<(u32, f32)>, ApiError> {
        self.logit_bias
            .iter()
            .flatten()
            .map(|(id, bias)| {
                let id: u32 = id.parse().map_err(|_| {
                    ApiError::bad_field(
                        "logit_bias",
                        format!("The key \"{id}\" of logit_bias is not a token id."),
                    )
                })?;
                Ok((id, *bias))
            })
            .collect()
    }

    fn seed(&self) -> Result<Option<u64>, ApiError> {
        let Some(seed) = &self.seed else {
            return Ok(None);
        };
        // Negative seeds are as good as any: their bits are used.
        let seed = seed
            .as_u64()
            .or_else(|| seed.as_i64().map(|seed| seed as u64));
        seed.map(Some)
            .ok_or_else(|| ApiError::bad_field("seed", "seed must be a whole number of 64 bits."))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn params(value: serde_json::Value) -> GenerationParams {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn requests_win_over_defaults() {
        let defaults = SamplingDefaults {
            temperature: 0.25,
            top_k: 40,
            ..SamplingDefaults::default()
        };
        let sampling = params(json!({"top_k": -1, "seed": -5, "logit_bias": {"7": -100}}))
            .sampling(&defaults, None, 100)
            .unwrap();
        assert_eq!(sampling.temperature, 0.25);
        assert_eq!(sampling.top_k, 0);
        assert_eq!(sampling.seed, Some((-5i64) as u64));
        assert_eq!(sampling.logit_bias, [(7, -100.0)]);
        let sampling = params(json!({"temperature": 0}))
            .sampling(&defaults, Some(2), 100)
            .unwrap();
        assert_eq!(
            (sampling.temperature, sampling.top_k, sampling.logprobs),
            (0.0, 40, Some(2))
        );
    }

    #[test]
    fn wrong_values_are_named() {
        for (value, name) in [
            (json!({"temperature": -1}), "temperature"),
            (json!({"top_p": 1.5}), "top_p"),
            (json!({"top_k": -7}), "top_k"),
            (json!({"min_p": 2}), "min_p"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"logit_bias": {"a": 1}}), "logit_bias"),
            (json!({"logit_bias": {"100": 1}}), "logit_bias"),
            (json!({"repetition_penalty": 0}), "repetition_penalty"),
        ] {
            let error = params(value.clone())
                .sampling(&SamplingDefaults::default(), None, 100)
                .unwrap_err();
            assert_eq!(error.body()["error"]["param"], name, "{value}");
        }
        assert!(params(json!({"n": 2})).check_supported().is_err());
        assert!(
            params(json!({"response_format": {"type": "json_object"}}))
                .check_supported()
                .is_err()
        );
        assert!(
            params(json!({"response_format": {"type": "text"}, "n": 1}))
                .check_supported()
                .is_ok()
        );
    }

    #[test]
    fn limits_and_stops() {
        assert_eq!(params(json!({})).max_tokens().unwrap(), None);
        assert_eq!(
            params(json!({"max_tokens": -1})).max_tokens().unwrap(),
            None
        );
        assert_eq!(
            params(json!({"max_tokens": 5, "max_completion_tokens": 9}))
                .max_tokens()
                .unwrap(),
            Some(9)
        );
        assert!(params(json!({"max_tokens": 0})).max_tokens().is_err());
        assert_eq!(params(json!({"stop": ["a", ""]})).stop_strings(), ["a"]);
        assert_eq!(params(json!({"stop": "b"})).stop_strings(), ["b"]);
        assert_eq!(
            params(json!({"stop_token_ids": [3]})).stop_ids(&[1, 2]),
            [1, 2, 3]
        );
        assert_eq!(
            params(json!({"ignore_eos": true})).stop_ids(&[1, 2]),
            Vec::<u32>::new()
        );
    }
}

//! From a row of logits to a token: penalties, temperature, filters, the seeded draw, log-probabilities.
//!
//! Plain CPU code on `f32` logits, called once per generated token. The order is fixed:
//!
//! 1. **Log-probabilities** (only when asked for) are the log-softmax of the row *as the model gave it*: no bias, penalty,
//!    temperature or filter enters them. This is what the OpenAI API and vLLM report by default.
//! 2. **Logit bias** is added (OpenAI's definition; -100 to 100).
//! 3. **Repetition penalty** `r` over the prompt and the generated tokens: a positive logit is divided by `r`, a negative
//!    one multiplied (Keskar et al. 2019, "CTRL", with the sign rule that transformers uses).
//! 4. **Presence and frequency penalty** over the generated tokens only: `logit -= presence + frequency * count` for every
//!    token with `count > 0` (OpenAI's definition).
//! 5. **Temperature** divides. 0 means greedy: the largest logit, the lowest token id among equals; the filters change
//!    nothing then.
//! 6. **Top-k** keeps the `k` largest logits.
//! 7. **Top-p** keeps the smallest set of most probable tokens whose share of what top-k left is at least `p`, never fewer
//!    than one (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration").
//! 8. **Min-p** keeps tokens at least `p` times as probable as the most probable one (Nguyen et al. 2024, "Turning Up the
//!    Heat").
//!
//! Steps 5 to 8 are in the order of transformers' warpers; llama.cpp has the filters in the same order and applies the
//! temperature after them. "Largest" always means the order (logit descending, token id ascending), which has no ties, so every
//! filter is exact: top-k keeps `k` tokens even if the k-th and the next are equal.
//!
//! # Infinities and NaN
//! A logit of `-inf` is a token that can never be chosen. `+inf` counts as the largest finite `f32`: such tokens share all the
//! mass. NaN is an error, and so is a row with nothing but `-inf`.
//!
//! # Repeatability
//! The same seed, parameters and rows give the same tokens on every platform: the generator is ChaCha8 with a key built from
//! the seed, the exponential is our own (IEEE additions and multiplications only, no system math library), and every sum that can decide
//! a token has a fixed order or is an exact integer sum. A sampled token always costs one draw, whatever the filters.
//!
//! # Cost
//! Top-k scans the row once and takes exponentials of `k` values. Top-p alone takes the exponential of every value, counts the
//! mass by log-weight (without the tail that provably lies outside the nucleus), and searches only the bucket in which the nucleus ends.
//! Nothing sorts the vocabulary, and scratch buffers are kept from token to token.
//!
//! ```
//! # use headstart_engine::sampling::{Sampler, SamplingParams};
//! let params = SamplingParams { temperature: 0.7, top_p: 0.9, seed: Some(1), ..SamplingParams::default() };
//! let mut sampler = Sampler::new(params, 4, &[0, 1])?;
//! let sampled = sampler.sample(&mut [0.1, 2.0, 1.5, f32::NEG_INFINITY])?;
//! assert!(sampled.token < 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod distribution;
mod filter;
mod history;
mod logprobs;
mod params;
mod rng;
mod sampler;
mod softmax;
#[cfg(test)]
mod tests;

pub use distribution::FilteredDistribution;
pub use logprobs::TokenLogprobs;
pub use params::{InvalidParam, MAX_LOGPROBS, SamplingParams};
pub use sampler::{SampleError, Sampled, Sampler};

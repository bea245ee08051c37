//! The sampler against a plain reference, as sets, as frequencies and as recorded tokens.

mod behaviour;
mod frequencies;
mod properties;
mod reference;

use super::{FilteredDistribution, SampleError, Sampled, Sampler, SamplingParams};

/// The vocabulary of the Qwen3.5 family.
const LARGE_VOCAB: usize = 248_320;

fn sampler(params: &SamplingParams, vocab: usize, prompt: &[u32]) -> Sampler {
    Sampler::new(params.clone(), vocab, prompt).unwrap()
}

/// A repeatable row that looks like a language model's: a bell of small logits and a few large ones. Multiples of 1/256, so that
/// there are ties and every machine computes the same.
fn row(vocab: usize, salt: u64) -> Vec<f32> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..vocab)
        .map(|_| {
            let bits = next();
            let bell: u64 = (0..6).map(|part| bits >> (8 * part) & 0xff).sum();
            let spike = if bits >> 56 == 0 { 2048 } else { 0 };
            (bell as f32 * 2.0 + spike as f32 - 1530.0) / 256.0
        })
        .collect()
}

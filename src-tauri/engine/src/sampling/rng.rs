//! The seeded random numbers of one sequence.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{SystemTime, UNIX_EPOCH},
};

use rand::{RngCore, SeedableRng, TryRngCore, rngs::OsRng};
use rand_chacha::ChaCha8Rng;

/// A ChaCha8 stream keyed by a 64-bit seed.
///
/// The key is the seed's eight little-endian bytes followed by zeros, so the stream is defined by the ChaCha specification
/// alone and does not change with a library's seeding recipe.
#[derive(Clone, Debug)]
pub(super) struct SeededRng {
    stream: ChaCha8Rng,
    seed: u64,
}

impl SeededRng {
    pub(super) fn new(seed: Option<u64>) -> Self {
        let seed = seed.unwrap_or_else(fresh_seed);
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self {
            stream: ChaCha8Rng::from_seed(key),
            seed,
        }
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    /// Uniform in [0, 1), a multiple of 2^-53.
    pub(super) fn uniform_f64(&mut self) -> f64 {
        (self.stream.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in [0, 1), a multiple of 2^-24.
    pub(super) fn uniform_f32(&mut self) -> f32 {
        (self.stream.next_u64() >> 40) as f32 * (1.0 / (1_u32 << 24) as f32)
    }
}

/// A seed from the operating system, below 2^53 so that it survives a JSON number and can be sent back.
fn fresh_seed() -> u64 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    // Without system randomness a request still gets an answer: the clock and a counter keep seeds apart.
    let bits = OsRng.try_next_u64().unwrap_or_else(|_| {
        let nanos = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |time| time.as_nanos());
        let call = CALLS.fetch_add(1, Ordering::Relaxed);
        (nanos as u64 ^ call.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    bits >> 11
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_that_of_the_chacha8_specification() {
        // The ChaCha8 key stream for an all-zero 256-bit key and nonce begins 3e 00 ef 2f 89 5f 40 d6
        // (draft-strombergson-chacha-test-vectors, TC1, 8 rounds).
        let mut rng = SeededRng::new(Some(0));
        let first = u64::from_le_bytes([0x3e, 0x00, 0xef, 0x2f, 0x89, 0x5f, 0x40, 0xd6]);
        assert_eq!(
            rng.uniform_f64(),
            (first >> 11) as f64 / (1_u64 << 53) as f64
        );
    }

    #[test]
    fn a_seed_repeats_and_seeds_differ() {
        let draws = |seed| {
            let mut rng = SeededRng::new(Some(seed));
            (0..32).map(|_| rng.uniform_f64()).collect::<Vec<_>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
        assert_ne!(draws(7), draws(7 | 1 << 63));
    }

    #[test]
    fn an_unseeded_stream_can_be_repeated_from_its_seed() {
        let mut first = SeededRng::new(None);
        assert!(first.seed() < 1 << 53);
        let mut again = SeededRng::new(Some(first.seed()));
        assert_eq!(first.uniform_f64(), again.uniform_f64());
        assert_ne!(SeededRng::new(None).seed(), SeededRng::new(None).seed());
    }

    #[test]
    fn uniform_draws_stay_in_the_half_open_unit_interval_and_fill_it() {
        let mut rng = SeededRng::new(Some(3));
        let mut tenths = [0_u32; 10];
        for _ in 0..100_000 {
            let draw = rng.uniform_f32();
            assert!((0.0..1.0).contains(&draw));
            tenths[(draw * 10.0) as usize] += 1;
        }
        // Ten standard deviations (95 each) either side.
        assert!(
            tenths.iter().all(|&n| (9_050..10_950).contains(&n)),
            "{tenths:?}"
        );
    }
}

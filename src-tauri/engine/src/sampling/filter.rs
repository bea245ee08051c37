//! Top-k, top-p and min-p without sorting the vocabulary.
//!
//! Tokens are ordered by (logit descending, token id ascending). In that order each filter keeps a prefix, so all it has to find
//! is the last token that stays.

use super::{
    params::SamplingParams,
    softmax::{Weights, any, weight},
};

/// Tokens that are skipped together when none of them can be kept.
const CHUNK: usize = 32;
/// Below this many candidates top-p sorts instead of splitting further.
const SORT_BELOW: usize = 64;
/// Weights as integers: exact sums do not depend on the order of addition, which a selection algorithm does not promise.
const MASS_SCALE: f32 = (1_u64 << 60) as f32;

/// Log-weights from 0 down to the lightest possible, -87, in steps of 1/32.
const BUCKETS_PER_NAT: f32 = 32.0;
const LAST_BUCKET: f32 = 88.0 * BUCKETS_PER_NAT;

/// A token's place in the order as one integer: a larger key comes first.
fn order_key(token: u32, logit: f32) -> u64 {
    // Adding +0.0 turns -0.0 into +0.0: the two are equal logits.
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    };
    u64::from(ascending) << 32 | u64::from(!token)
}

/// The token of an [`order_key`].
pub(super) fn token_of(key: u64) -> u32 {
    !(key as u32)
}

/// The logit of an [`order_key`].
pub(super) fn logit_of(key: u64) -> f32 {
    let ascending = (key >> 32) as u32;
    f32::from_bits(if ascending >> 31 == 1 {
        ascending ^ 1 << 31
    } else {
        !ascending
    })
}

/// Leaves in `keys` the order keys of the `count` largest logits (fewer when fewer are possible), in no order.
pub(super) fn largest(logits: &[f32], count: usize, keys: &mut Vec<u64>) {
    keys.clear();
    if count == 0 {
        return;
    }
    // A buffer that is cut back to `count` whenever it is full: each cut raises the floor that later tokens must pass.
    let full = count + count.max(512);
    let mut floor = f32::NEG_INFINITY;
    for (chunk_index, chunk) in logits.chunks(CHUNK).enumerate() {
        if !any(chunk, |logit| logit > floor) {
            continue;
        }
        let start = (chunk_index * CHUNK) as u32;
        for (token, &logit) in (start..).zip(chunk) {
            // Strictly greater: among equals the earlier token ids, already held, come first.
            if logit > floor {
                keys.push(order_key(token, logit));
            }
        }
        if keys.len() >= full {
            floor = logit_of(cut_to_largest(keys, count));
        }
    }
    if keys.len() > count {
        cut_to_largest(keys, count);
    }
}

/// Keeps the `count` largest of more than `count` keys and returns the smallest of them.
fn cut_to_largest(keys: &mut Vec<u64>, count: usize) -> u64 {
    let (_, &mut smallest, _) = keys.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
    keys.truncate(count);
    smallest
}

/// A token that top-p looks at.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    key: u64,
    mass: u64,
}

impl Candidate {
    fn new(key: u64, weight: f32) -> Self {
        Self {
            key,
            mass: mass_of_weight(weight),
        }
    }
}

/// Rounds 0 to 2^22 to an integer. Adding 2^23 leaves it in the mantissa, which is quicker than a conversion that minds every `f32`.
fn round_to_index(value: f32) -> usize {
    ((value + 8_388_608.0).to_bits() & 0x7f_ffff) as usize
}

fn mass_of_weight(weight: f32) -> u64 {
    (weight * MASS_SCALE) as u64
}

/// The key of the last token of the smallest prefix with at least `need` mass, by weighted quickselect: linear time.
fn nucleus_end(mut candidates: &mut [Candidate], mut need: u128) -> u64 {
    let descending = |a: &Candidate, b: &Candidate| b.key.cmp(&a.key);
    while candidates.len() > SORT_BELOW {
        let middle = candidates.len() / 2;
        candidates.select_nth_unstable_by(middle, descending);
        let (upper, lower) = candidates.split_at_mut(middle);
        let mass = mass_of(upper);
        if mass >= need {
            candidates = upper;
        } else {
            need -= mass;
            candidates = lower;
        }
    }
    candidates.sort_unstable_by(descending);
    let mut last = 0;
    for candidate in candidates.iter() {
        last = candidate.key;
        let mass = u128::from(candidate.mass);
        if mass >= need {
            break;
        }
        need -= mass;
    }
    last
}

fn mass_of(candidates: &[Candidate]) -> u128 {
    candidates
        .iter()
        .map(|candidate| u128::from(candidate.mass))
        .sum()
}

/// Finds what the filters keep. Holds the buffers from token to token.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    keys: Vec<u64>,
    candidates: Vec<Candidate>,
    /// The mass of a row by log-weight.
    buckets: Vec<u128>,
    /// What is kept, in ascending token order: (token, weight relative to the largest).
    pub(super) kept: Vec<(u32, f32)>,
    /// The sum of the kept weights; at least 1.
    pub(super) total: f64,
}

impl Filter {
    /// Applies temperature (more than 0), top-k, top-p and min-p to `logits`, whose maximum is `max` (finite), into
    /// [`Self::kept`]. `weights` is scratch.
    pub(super) fn apply(
        &mut self,
        logits: &[f32],
        max: f32,
        params: &SamplingParams,
        weights: &mut Weights,
    ) {
        let temperature = params.temperature;
        let mut last_kept = 0;
        if params.top_k_active(logits.len()) {
            largest(logits, params.top_k, &mut self.keys);
            last_kept = self.keys.iter().copied().min().unwrap_or(0);
            if params.top_p < 1.0 {
                self.candidates.clear();
                self.candidates.extend(
                    self.keys
                        .iter()
                        .map(|&key| Candidate::new(key, weight(logit_of(key), max, temperature))),
                );
                let total = mass_of(&self.candidates);
                let need = (f64::from(params.top_p) * total as f64) as u128;
                last_kept = nucleus_end(&mut self.candidates, need);
            }
        } else if params.top_p < 1.0 {
            weights.compute(logits, max, temperature);
            last_kept = self.nucleus_of_row(logits, max, params, weights);
        }
        self.collect_kept(logits, max, params, last_kept);
    }

    /// The key of the last token of the nucleus of a whole row, whose weights are `weights`; 0 when nothing is cut.
    ///
    /// The mass is first counted in buckets of the log-weight; only the bucket in which the nucleus ends is searched. Tokens
    /// lighter than `(1 - top_p) * total / vocabulary` weigh less than `(1 - top_p) * total` together, so the nucleus ends
    /// before them and they are not even counted.
    fn nucleus_of_row(
        &mut self,
        logits: &[f32],
        max: f32,
        params: &SamplingParams,
        weights: &Weights,
    ) -> u64 {
        let top_p = f64::from(params.top_p);
        let bound = (1.0 - top_p) * weights.total / logits.len() as f64;
        // A little lower, so that rounding errs towards more tokens.
        let floor = (bound * (1.0 - 1e-6)) as f32;
        // Rounded operations keep the order of logits, so buckets do too. At a tiny temperature the scale must stay finite: 0 * inf
        // would be NaN.
        let scale = (BUCKETS_PER_NAT / params.temperature).min(f32::MAX);
        let bucket_of = |logit: f32| round_to_index(((max - logit) * scale).min(LAST_BUCKET));

        self.buckets.clear();
        self.buckets.resize(LAST_BUCKET as usize + 1, 0);
        for_each_near(&weights.values, floor, |token, weight| {
            self.buckets[bucket_of(logits[token])] += u128::from(mass_of_weight(weight));
        });
        let mut need = (top_p * weights.total * f64::from(MASS_SCALE)) as u128;
        let mut end = None;
        for (bucket, &mass) in self.buckets.iter().enumerate() {
            if mass > 0 && mass >= need {
                end = Some(bucket);
                break;
            }
            need -= mass;
        }
        // Rounding can leave the sum just short when top-p is almost 1: then nothing is cut.
        let Some(end) = end else { return 0 };
        self.candidates.clear();
        for_each_near(&weights.values, floor, |token, weight| {
            let logit = logits[token];
            if bucket_of(logit) == end {
                self.candidates
                    .push(Candidate::new(order_key(token as u32, logit), weight));
            }
        });
        nucleus_end(&mut self.candidates, need)
    }

    /// Gathers every token from the front of the order to `last_kept` that passes min-p and has any weight at all.
    fn collect_kept(&mut self, logits: &[f32], max: f32, params: &SamplingParams, last_kept: u64) {
        let mut floor = min_p_floor(max, params.temperature, params.min_p);
        if last_kept != 0 {
            floor = floor.max(logit_of(last_kept));
        }
        self.kept.clear();
        self.total = 0.0;
        for_each_near(logits, floor, |token, logit| {
            let token = token as u32;
            if order_key(token, logit) < last_kept {
                return;
            }
            let weight = weight(logit, max, params.temperature);
            if weight > 0.0 && weight >= params.min_p {
                self.kept.push((token, weight));
                self.total += f64::from(weight);
            }
        });
    }
}

/// Calls `f` with every (index, value) of the chunks in which some value is at least `floor`: all such values, and their lighter
/// neighbours. A test of every value would cost more in mispredicted branches than most uses of a neighbour.
#[inline(always)]
fn for_each_near(values: &[f32], floor: f32, mut f: impl FnMut(usize, f32)) {
    for (chunk_index, chunk) in values.chunks(CHUNK).enumerate() {
        if any(chunk, |value| value >= floor) {
            for (index, &value) in (chunk_index * CHUNK..).zip(chunk) {
                f(index, value);
            }
        }
    }
}

/// A logit below which no token can pass min-p. Only skips work: the test itself is made on the weight.
fn min_p_floor(max: f32, temperature: f32, min_p: f32) -> f32 {
    if min_p == 0.0 {
        return f32::NEG_INFINITY;
    }
    // The margins are far wider than the rounding of `weight` and of this line.
    let distance = f64::from(temperature) * (f64::from(min_p).ln() - 1e-3);
    let margin = f64::from(max).abs() * 1e-6;
    (f64::from(max) + distance - margin) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(mut keys: Vec<u64>) -> Vec<u32> {
        keys.sort_unstable_by(|a, b| b.cmp(a));
        keys.into_iter().map(token_of).collect()
    }

    #[test]
    fn keys_order_by_logit_then_by_lowest_token_and_can_be_read_back() {
        let logits = [
            f32::MAX,
            1.5,
            f32::MIN_POSITIVE,
            0.0,
            -1e-30,
            -2.0,
            f32::MIN,
        ];
        for (a, pair) in logits.windows(2).enumerate() {
            assert!(order_key(9, pair[0]) > order_key(0, pair[1]), "{a}");
        }
        assert!(order_key(3, 1.0) > order_key(4, 1.0));
        assert!(order_key(3, -0.0) > order_key(4, 0.0));
        assert!(order_key(0, f32::NEG_INFINITY) > 0);
        for logit in logits {
            assert_eq!(logit_of(order_key(7, logit)), logit);
            assert_eq!(token_of(order_key(7, logit)), 7);
        }
    }

    #[test]
    fn the_largest_are_found_in_rising_falling_equal_and_scrambled_rows() {
        let length = 5000_usize;
        let rows: [Vec<f32>; 4] = [
            (0..length).map(|i| i as f32).collect(),
            (0..length).map(|i| -(i as f32)).collect(),
            vec![1.0; length],
            (0..length).map(|i| (i * 7919 % 503) as f32).collect(),
        ];
        let mut keys = Vec::new();
        for row in rows {
            let mut all: Vec<u32> = (0..length as u32).collect();
            all.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]).then(a.cmp(&b)));
            for count in [0, 1, 2, 63, 600, 4999, 5000, 9000] {
                largest(&row, count, &mut keys);
                assert_eq!(sorted(keys.clone()), all[..count.min(length)], "{count}");
            }
        }
    }

    #[test]
    fn impossible_tokens_are_never_among_the_largest() {
        let mut keys = Vec::new();
        largest(
            &[f32::NEG_INFINITY, -5.0, f32::NEG_INFINITY, f32::MIN],
            4,
            &mut keys,
        );
        assert_eq!(sorted(keys), [1, 3]);
    }

    #[test]
    fn the_buffer_of_the_largest_stays_small() {
        // A rising row is the worst case: every token passes the floor.
        let row: Vec<f32> = (0..248_320).map(|i| i as f32).collect();
        let mut keys = Vec::new();
        largest(&row, 40, &mut keys);
        assert!(keys.capacity() < 4096, "{}", keys.capacity());
    }

    #[test]
    fn indices_are_rounded() {
        let rounded = [0.0, 0.4, 0.6, 1.5, 2815.9, 4_000_000.0].map(round_to_index);
        assert_eq!(rounded, [0, 0, 1, 2, 2816, 4_000_000]);
    }

    #[test]
    fn the_nucleus_ends_where_the_mass_is_reached() {
        let equal = |n: u32| -> Vec<Candidate> {
            (0..n)
                .map(|token| Candidate {
                    key: order_key(token, 1.0),
                    mass: 10,
                })
                .collect()
        };
        for (need, last) in [(0, 0), (1, 0), (10, 0), (11, 1), (5_000, 499), (9_999, 999)] {
            assert_eq!(
                token_of(nucleus_end(&mut equal(1000), need)),
                last,
                "{need}"
            );
        }
        // More than there is: everything stays.
        assert_eq!(token_of(nucleus_end(&mut equal(1000), 20_000)), 999);
    }
}

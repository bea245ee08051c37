//! Passes over a whole row: the maximum, the exponentials and their sum.
//!
//! Written in fixed-width lanes, so that the compiler can use vector instructions of any width and the result is the same
//! with each of them.

/// Values handled side by side.
const LANES: usize = 16;
/// Weights summed into one entry of [`Weights::block_sums`].
const BLOCK: usize = 1024;

/// The largest value of a row (`-inf` for an empty one) and whether the row holds a NaN.
pub(super) fn maximum(values: &[f32]) -> (f32, bool) {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut nan = [0_u32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut take = |lane: usize, value: f32| {
        lanes[lane] = if value > lanes[lane] {
            value
        } else {
            lanes[lane]
        };
        nan[lane] |= u32::from(value.is_nan());
    };
    for chunk in chunks {
        for (lane, &value) in chunk.iter().enumerate() {
            take(lane, value);
        }
    }
    for &value in rest {
        take(0, value);
    }
    let largest = lanes
        .iter()
        .fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    (largest, nan.iter().any(|&flag| flag != 0))
}

/// Whether some value passes a test. Looks at all of them: without an early exit the loop can be vectorised.
#[inline(always)]
pub(super) fn any(values: &[f32], test: impl Fn(f32) -> bool) -> bool {
    values.iter().fold(false, |hit, &value| hit | test(value))
}

/// The lowest index that holds `value`.
pub(super) fn first_equal(values: &[f32], value: f32) -> Option<usize> {
    // A chunk is first tested as a whole.
    let chunk_size = 4 * LANES;
    let chunk = values
        .chunks(chunk_size)
        .position(|chunk| any(chunk, |other| other == value))?;
    let start = chunk * chunk_size;
    let offset = values[start..].iter().position(|&other| other == value)?;
    Some(start + offset)
}

/// `e^x` for `x <= 0`, with a relative error below 3e-7; 0 below -87, where the result would no longer be a normal `f32`.
///
/// Cody and Waite's argument reduction, then the Taylor polynomial of degree 7 on |r| <= ln(2) / 2. Only IEEE additions and
/// multiplications, in a fixed order: the result is the same bits on every machine, which the system's `expf` is not.
#[inline(always)]
pub(super) fn exp_nonpositive(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    // ln(2) in two parts; the first has so few bits that its product with an exponent is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let bounded = if x > -87.0 { x } else { -87.0 };
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (bounded - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits());
    let scale = f32::from_bits(exponent.wrapping_add(127) << 23);
    if x >= -87.0 { p * scale } else { 0.0 }
}

/// The weight of one logit relative to the largest: `e^((logit - max) / temperature)`, 1 for the largest.
#[inline(always)]
pub(super) fn weight(logit: f32, max: f32, temperature: f32) -> f32 {
    // A division, not a product with the reciprocal: that would overflow for tiny temperatures and give 0 * inf.
    exp_nonpositive((logit - max) / temperature)
}

/// The weights of a whole row and their sums.
#[derive(Clone, Debug, Default)]
pub(super) struct Weights {
    /// One weight per token, relative to the largest.
    pub(super) values: Vec<f32>,
    /// Sums of 1024 weights each.
    block_sums: Vec<f64>,
    /// The sum of all weights; at least 1.
    pub(super) total: f64,
}

impl Weights {
    /// Fills in the weights of `logits`, whose maximum is `max` (finite).
    pub(super) fn compute(&mut self, logits: &[f32], max: f32, temperature: f32) {
        self.values.resize(logits.len(), 0.0);
        self.block_sums.clear();
        for (out, row) in self.values.chunks_mut(BLOCK).zip(logits.chunks(BLOCK)) {
            for (weight_out, &logit) in out.iter_mut().zip(row) {
                *weight_out = weight(logit, max, temperature);
            }
            self.block_sums.push(sum(out));
        }
        self.total = self.block_sums.iter().sum();
    }

    /// The token at the fraction `u` (in [0, 1)) of the mass, tokens laid out in ascending order.
    pub(super) fn pick(&self, u: f64) -> u32 {
        let mut left = u * self.total;
        let mut last_block = 0;
        for (block, &mass) in self.block_sums.iter().enumerate() {
            if mass > 0.0 {
                last_block = block;
                if left < mass {
                    break;
                }
                left -= mass;
            }
        }
        let start = last_block * BLOCK;
        let block = &self.values[start..(start + BLOCK).min(self.values.len())];
        start as u32 + pick_index(block.iter().copied(), left)
    }
}

/// The index at mass `left` from the start. Rounding can leave a remainder past the end: that goes to the last index with mass.
pub(super) fn pick_index(weights: impl Iterator<Item = f32>, mut left: f64) -> u32 {
    let mut last = 0;
    for (index, weight) in weights.enumerate() {
        if weight > 0.0 {
            last = index as u32;
            if left < f64::from(weight) {
                break;
            }
            left -= f64::from(weight);
        }
    }
    last
}

/// The sum of `e^(x - max)` over a row.
pub(super) fn sum_of_exponentials(logits: &[f32], max: f32) -> f64 {
    let mut buffer = [0.0; BLOCK];
    let mut total = 0.0;
    for row in logits.chunks(BLOCK) {
        let out = &mut buffer[..row.len()];
        for (weight_out, &logit) in out.iter_mut().zip(row) {
            *weight_out = exp_nonpositive(logit - max);
        }
        total += sum(out);
    }
    total
}

/// A sum in double precision, in an order that depends on the length alone.
fn sum(values: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane += f64::from(value);
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_agrees_with_double_precision() {
        let mut worst = 0.0_f64;
        for step in 0..=870_000 {
            let x = -(step as f32) * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp_nonpositive(x)) - exact).abs() / exact);
        }
        assert!(worst < 3e-7, "{worst:e}");
        assert_eq!(exp_nonpositive(0.0), 1.0);
        assert_eq!(exp_nonpositive(-0.0), 1.0);
        assert!(exp_nonpositive(-87.0) > 0.0);
        for x in [-87.01, -200.0, -1e30, f32::MIN, f32::NEG_INFINITY] {
            assert_eq!(exp_nonpositive(x), 0.0);
        }
    }

    #[test]
    fn the_exponential_has_the_same_bits_everywhere() {
        // Recorded once; a machine that fuses or reorders operations would miss them.
        let digest = (0..100_000).fold(0xcbf2_9ce4_8422_2325_u64, |hash, step| {
            let bits = exp_nonpositive(-(step as f32) / 1024.0).to_bits();
            (hash ^ u64::from(bits)).wrapping_mul(0x0100_0000_01b3)
        });
        assert_eq!(digest, 12_378_991_383_471_479_720);
    }

    #[test]
    fn the_maximum_is_found_in_every_place_and_nan_is_seen_in_every_place() {
        for length in [1, 2, 15, 16, 17, 33, 100] {
            for place in 0..length {
                let mut row = vec![-3.0; length];
                row[place] = -1.0;
                assert_eq!(maximum(&row), (-1.0, false));
                assert_eq!(first_equal(&row, -1.0), Some(place));
                row[place] = f32::NAN;
                assert!(maximum(&row).1);
            }
        }
        assert_eq!(maximum(&[]), (f32::NEG_INFINITY, false));
        assert_eq!(first_equal(&[1.0, 2.0], 3.0), None);
        assert_eq!(first_equal(&[0.0; 500], 0.0), Some(0));
    }

    #[test]
    fn a_pick_walks_the_cumulative_mass_in_token_order() {
        let mut weights = Weights::default();
        // e^0 : e^(-ln 3) at 3:1, with impossible tokens before, between and after, over three blocks.
        let mut row = vec![f32::NEG_INFINITY; 2500];
        row[1] = 0.0;
        row[2000] = -3.0_f32.ln();
        weights.compute(&row, 0.0, 1.0);
        assert!((weights.total - 4.0 / 3.0).abs() < 1e-6);
        assert_eq!(weights.pick(0.0), 1);
        assert_eq!(weights.pick(0.749), 1);
        assert_eq!(weights.pick(0.751), 2000);
        assert_eq!(
            weights.pick(1.0),
            2000,
            "a remainder from rounding goes to the last token with mass"
        );
    }

    #[test]
    fn sums_match_a_plain_sum() {
        let row: Vec<f32> = (0..5000)
            .map(|i| -((i * 37 % 1000) as f32) / 100.0)
            .collect();
        let plain: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        assert!((sum_of_exponentials(&row, 0.0) - plain).abs() / plain < 1e-6);
    }
}

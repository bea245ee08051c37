//! How much later tokens look at earlier ones: the score that SpecPrefill ranks a prompt's tokens by.
//!
//! For a query row `t` and a head `h`, the softmax over the keys is smoothed by a moving average; a key's score in row `t` is its largest
//! value over all heads (and layers, for the result is a running maximum). Never more than one row of scores a worker is held besides
//! the result.

use candle_core::{Result, Tensor};
use rayon::prelude::*;

use crate::{
    Element,
    tensor::{check_dtype, for_element, with_slice, with_storage},
};

/// Raises `scores`, row-major `[T, N]`, to the smoothed attention of `q` over the first `N` keys of a layer.
///
/// * `q`: `[T, H, D]`, rotated. `k`: `[Hkv, Tk, D]` with `Tk >= N`, any strides, last dimension dense, of q's dtype.
/// * `scale`: factor on the scores before softmax.
/// * `pool`: width of the moving average, odd; zeros beyond both ends, always divided by `pool`.
///
/// # Errors
/// If shapes, dtypes or the length of `scores` do not fit, or `pool` is even.
pub fn attention_importance(
    q: &Tensor,
    k: &Tensor,
    scale: f32,
    pool: usize,
    scores: &mut [f32],
) -> Result<()> {
    let (rows, heads, dim) = q.dims3()?;
    let (kv_heads, keys, k_dim) = k.dims3()?;
    check_dtype("the keys", q.dtype(), k)?;
    if k_dim != dim || kv_heads == 0 || heads % kv_heads != 0 || dim == 0 {
        candle_core::bail!(
            "attention importance: queries {:?} do not fit keys {:?} ([T, H, D] over [Hkv, N, D])",
            q.shape(),
            k.shape()
        );
    }
    if rows == 0
        || !scores.len().is_multiple_of(rows)
        || scores.len() / rows > keys
        || pool.is_multiple_of(2)
    {
        candle_core::bail!(
            "attention importance: {} scores of {rows} rows over {keys} keys, pooled by {pool}",
            scores.len()
        );
    }
    let wanted = scores.len() / rows;
    if wanted == 0 {
        return Ok(());
    }
    let cpu = candle_core::Device::Cpu;
    let (q, k) = (q.to_device(&cpu)?, k.to_device(&cpu)?);
    let k = if k.stride()[2] == 1 {
        k
    } else {
        k.contiguous()?
    };
    for_element!(q.dtype(), T => with_slice::<T, _>(&q, |q| {
        with_storage::<T, _>(&k, |k, layout| {
            let call = Call {
                q,
                k: &k[layout.start_offset()..],
                k_strides: [layout.stride()[0], layout.stride()[1]],
                heads,
                group: heads / kv_heads,
                dim,
                scale,
                pool,
            };
            scores
                .par_chunks_mut(wanted)
                .enumerate()
                .for_each(|(row, scores)| call.row(row, scores));
            Ok(())
        })
    }))
}

struct Call<'a, T> {
    q: &'a [T],
    k: &'a [T],
    k_strides: [usize; 2],
    heads: usize,
    group: usize,
    dim: usize,
    scale: f32,
    pool: usize,
}

impl<T: Element> Call<'_, T> {
    /// All heads of one query row.
    fn row(&self, row: usize, scores: &mut [f32]) {
        let (dim, keys) = (self.dim, scores.len());
        let mut query = vec![0f32; dim];
        let mut key = vec![0f32; dim];
        let mut weights = vec![0f32; keys];
        for head in 0..self.heads {
            T::widen(
                &self.q[(row * self.heads + head) * dim..][..dim],
                &mut query,
            );
            query.iter_mut().for_each(|x| *x *= self.scale);
            let base = head / self.group * self.k_strides[0];
            for (j, weight) in weights.iter_mut().enumerate() {
                T::widen(&self.k[base + j * self.k_strides[1]..][..dim], &mut key);
                *weight = dot(&query, &key);
            }
            softmax(&mut weights);
            raise_to_average(&weights, self.pool, scores);
        }
    }
}

/// In eight running sums, which the compiler makes vectors of.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; 8];
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a8
        .remainder()
        .iter()
        .zip(b8.remainder())
        .map(|(a, b)| a * b)
        .sum();
    for (a, b) in a8.zip(b8) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

fn softmax(values: &mut [f32]) {
    let top = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut total = 0f64;
    for value in values.iter_mut() {
        *value = (*value - top).exp();
        total += f64::from(*value);
    }
    let factor = (1.0 / total) as f32;
    values.iter_mut().for_each(|value| *value *= factor);
}

/// `scores[j] = max(scores[j], mean(values[j - pool / 2 ..= j + pool / 2]))`.
fn raise_to_average(values: &[f32], pool: usize, scores: &mut [f32]) {
    let half = pool / 2;
    // Sums in f64: what was added is taken off again thousands of times.
    let mut sum: f64 = values.iter().take(half).map(|v| f64::from(*v)).sum();
    for (j, score) in scores.iter_mut().enumerate() {
        if let Some(entering) = values.get(j + half) {
            sum += f64::from(*entering);
        }
        *score = score.max((sum / pool as f64) as f32);
        if j >= half {
            sum -= f64::from(values[j - half]);
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    /// The operation in f64 on dense `q` `[T, H, D]` and `k` `[Hkv, N, D]`: the measure for every faster version.
    fn reference(
        q: &[f64],
        k: &[f64],
        (heads, kv_heads, dim): (usize, usize, usize),
        scale: f64,
        pool: usize,
    ) -> Vec<f64> {
        let keys = k.len() / (kv_heads * dim);
        let half = (pool / 2) as i64;
        let mut out = vec![0.0f64; q.len() / (heads * dim) * keys];
        for (row, query) in q.chunks_exact(dim).enumerate() {
            let kv = row % heads / (heads / kv_heads);
            let scores: Vec<f64> = k[kv * keys * dim..][..keys * dim]
                .chunks_exact(dim)
                .map(|key| scale * query.iter().zip(key).map(|(a, b)| a * b).sum::<f64>())
                .collect();
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
            for j in 0..keys as i64 {
                let pooled: f64 = (j - half..=j + half)
                    .filter(|i| (0..keys as i64).contains(i))
                    .map(|i| (scores[i as usize] - top).exp() / total)
                    .sum::<f64>()
                    / pool as f64;
                let at = row / heads * keys + j as usize;
                out[at] = out[at].max(pooled);
            }
        }
        out
    }

    fn values(len: usize, seed: u32) -> Vec<f32> {
        (0..len as u32)
            .map(|i| {
                (i.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) % 1009) as f32 / 250.0 - 2.0
            })
            .collect()
    }

    #[test]
    fn agrees_with_the_reference() {
        for (rows, heads, kv_heads, dim, keys, spare) in [
            (1, 1, 1, 3, 1, 0),
            (2, 4, 2, 8, 5, 2),
            (8, 6, 2, 20, 300, 8),
            (3, 2, 2, 64, 13, 1),
        ] {
            let q = values(rows * heads * dim, 1);
            let k = values(kv_heads * (keys + spare) * dim, 2);
            let scale = 1.0 / (dim as f32).sqrt();
            for dtype in [DType::F32, DType::BF16, DType::F16] {
                let tensor = |v: &[f32], shape: (usize, usize, usize)| {
                    Tensor::from_slice(v, shape, &Device::Cpu)
                        .unwrap()
                        .to_dtype(dtype)
                        .unwrap()
                };
                let q = tensor(&q, (rows, heads, dim));
                let k = tensor(&k, (kv_heads, keys + spare, dim));
                let wide = |t: &Tensor| -> Vec<f64> {
                    t.to_dtype(DType::F64)
                        .unwrap()
                        .flatten_all()
                        .unwrap()
                        .to_vec1()
                        .unwrap()
                };
                let seen = k.narrow(1, 0, keys).unwrap().contiguous().unwrap();
                let expected = reference(
                    &wide(&q),
                    &wide(&seen),
                    (heads, kv_heads, dim),
                    f64::from(scale),
                    13,
                );
                let mut scores = vec![0f32; rows * keys];
                attention_importance(&q, &k, scale, 13, &mut scores).unwrap();
                for (found, expected) in scores.iter().zip(&expected) {
                    assert!(
                        (f64::from(*found) - expected).abs() < 1e-5,
                        "{found} {expected}"
                    );
                }
                // A second layer only raises.
                let before = scores.clone();
                attention_importance(&(&q * 0.0).unwrap(), &k, scale, 13, &mut scores).unwrap();
                assert!(
                    before
                        .iter()
                        .zip(&scores)
                        .all(|(before, after)| after >= before)
                );
            }
        }
    }

    #[test]
    fn wrong_shapes_are_refused() {
        let q = Tensor::zeros((2, 4, 8), DType::F32, &Device::Cpu).unwrap();
        let k = Tensor::zeros((2, 5, 8), DType::F32, &Device::Cpu).unwrap();
        let mut scores = vec![0f32; 10];
        assert!(attention_importance(&q, &k, 1.0, 13, &mut scores).is_ok());
        assert!(attention_importance(&q, &k, 1.0, 12, &mut scores).is_err());
        assert!(attention_importance(&q, &k, 1.0, 13, &mut [0f32; 12]).is_err());
        assert!(attention_importance(&q, &k, 1.0, 13, &mut [0f32; 9]).is_err());
        let wrong = Tensor::zeros((3, 5, 8), DType::F32, &Device::Cpu).unwrap();
        assert!(attention_importance(&q, &wrong, 1.0, 13, &mut scores).is_err());
    }
}

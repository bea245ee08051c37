//! Causal attention by explicit positions, with grouped heads and an optional sliding window, never holding a score
//! matrix: softmax runs online over tiles of keys (Milakov and Gimelshein 2018, <https://arxiv.org/abs/1805.02867>;
//! FlashAttention, <https://arxiv.org/abs/2205.14135>).

mod cpu;
mod importance;
mod stock;
#[cfg(test)]
mod tests;

use candle_core::{Result, Tensor};

use crate::tensor::{check_dtype, for_element, from_values, with_slice, with_storage};

pub use cpu::{AttentionShape, attention_slice};
pub use importance::attention_importance;

/// Attention of the queries `q` over the keys and values of a cache.
///
/// * `q`: `[Tq, H, D]`.
/// * `k`, `v`: `[Hkv, Tk, D]`, usually the first `Tk` rows of a larger cache (any strides, last dimension dense), of q's
///   dtype. `H` is a multiple of `Hkv`; query head `h` reads key head `h / (H / Hkv)`.
/// * `q_positions`: `Tq` positions; `k_positions`: `Tk` positions, ascending.
/// * `window`: a query sees only the last `window` positions, its own included.
///
/// Key `j` is visible to query `i` if `k_positions[j] <= q_positions[i]` and, with a window,
/// `q_positions[i] - k_positions[j] < window`. A query that sees no key gets zeros. Gives `[Tq, H * D]` in q's dtype.
///
/// On the CPU a call of up to [`crate::EXACT_ROWS`] queries gives each of them, bit for bit, what a call of its own would give.
///
/// # Errors
/// If shapes, dtypes or position counts do not fit, positions of keys descend, or the dtype is none of f32, f16, bf16.
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    q_positions: &[u32],
    k_positions: &[u32],
    scale: f32,
    window: Option<usize>,
) -> Result<Tensor> {
    let (queries, heads, dim) = q.dims3()?;
    let (kv_heads, keys, k_dim) = k.dims3()?;
    check_dtype("the keys", q.dtype(), k)?;
    check_dtype("the values", q.dtype(), v)?;
    if k.dims() != v.dims() || k_dim != dim || kv_heads == 0 || heads % kv_heads != 0 || dim == 0 {
        candle_core::bail!(
            "attention: queries {:?} do not fit keys {:?} and values {:?} ([Tq, H, D] over [Hkv, Tk, D])",
            q.shape(),
            k.shape(),
            v.shape()
        );
    }
    if q_positions.len() != queries || k_positions.len() != keys {
        candle_core::bail!(
            "attention: {queries} queries and {keys} keys were given {} and {} positions",
            q_positions.len(),
            k_positions.len()
        );
    }
    if !k_positions.is_sorted() {
        candle_core::bail!("attention: the positions of the keys must ascend");
    }
    if !q.device().is_cpu() {
        return stock::attention(q, k, v, q_positions, k_positions, scale, window);
    }
    let dense_rows = |t: &Tensor| {
        if t.stride()[2] == 1 {
            Ok(t.clone())
        } else {
            t.contiguous()
        }
    };
    let (k, v) = (dense_rows(k)?, dense_rows(v)?);
    for_element!(q.dtype(), T => with_slice::<T, _>(q, |q| {
        with_storage::<T, _>(&k, |k_data, k_layout| with_storage::<T, _>(&v, |v_data, v_layout| {
            let (ks, vs) = (k_layout.stride(), v_layout.stride());
            let shape = AttentionShape {
                heads,
                kv_heads,
                dim,
                k_strides: [ks[0], ks[1]],
                v_strides: [vs[0], vs[1]],
                scale,
                window,
            };
            let mut out = vec![T::default(); queries * heads * dim];
            attention_slice(
                q,
                &k_data[k_layout.start_offset()..],
                &v_data[v_layout.start_offset()..],
                q_positions,
                k_positions,
                &shape,
                &mut out,
            );
            from_values(out, (queries, heads * dim))
        }))
    }))
}

/// The half-open range of key indices that a query at `position` sees; `k_positions` ascends.
pub(crate) fn visible(
    k_positions: &[u32],
    position: u32,
    window: Option<usize>,
) -> std::ops::Range<usize> {
    let end = k_positions.partition_point(|&p| p <= position);
    let start = match window {
        Some(window) => k_positions.partition_point(|&p| p as usize + window <= position as usize),
        None => 0,
    };
    start.min(end)..end
}

/// The operation in f64 on dense `q` `[Tq, H, D]`, `k` and `v` `[Hkv, Tk, D]`: the measure for every faster version.
#[allow(clippy::too_many_arguments)]
pub fn reference(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    q_positions: &[u32],
    k_positions: &[u32],
    (heads, kv_heads, dim): (usize, usize, usize),
    scale: f64,
    window: Option<usize>,
) -> Vec<f64> {
    let keys = k_positions.len();
    let mut out = vec![0.0; q.len()];
    for (row, out) in out.chunks_exact_mut(dim).enumerate() {
        let (query, head) = (row / heads, row % heads);
        let kv = head / (heads / kv_heads);
        let q = &q[row * dim..][..dim];
        let sees = |&key: &usize| {
            let distance = i64::from(q_positions[query]) - i64::from(k_positions[key]);
            distance >= 0 && window.is_none_or(|w| distance < w as i64)
        };
        let seen: Vec<usize> = (0..keys).filter(sees).collect();
        let row_of = |x: &'_ [f64], key: usize| x[(kv * keys + key) * dim..][..dim].to_vec();
        let scores: Vec<f64> = seen
            .iter()
            .map(|&key| {
                scale
                    * q.iter()
                        .zip(row_of(k, key))
                        .map(|(a, b)| a * b)
                        .sum::<f64>()
            })
            .collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
        for (score, &key) in scores.iter().zip(&seen) {
            let p = (score - top).exp() / total;
            for (o, v) in out.iter_mut().zip(row_of(v, key)) {
                *o += p * v;
            }
        }
    }
    out
}

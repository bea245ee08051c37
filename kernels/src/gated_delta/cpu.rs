use super::NORM_EPS;
use crate::Element;

/// Calls of up to this many tokens give each row what it would get alone.
pub const STEP_TOKENS: usize = 8;

/// Sizes and strides of one call, in elements.
#[derive(Clone, Copy, Debug)]
pub struct GatedDeltaShape {
    /// Tokens.
    pub tokens: usize,
    /// Heads of queries and keys; divides `heads`.
    pub key_heads: usize,
    /// Heads of values and states.
    pub heads: usize,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub dim: usize,
    /// From one token's queries to the next's, and from one head to the next.
    pub q_strides: [usize; 2],
    /// The same for keys.
    pub k_strides: [usize; 2],
    /// The same for values.
    pub v_strides: [usize; 2],
}

/// The gated delta rule on slices: `q`, `k` and `v` strided as `shape` says, `log_decay` and `beta` `[tokens, heads]`, `state`
/// `[heads, key_dim, dim]` or `None` for zeros, `out` dense `[tokens, heads, dim]`. Gives the new state.
///
/// # Panics
/// If a slice is shorter than the shape says.
#[allow(clippy::too_many_arguments)]
pub fn gated_delta_slice<T: Element>(
    q: &[T],
    k: &[T],
    v: &[T],
    log_decay: &[f32],
    beta: &[f32],
    state: Option<&[f32]>,
    shape: &GatedDeltaShape,
    out: &mut [T],
) -> Vec<f32> {
    let (heads, key_dim, dim) = (shape.heads, shape.key_dim, shape.dim);
    let size = heads * key_dim * dim;
    let mut new_state = state.map_or_else(|| vec![0.0; size], |state| state[..size].to_vec());
    let unit = |x: &[T], scale: f32| -> Vec<f32> {
        let x: Vec<f32> = x.iter().map(|x| x.to_f32()).collect();
        let factor = scale / (x.iter().map(|x| x * x).sum::<f32>() + NORM_EPS).sqrt();
        x.iter().map(|x| x * factor).collect()
    };
    for head in 0..heads {
        let key_head = head / (heads / shape.key_heads);
        let state = &mut new_state[head * key_dim * dim..][..key_dim * dim];
        for token in 0..shape.tokens {
            let at = |[t, h]: [usize; 2], head: usize| token * t + head * h;
            let q = unit(
                &q[at(shape.q_strides, key_head)..][..key_dim],
                (key_dim as f32).powf(-0.5),
            );
            let k = unit(&k[at(shape.k_strides, key_head)..][..key_dim], 1.0);
            let v = &v[at(shape.v_strides, head)..][..dim];
            let decay = log_decay[token * heads + head].exp();
            let mut delta = vec![0f32; dim];
            for (k, row) in k.iter().zip(state.chunks_exact_mut(dim)) {
                for (d, s) in delta.iter_mut().zip(row) {
                    *s *= decay;
                    *d += *k * *s;
                }
            }
            for (d, v) in delta.iter_mut().zip(v) {
                *d = beta[token * heads + head] * (v.to_f32() - *d);
            }
            let mut o = vec![0f32; dim];
            for ((k, q), row) in k.iter().zip(&q).zip(state.chunks_exact_mut(dim)) {
                for ((d, s), o) in delta.iter().zip(row).zip(&mut o) {
                    *s += *k * *d;
                    *o += *q * *s;
                }
            }
            T::narrow(&o, &mut out[(token * heads + head) * dim..][..dim]);
        }
    }
    new_state
}

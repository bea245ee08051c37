//! The gated delta rule (Gated Delta Networks, Yang, Kautz and Hatamizadeh 2024, <https://arxiv.org/abs/2412.06464>): the
//! recurrent attention of Qwen3-Next and Qwen3.5, and the small operations around it.
//!
//! Each value head has a state `S` `[Dk, Dv]`, a map from keys to values. A token decays it, corrects what it holds for
//! the token's key and reads it with the query:
//!
//! ```text
//! S = exp(g) S;   delta = beta (v - S^T k);   S = S + k delta^T;   o = S^T q
//! ```

mod cpu;
pub mod gates;
mod stock;
#[cfg(test)]
mod tests;

use candle_core::{DType, Result, Tensor};

use crate::tensor::{check_dtype, for_element, from_values, with_slice, with_storage};

pub use cpu::{GatedDeltaShape, STEP_TOKENS, gated_delta_slice};
pub use gates::{decay_and_beta, gated_rms_norm, sigmoid_mul};

/// Under the square root of the L2 norm of queries and keys.
const NORM_EPS: f32 = 1e-6;

/// Runs the gated delta rule over `T` tokens; gives `(o, new state)`.
///
/// `q` and `k` are `[T, Hk, Dk]`, `v` is `[T, Hv, Dv]`, all of one dtype and possibly strided views (last dimension dense);
/// value head `h` uses key head `h / (Hv / Hk)`. Queries and keys are L2-normalised here (`x / sqrt(sum(x^2) + 1e-6)`) and
/// queries scaled by `Dk^-0.5`. `log_decay` (`g <= 0`) and `beta` (between 0 and 1) are `[T, Hv]` in f32: see [`decay_and_beta`].
/// `state` is `[Hv, Dk, Dv]` in f32, `None` means zeros; it is never written: the new state is always a new tensor, so
/// that states can be kept for snapshots and rollback.
///
/// The result is `[T, Hv, Dv]` in v's dtype; everything inside is f32. On the CPU, row `t` of a call of up to
/// [`STEP_TOKENS`] tokens is bitwise the same whatever the number of tokens after it.
///
/// # Errors
/// If shapes or dtypes do not fit, or the dtype is none of f32, f16, bf16.
pub fn gated_delta(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    log_decay: &Tensor,
    beta: &Tensor,
    state: Option<&Tensor>,
) -> Result<(Tensor, Tensor)> {
    let (tokens, key_heads, key_dim) = k.dims3()?;
    let (rows, heads, dim) = v.dims3()?;
    check_dtype("the keys", q.dtype(), k)?;
    check_dtype("the values", q.dtype(), v)?;
    check_dtype("the log decay", DType::F32, log_decay)?;
    check_dtype("beta", DType::F32, beta)?;
    let divides = key_heads > 0 && heads > 0 && heads % key_heads == 0 && key_dim > 0 && dim > 0;
    if q.shape() != k.shape() || rows != tokens || !divides {
        candle_core::bail!(
            "gated_delta: q {:?} and k {:?} do not fit v {:?} ([T, Hk, Dk], [T, Hk, Dk], [T, Hv, Dv], Hv a multiple of Hk)",
            q.shape(),
            k.shape(),
            v.shape()
        );
    }
    if log_decay.dims() != [tokens, heads] || beta.dims() != [tokens, heads] {
        candle_core::bail!(
            "gated_delta: the log decay and beta must be [{tokens}, {heads}], got {:?} and {:?}",
            log_decay.shape(),
            beta.shape()
        );
    }
    if let Some(state) = state {
        check_dtype("the recurrent state", DType::F32, state)?;
        if state.dims() != [heads, key_dim, dim] {
            candle_core::bail!(
                "gated_delta: the state must be [{heads}, {key_dim}, {dim}], got {:?}",
                state.shape()
            );
        }
    }
    if !v.device().is_cpu() {
        return stock::gated_delta(q, k, v, log_decay, beta, state);
    }
    let dense_rows = |t: &Tensor| {
        if t.stride()[2] == 1 {
            Ok(t.clone())
        } else {
            t.contiguous()
        }
    };
    let (q, k, v) = (dense_rows(q)?, dense_rows(k)?, dense_rows(v)?);
    for_element!(v.dtype(), T => with_storage::<T, _>(&q, |q_data, q_layout| {
        with_storage::<T, _>(&k, |k_data, k_layout| with_storage::<T, _>(&v, |v_data, v_layout| {
            with_slice::<f32, _>(log_decay, |log_decay| with_slice::<f32, _>(beta, |beta| {
                with_optional(state, |state| {
                    let strides = |stride: &[usize]| [stride[0], stride[1]];
                    let shape = GatedDeltaShape {
                        tokens,
                        key_heads,
                        heads,
                        key_dim,
                        dim,
                        q_strides: strides(q_layout.stride()),
                        k_strides: strides(k_layout.stride()),
                        v_strides: strides(v_layout.stride()),
                    };
                    let mut out = vec![T::default(); tokens * heads * dim];
                    let new_state = gated_delta_slice(
                        &q_data[q_layout.start_offset()..],
                        &k_data[k_layout.start_offset()..],
                        &v_data[v_layout.start_offset()..],
                        log_decay,
                        beta,
                        state,
                        &shape,
                        &mut out,
                    );
                    Ok((
                        from_values(out, (tokens, heads, dim))?,
                        from_values(new_state, (heads, key_dim, dim))?,
                    ))
                })
            }))
        }))
    }))
}

/// Calls `f` with the elements of a CPU tensor, if there is one.
fn with_optional<R>(
    tensor: Option<&Tensor>,
    f: impl FnOnce(Option<&[f32]>) -> Result<R>,
) -> Result<R> {
    match tensor {
        Some(tensor) => with_slice::<f32, _>(tensor, |values| f(Some(values))),
        None => f(None),
    }
}

/// The operation in f64 on dense `q` and `k` `[T, Hk, Dk]`, `v` `[T, Hv, Dv]`, `log_decay` and `beta` `[T, Hv]`: the measure for
/// every faster version. `state` `[Hv, Dk, Dv]` is brought up to date; gives `[T, Hv, Dv]`.
#[allow(clippy::too_many_arguments)]
pub fn reference(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    log_decay: &[f64],
    beta: &[f64],
    state: &mut [f64],
    [key_heads, heads, key_dim, dim]: [usize; 4],
) -> Vec<f64> {
    let unit = |x: &[f64]| -> Vec<f64> {
        let norm = (x.iter().map(|x| x * x).sum::<f64>() + f64::from(NORM_EPS)).sqrt();
        x.iter().map(|x| x / norm).collect()
    };
    let mut out = vec![0.0; v.len()];
    for (row, out) in out.chunks_exact_mut(dim).enumerate() {
        let (token, head) = (row / heads, row % heads);
        let key_row = (token * key_heads + head / (heads / key_heads)) * key_dim;
        let (k, q) = (
            unit(&k[key_row..][..key_dim]),
            unit(&q[key_row..][..key_dim]),
        );
        let state = &mut state[head * key_dim * dim..][..key_dim * dim];
        let decay = log_decay[row].exp();
        state.iter_mut().for_each(|s| *s *= decay);
        for c in 0..dim {
            let memory: f64 = (0..key_dim).map(|i| state[i * dim + c] * k[i]).sum();
            let delta = beta[row] * (v[row * dim + c] - memory);
            for i in 0..key_dim {
                state[i * dim + c] += k[i] * delta;
                out[c] += state[i * dim + c] * q[i] / (key_dim as f64).sqrt();
            }
        }
    }
    out
}

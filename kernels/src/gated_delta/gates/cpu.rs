use rayon::prelude::*;

use crate::quantized::BlockDot;
use crate::simd::{Simd, SimdOp, dispatch, math};
use crate::{CpuPath, Element};

/// Elements widened at a time.
const CHUNK: usize = 256;
/// Elements that are worth a task of their own.
const TASK: usize = 1 << 14;

/// `rms_norm(x) * weight * silu(gate)` of rows of `weight.len()` values.
///
/// # Panics
/// If the lengths do not fit.
pub fn gated_rms_norm_slice<T: Element>(
    x: &[T],
    gate: &[T],
    weight: &[f32],
    eps: f32,
    out: &mut [T],
) {
    let k = weight.len();
    let fits = x.len() == gate.len() && x.len() == out.len();
    assert!(
        fits && x.len().is_multiple_of(k),
        "gated_rms_norm: slices of the wrong lengths"
    );
    let path = CpuPath::current();
    let span = (TASK / k).max(1) * k;
    let work = |((x, gate), out): ((&[T], &[T]), &mut [T])| {
        dispatch(
            path,
            GatedRmsNorm {
                x,
                gate,
                weight,
                eps,
                out,
            },
        );
    };
    if x.len() <= span {
        return work(((x, gate), out));
    }
    x.par_chunks(span)
        .zip(gate.par_chunks(span))
        .zip(out.par_chunks_mut(span))
        .for_each(work);
}

struct GatedRmsNorm<'a, T> {
    x: &'a [T],
    gate: &'a [T],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [T],
}

impl<T: Element> SimdOp for GatedRmsNorm<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        let k = self.weight.len();
        let (mut a, mut g, mut w) = ([0f32; CHUNK], [0f32; CHUNK], [0f32; CHUNK]);
        let rows = self.x.chunks_exact(k).zip(self.gate.chunks_exact(k));
        for ((x, gate), out) in rows.zip(self.out.chunks_exact_mut(k)) {
            // SAFETY: the buffers hold a whole number of vectors; what lies past a short chunk is zero in the sum of squares.
            unsafe {
                let mut squares = S::row_splat(0.0);
                for x in x.chunks(CHUNK) {
                    T::widen(x, &mut a[..x.len()]);
                    a[x.len()..].fill(0.0);
                    for i in (0..x.len()).step_by(16) {
                        for (v, squares) in squares.as_mut().iter_mut().enumerate() {
                            let x = S::load(a.as_ptr().add(i + v * S::N));
                            *squares = S::fma(x, x, *squares);
                        }
                    }
                }
                let mut square = 0.0;
                for v in squares.as_ref() {
                    square += S::sum(*v);
                }
                let scale = S::splat(1.0 / (square / k as f32 + self.eps).sqrt());
                let chunks = x.chunks(CHUNK).zip(gate.chunks(CHUNK));
                let chunks = chunks.zip(self.weight.chunks(CHUNK));
                for (((x, gate), weight), out) in chunks.zip(out.chunks_mut(CHUNK)) {
                    T::widen(x, &mut a[..x.len()]);
                    T::widen(gate, &mut g[..x.len()]);
                    w[..x.len()].copy_from_slice(weight);
                    for i in (0..x.len()).step_by(S::N) {
                        let at = a.as_mut_ptr().add(i);
                        let normed = S::mul(S::mul(S::load(at), scale), S::load(w.as_ptr().add(i)));
                        let gate = S::load(g.as_ptr().add(i));
                        S::store(
                            at,
                            S::div(S::mul(normed, gate), one_plus_exp_minus::<S>(gate)),
                        );
                    }
                    T::narrow(&a[..x.len()], out);
                }
            }
        }
    }
}

/// `x * sigmoid(gate)` on slices of one length.
///
/// # Panics
/// If the lengths differ.
pub fn sigmoid_mul_slice<T: Element>(x: &[T], gate: &[T], out: &mut [T]) {
    assert!(
        x.len() == gate.len() && x.len() == out.len(),
        "sigmoid_mul: slices of different lengths"
    );
    let path = CpuPath::current();
    if out.len() <= TASK {
        return dispatch(path, SigmoidMul { x, gate, out });
    }
    x.par_chunks(TASK)
        .zip(gate.par_chunks(TASK))
        .zip(out.par_chunks_mut(TASK))
        .for_each(|((x, gate), out)| dispatch(path, SigmoidMul { x, gate, out }));
}

struct SigmoidMul<'a, T> {
    x: &'a [T],
    gate: &'a [T],
    out: &'a mut [T],
}

impl<T: Element> SimdOp for SigmoidMul<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        let (mut a, mut g) = ([0f32; CHUNK], [0f32; CHUNK]);
        let chunks = self.x.chunks(CHUNK).zip(self.gate.chunks(CHUNK));
        for ((x, gate), out) in chunks.zip(self.out.chunks_mut(CHUNK)) {
            T::widen(x, &mut a[..x.len()]);
            T::widen(gate, &mut g[..x.len()]);
            for i in (0..x.len()).step_by(S::N) {
                // SAFETY: the buffers hold a whole number of vectors.
                unsafe {
                    let at = a.as_mut_ptr().add(i);
                    let below = one_plus_exp_minus::<S>(S::load(g.as_ptr().add(i)));
                    S::store(at, S::div(S::load(at), below));
                }
            }
            T::narrow(&a[..x.len()], out);
        }
    }
}

/// `1 + e^-x`: what a value is divided by to be multiplied by `sigmoid(x)`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn one_plus_exp_minus<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { S::add(S::splat(1.0), math::exp::<S>(S::sub(S::splat(0.0), x))) }
}

/// `-exp(a_log) * softplus(a + dt_bias)` and `sigmoid(b)` of rows of `a_log.len()` values.
///
/// # Panics
/// If the lengths do not fit.
pub fn decay_and_beta_slice(
    a: &[f32],
    b: &[f32],
    a_log: &[f32],
    dt_bias: &[f32],
    decay: &mut [f32],
    beta: &mut [f32],
) {
    let heads = a_log.len();
    let fits = dt_bias.len() == heads && a.len() == b.len();
    let fits = fits && decay.len() == a.len() && beta.len() == a.len();
    assert!(
        fits && a.len().is_multiple_of(heads.max(1)),
        "decay_and_beta: slices of the wrong lengths"
    );
    if a.is_empty() {
        return;
    }
    let rates: Vec<f32> = a_log.iter().map(|a| -a.exp()).collect();
    // A tenth of the usual task: these are library functions, an element at a time.
    let span = (TASK / 10 / heads).max(1) * heads;
    decay
        .par_chunks_mut(span)
        .zip(beta.par_chunks_mut(span))
        .zip(a.par_chunks(span).zip(b.par_chunks(span)))
        .for_each(|((decay, beta), (a, b))| {
            for (i, (decay, a)) in decay.iter_mut().zip(a).enumerate() {
                let x = a + dt_bias[i % heads];
                // The exponential of a number that is not positive never overflows.
                *decay = rates[i % heads] * (x.max(0.0) + (-x.abs()).exp().ln_1p());
            }
            for (beta, b) in beta.iter_mut().zip(b) {
                *beta = 1.0 / (1.0 + (-b).exp());
            }
        });
}

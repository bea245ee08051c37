use rayon::prelude::*;

use crate::quantized::BlockDot;
use crate::simd::{Simd, SimdOp, dispatch, widen};
use crate::{CpuPath, Element};

/// Elements widened at a time.
const CHUNK: usize = 256;
/// Elements that are worth a task of their own.
const TASK: usize = 1 << 15;

/// RMSNorm of rows of `weight.len()` values.
///
/// # Panics
/// If the lengths do not fit.
pub fn rms_norm_slice<T: Element>(x: &[T], weight: &[T], eps: f32, out: &mut [T]) {
    let k = weight.len();
    assert!(
        x.len() == out.len() && x.len().is_multiple_of(k),
        "rms_norm: slices of the wrong lengths"
    );
    let path = CpuPath::current();
    let span = (TASK / k).max(1) * k;
    if x.len() <= span {
        return dispatch(
            path,
            RmsNorm {
                x,
                weight,
                eps,
                out,
            },
        );
    }
    x.par_chunks(span)
        .zip(out.par_chunks_mut(span))
        .for_each(|(x, out)| {
            dispatch(
                path,
                RmsNorm {
                    x,
                    weight,
                    eps,
                    out,
                },
            )
        });
}

/// Residual sum, then RMSNorm of it, on rows of `weight.len()` values.
///
/// # Panics
/// If the lengths do not fit.
pub fn add_rms_norm_slice<T: Element>(
    x: &[T],
    residual: &[T],
    weight: &[T],
    eps: f32,
    sum: &mut [T],
    normed: &mut [T],
) {
    let k = weight.len();
    let fits = x.len() == residual.len() && x.len() == sum.len() && x.len() == normed.len();
    assert!(
        fits && x.len().is_multiple_of(k),
        "add_rms_norm: slices of the wrong lengths"
    );
    let path = CpuPath::current();
    let span = (TASK / k).max(1) * k;
    let work = |x: &[T], residual: &[T], sum: &mut [T], out: &mut [T]| {
        dispatch(
            path,
            Add {
                x,
                residual,
                out: sum,
            },
        );
        dispatch(
            path,
            RmsNorm {
                x: sum,
                weight,
                eps,
                out,
            },
        );
    };
    if x.len() <= span {
        return work(x, residual, sum, normed);
    }
    x.par_chunks(span)
        .zip(residual.par_chunks(span))
        .zip(sum.par_chunks_mut(span))
        .zip(normed.par_chunks_mut(span))
        .for_each(|(((x, residual), sum), out)| work(x, residual, sum, out));
}

struct RmsNorm<'a, T> {
    x: &'a [T],
    weight: &'a [T],
    eps: f32,
    out: &'a mut [T],
}

impl<T: Element> SimdOp for RmsNorm<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        let k = self.weight.len();
        let (mut a, mut b) = ([0f32; CHUNK], [0f32; CHUNK]);
        for (x, out) in self.x.chunks_exact(k).zip(self.out.chunks_exact_mut(k)) {
            // SAFETY: the buffers hold a whole number of vectors; what lies past a short chunk is zero.
            unsafe {
                let mut squares = S::row_splat(0.0);
                for x in x.chunks(CHUNK) {
                    widen::<S, T>(x, &mut a);
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
                let chunks = x
                    .chunks(CHUNK)
                    .zip(self.weight.chunks(CHUNK))
                    .zip(out.chunks_mut(CHUNK));
                for ((x, weight), out) in chunks {
                    widen::<S, T>(x, &mut a);
                    widen::<S, T>(weight, &mut b);
                    for i in (0..x.len()).step_by(S::N) {
                        let at = a.as_mut_ptr().add(i);
                        S::store(
                            at,
                            S::mul(S::mul(S::load(at), scale), S::load(b.as_ptr().add(i))),
                        );
                    }
                    T::narrow(&a[..x.len()], out);
                }
            }
        }
    }
}

struct Add<'a, T> {
    x: &'a [T],
    residual: &'a [T],
    out: &'a mut [T],
}

impl<T: Element> SimdOp for Add<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        let (mut a, mut b) = ([0f32; CHUNK], [0f32; CHUNK]);
        let chunks = self
            .x
            .chunks(CHUNK)
            .zip(self.residual.chunks(CHUNK))
            .zip(self.out.chunks_mut(CHUNK));
        for ((x, residual), out) in chunks {
            // SAFETY: this code is compiled for `S`.
            unsafe {
                widen::<S, T>(x, &mut a);
                widen::<S, T>(residual, &mut b);
            }
            for (a, b) in a.iter_mut().zip(&b) {
                *a += b;
            }
            T::narrow(&a[..x.len()], out);
        }
    }
}

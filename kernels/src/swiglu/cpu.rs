use rayon::prelude::*;

use crate::quantized::BlockDot;
use crate::simd::{Simd, SimdOp, dispatch, math, widen};
use crate::{CpuPath, Element};

/// Elements widened at a time.
const CHUNK: usize = 256;
/// Elements that are worth a task of their own.
const TASK: usize = 1 << 14;

/// `silu(gate) * up` on slices of one length.
///
/// # Panics
/// If the lengths differ.
pub fn swiglu_slice<T: Element>(gate: &[T], up: &[T], out: &mut [T]) {
    assert!(
        gate.len() == up.len() && up.len() == out.len(),
        "swiglu: slices of different lengths"
    );
    let path = CpuPath::current();
    if out.len() <= TASK {
        return dispatch(path, Swiglu { gate, up, out });
    }
    gate.par_chunks(TASK)
        .zip(up.par_chunks(TASK))
        .zip(out.par_chunks_mut(TASK))
        .for_each(|((gate, up), out)| dispatch(path, Swiglu { gate, up, out }));
}

/// [`swiglu_slice`] of rows `[gate; half][up; half]`, one after another; `out` holds half as many values.
///
/// # Panics
/// If `half` is 0 or the lengths do not fit.
pub fn swiglu_fused_slice<T: Element>(gate_up: &[T], half: usize, out: &mut [T]) {
    assert!(
        gate_up.len() == 2 * out.len() && out.len().is_multiple_of(half),
        "swiglu: slices of the wrong lengths"
    );
    let path = CpuPath::current();
    let rows = (TASK / half).max(1);
    let work = |(x, out): (&[T], &mut [T])| {
        for (x, out) in x.chunks_exact(2 * half).zip(out.chunks_exact_mut(half)) {
            let (gate, up) = x.split_at(half);
            dispatch(path, Swiglu { gate, up, out });
        }
    };
    if out.len() <= rows * half {
        return work((gate_up, out));
    }
    gate_up
        .par_chunks(2 * rows * half)
        .zip(out.par_chunks_mut(rows * half))
        .for_each(work);
}

struct Swiglu<'a, T> {
    gate: &'a [T],
    up: &'a [T],
    out: &'a mut [T],
}

impl<T: Element> SimdOp for Swiglu<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        let (mut g, mut u) = ([0f32; CHUNK], [0f32; CHUNK]);
        for ((gate, up), out) in self
            .gate
            .chunks(CHUNK)
            .zip(self.up.chunks(CHUNK))
            .zip(self.out.chunks_mut(CHUNK))
        {
            // SAFETY: this code is compiled for `S`.
            unsafe {
                widen::<S, T>(gate, &mut g);
                widen::<S, T>(up, &mut u);
            }
            for i in (0..gate.len()).step_by(S::N) {
                // SAFETY: the buffers hold a whole number of vectors.
                unsafe {
                    let x = S::load(g.as_ptr().add(i));
                    let e = math::exp::<S>(S::sub(S::splat(0.0), x));
                    let silu = S::div(x, S::add(S::splat(1.0), e));
                    S::store(
                        g.as_mut_ptr().add(i),
                        S::mul(silu, S::load(u.as_ptr().add(i))),
                    );
                }
            }
            T::narrow(&g[..out.len()], out);
        }
    }
}

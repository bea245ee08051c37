use std::ops::Range;

use candle_core::DType;
use rayon::prelude::*;

use crate::quantized::BlockDot;
use crate::simd::{Simd, SimdOp, dispatch};
use crate::{CpuPath, Element};

/// Below this much work (multiply-adds), waking other threads costs more than it gains.
const SERIAL: usize = 1 << 16;
/// Outputs whose weights are gone over together by all rows: they stay in the first-level caches meanwhile.
const SPAN: usize = 8;

/// `out = x W^T` on slices: `x` `[M, k]`, `weights` `[N, k]`, `out` `[M, N]`, all dense. Meant for a few rows: weights are read from
/// memory once, and each output is summed in an order that depends on `k` alone.
///
/// # Panics
/// If the lengths do not fit.
pub fn few_rows_slice<T: Element>(x: &[f32], weights: &[T], k: usize, out: &mut [f32]) {
    if out.is_empty() {
        return;
    }
    if k == 0 {
        return out.fill(0.0);
    }
    let (m, n) = (x.len() / k, weights.len() / k);
    assert!(
        x.len() == m * k && weights.len() == n * k && out.len() == m * n,
        "few_rows: slices of the wrong lengths"
    );
    let path = CpuPath::current();
    let to = Output(out.as_mut_ptr());
    let work = |outputs: Range<usize>| {
        dispatch(
            path,
            FewRows {
                x,
                weights,
                k,
                outputs,
                to,
            },
        );
    };
    let threads = rayon::current_num_threads();
    if threads == 1 || m * n * k < SERIAL {
        return work(0..n);
    }
    // A few tasks a thread even out what other load takes from the cores.
    let span = n.div_ceil(4 * threads).next_multiple_of(SPAN);
    (0..n.div_ceil(span))
        .into_par_iter()
        .for_each(|i| work(i * span..((i + 1) * span).min(n)));
}

/// Where tasks write the outputs that are theirs.
#[derive(Clone, Copy)]
struct Output(*mut f32);
// SAFETY: tasks write disjoint elements, and the call that owns the memory waits for all of them.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

/// Some outputs of all rows.
struct FewRows<'a, T> {
    x: &'a [f32],
    weights: &'a [T],
    k: usize,
    outputs: Range<usize>,
    to: Output,
}

impl<T: Element> SimdOp for FewRows<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        let m = self.x.len() / self.k;
        let mut outputs = self.outputs.clone();
        while !outputs.is_empty() {
            let span = outputs.start..outputs.end.min(outputs.start + SPAN);
            outputs.start = span.end;
            let mut row = 0;
            while row < m {
                let left = m - row;
                // SAFETY: rows and outputs lie within the call's. As many sums run side by side as the registers hold (16 on AVX2,
                // 32 elsewhere) and as hide the latency of a multiply-add.
                unsafe {
                    match left {
                        1 => block::<S, T, 1, 8>(&self, row, span.clone()),
                        2 => block::<S, T, 2, 4>(&self, row, span.clone()),
                        3 => block::<S, T, 3, 4>(&self, row, span.clone()),
                        _ if S::N == 8 => block::<S, T, 4, 2>(&self, row, span.clone()),
                        _ => block::<S, T, 4, 4>(&self, row, span.clone()),
                    }
                }
                row += left.min(4);
            }
        }
    }
}

/// The outputs `span` of `M` rows from `row` on, `R` outputs at a time.
///
/// # Safety
/// As for [`Simd`]; the rows and outputs lie within the job's.
#[inline(always)]
unsafe fn block<S: Simd, T: Element, const M: usize, const R: usize>(
    job: &FewRows<'_, T>,
    row: usize,
    span: Range<usize>,
) {
    let (k, n) = (job.k, job.weights.len() / job.k);
    let whole = k / S::N * S::N;
    let x: [&[f32]; M] = std::array::from_fn(|r| &job.x[(row + r) * k..][..k]);
    for first in span.clone().step_by(R) {
        // Past the end, the last output again: few widths are compiled.
        let weights: [&[T]; R] =
            std::array::from_fn(|o| &job.weights[(first + o).min(span.end - 1) * k..][..k]);
        // SAFETY: every vector lies within the first `whole` elements of its row, and the outputs are this task's own.
        unsafe {
            let mut acc = [[S::splat(0.0); M]; R];
            for i in (0..whole).step_by(S::N) {
                let x: [S::V; M] = std::array::from_fn(|r| S::load(x[r].as_ptr().add(i)));
                for o in 0..R {
                    let w = load::<S, T>(weights[o].as_ptr().add(i));
                    for r in 0..M {
                        acc[o][r] = S::fma(x[r], w, acc[o][r]);
                    }
                }
            }
            for o in 0..R.min(span.end - first) {
                for r in 0..M {
                    let mut total = S::sum(acc[o][r]);
                    for i in whole..k {
                        total += x[r][i] * weights[o][i].to_f32();
                    }
                    *job.to.0.add((row + r) * n + first + o) = total;
                }
            }
        }
    }
}

/// A vector of weights, widened.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn load<S: Simd, T: Element>(from: *const T) -> S::V {
    // SAFETY: the caller's promise; f16 and bf16 have the layout of u16.
    unsafe {
        match T::DTYPE {
            DType::F16 => S::load_f16(from.cast()),
            DType::BF16 => S::load_bf16(from.cast()),
            _ => S::load(from.cast()),
        }
    }
}

use std::cell::Cell;

use rayon::prelude::*;

use crate::quantized::BlockDot;
use crate::simd::{Simd, SimdOp, dispatch, math};
use crate::{CpuPath, Element};

/// Channels at a time; a multiple of 16.
const CHANNELS: usize = 128;
/// Rows of `y` that a task fills.
const ROWS: usize = 32;

thread_local! {
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Sizes of one convolution.
#[derive(Clone, Copy, Debug)]
pub struct ConvShape {
    /// Rows of `x`.
    pub tokens: usize,
    /// Columns of `x`.
    pub channels: usize,
    /// Taps of each channel's filter.
    pub taps: usize,
    /// From one row of `x` to the next, in elements.
    pub stride: usize,
}

/// The convolution on slices: `x` strided as `shape` says, `weight` `[channels, taps]`, both states `[taps - 1, channels]`, `y`
/// `[tokens, channels]`.
///
/// # Panics
/// If a slice is shorter than the shape says.
pub fn causal_conv1d_silu_slice<T: Element>(
    x: &[T],
    weight: &[f32],
    state: &[T],
    shape: ConvShape,
    y: &mut [T],
    new_state: &mut [T],
) {
    let ConvShape {
        tokens,
        channels,
        taps,
        ..
    } = shape;
    assert!(
        y.len() == tokens * channels && new_state.len() == (taps - 1) * channels,
        "causal_conv1d_silu: slices of the wrong lengths"
    );
    if channels == 0 {
        return;
    }
    let call = Call {
        x,
        weight,
        state,
        shape,
    };
    for (j, row) in new_state.chunks_exact_mut(channels).enumerate() {
        row.copy_from_slice(call.row(tokens + j));
    }
    let path = CpuPath::current();
    let work = |(task, y): (usize, &mut [T])| {
        let mut scratch = SCRATCH.take();
        dispatch(
            path,
            Conv {
                call: &call,
                first: task * ROWS,
                y,
                scratch: &mut scratch,
            },
        );
        SCRATCH.set(scratch);
    };
    if tokens <= ROWS {
        return work((0, y));
    }
    y.par_chunks_mut(ROWS * channels).enumerate().for_each(work);
}

struct Call<'a, T> {
    x: &'a [T],
    weight: &'a [f32],
    state: &'a [T],
    shape: ConvShape,
}

impl<T> Call<'_, T> {
    /// Row `i` of the state followed by `x`.
    fn row(&self, i: usize) -> &[T] {
        let (rows, stride, i) = match i.checked_sub(self.shape.taps - 1) {
            Some(token) => (self.x, self.shape.stride, token),
            None => (self.state, self.shape.channels, i),
        };
        &rows[i * stride..][..self.shape.channels]
    }
}

/// Rows `first ..` of the result, as many as `y` holds.
struct Conv<'a, T> {
    call: &'a Call<'a, T>,
    first: usize,
    y: &'a mut [T],
    scratch: &'a mut Vec<f32>,
}

impl<T: Element> SimdOp for Conv<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        let ConvShape { channels, taps, .. } = self.call.shape;
        let rows = self.y.len() / channels;
        self.scratch.resize((2 * taps + rows) * CHANNELS, 0.0);
        let (weights, rest) = self.scratch.split_at_mut(taps * CHANNELS);
        let (inputs, out) = rest.split_at_mut((rows + taps - 1) * CHANNELS);
        for from in (0..channels).step_by(CHANNELS) {
            let count = CHANNELS.min(channels - from);
            let weight = &self.call.weight[from * taps..][..count * taps];
            if taps == 4 {
                transpose::<4>(weight.as_chunks().0, weights);
            } else {
                for (i, w) in weight.iter().enumerate() {
                    weights[i % taps * CHANNELS + i / taps] = *w;
                }
            }
            for (i, input) in inputs.chunks_exact_mut(CHANNELS).enumerate() {
                T::widen(
                    &self.call.row(self.first + i)[from..][..count],
                    &mut input[..count],
                );
            }
            for (row, y) in self.y.chunks_exact_mut(channels).enumerate() {
                let inputs = &inputs[row * CHANNELS..][..taps * CHANNELS];
                // SAFETY: inputs and weights hold `taps` rows of CHANNELS elements, and `out` holds one.
                unsafe {
                    match taps {
                        4 => filter::<S>(4, weights, inputs, out, count),
                        _ => filter::<S>(taps, weights, inputs, out, count),
                    }
                }
                T::narrow(&out[..count], &mut y[from..][..count]);
            }
        }
    }
}

/// The first `count` channels of one row of the result, inlined for a constant number of taps where there is one.
///
/// # Safety
/// As for [`Simd`]; `weights` and `inputs` hold `taps` rows of [`CHANNELS`] elements, a whole number of vectors, and `out` one.
#[inline(always)]
unsafe fn filter<S: Simd>(
    taps: usize,
    weights: &[f32],
    inputs: &[f32],
    out: &mut [f32],
    count: usize,
) {
    let (weights, inputs, out) = (weights.as_ptr(), inputs.as_ptr(), out.as_mut_ptr());
    for i in (0..count).step_by(S::N) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut sum = S::splat(0.0);
            for j in 0..taps {
                let at = j * CHANNELS + i;
                sum = S::fma(S::load(weights.add(at)), S::load(inputs.add(at)), sum);
            }
            let e = math::exp::<S>(S::sub(S::splat(0.0), sum));
            S::store(out.add(i), S::div(sum, S::add(S::splat(1.0), e)));
        }
    }
}

/// Turns filters of `K` taps into rows of one tap for all channels, [`CHANNELS`] apart.
#[inline(always)]
fn transpose<const K: usize>(filters: &[[f32; K]], rows: &mut [f32]) {
    for (j, row) in rows.chunks_exact_mut(CHANNELS).take(K).enumerate() {
        for (to, filter) in row.iter_mut().zip(filters) {
            *to = filter[j];
        }
    }
}

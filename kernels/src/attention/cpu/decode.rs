//! Few queries over many keys (decode, verify): keys are split into spans of positions, each span gives every row a
//! partial softmax, and the partial results are merged in order.

use std::cell::Cell;
use std::ops::Range;

use rayon::prelude::*;

use super::Call;
use crate::Element;
use crate::quantized::BlockDot;
use crate::simd::{Simd, SimdOp, dispatch, math, widen};

/// Positions in a span. Spans are cut by position and not by index, so that a row is summed in the same parts however
/// many queries run with it and wherever its cache begins.
const SPAN: u32 = 512;
/// Keys widened at a time.
const KEYS: usize = 16;
/// Below this many key elements, waking other threads costs more than it gains.
const SERIAL: usize = 1 << 15;

thread_local! {
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    static PARTIAL: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

pub(super) fn attention<T: Element>(call: &Call<'_, T>, out: &mut [T]) {
    let shape = call.shape;
    let (queries, group, padded) = (call.seen.len(), shape.group(), shape.padded());
    let start = call
        .seen
        .iter()
        .filter(|r| !r.is_empty())
        .map(|r| r.start)
        .min()
        .unwrap_or(0);
    let end = call.seen.iter().map(|r| r.end).max().unwrap_or(0);
    let spans: Vec<Range<usize>> = call.k_positions[start.min(end)..end]
        .chunk_by(|a, b| a / SPAN == b / SPAN)
        .scan(start, |at, span| {
            let from = *at;
            *at += span.len();
            Some(from..*at)
        })
        .collect();
    let rows = queries * group;
    // Of each row: the unnormalised output, then its largest score and its sum of weights (padded to a whole vector).
    let record = padded + 16;
    let mut partial = PARTIAL.take();
    let tasks = shape.kv_heads * spans.len();
    partial.resize(tasks * rows * record, 0.0);
    let work = |(task, partial): (usize, &mut [f32])| {
        let mut scratch = SCRATCH.take();
        let (kv, span) = (task / spans.len(), spans[task % spans.len()].clone());
        dispatch(
            call.path,
            Span {
                call,
                kv,
                span,
                scratch: &mut scratch,
                partial,
            },
        );
        SCRATCH.set(scratch);
    };
    if (end - start.min(end)) * shape.kv_heads * shape.dim < SERIAL {
        partial
            .chunks_exact_mut(rows * record)
            .enumerate()
            .for_each(work);
    } else {
        partial
            .par_chunks_exact_mut(rows * record)
            .enumerate()
            .for_each(work);
    }
    let mut sum = vec![0f32; padded];
    for (row, out) in out.chunks_exact_mut(shape.dim).enumerate() {
        let (query, head) = (row / shape.heads, row % shape.heads);
        let (kv, local) = (head / group, query * group + head % group);
        let parts = || {
            let part = |span: usize| {
                &partial[((kv * spans.len() + span) * rows + local) * record..][..record]
            };
            (0..spans.len())
                .map(part)
                .filter(|part| part[padded] > f32::NEG_INFINITY || part[padded].is_nan())
        };
        let top = parts().map(|p| p[padded]).fold(f32::NEG_INFINITY, f32::max);
        let mut total = 0.0;
        sum.fill(0.0);
        for part in parts() {
            let keep = (part[padded] - top).exp();
            total += keep * part[padded + 1];
            for (sum, p) in sum.iter_mut().zip(part) {
                *sum += keep * p;
            }
        }
        if call.seen[query].is_empty() {
            sum.fill(0.0);
        } else {
            let inverse = 1.0 / total;
            sum.iter_mut().for_each(|v| *v *= inverse);
        }
        T::narrow(&sum[..shape.dim], out);
    }
    PARTIAL.set(partial);
}

/// The partial softmax of every row over one span of keys of one head.
struct Span<'a, T> {
    call: &'a Call<'a, T>,
    kv: usize,
    span: Range<usize>,
    scratch: &'a mut Vec<f32>,
    partial: &'a mut [f32],
}

impl<T: Element> SimdOp for Span<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        let Self {
            call,
            kv,
            span,
            scratch,
            partial,
        } = self;
        let (padded, group) = (call.shape.padded(), call.shape.group());
        let rows = call.seen.len() * group;
        // Scores are written 16 at a time, so that a row's vectors may reach past its last key.
        let width = span.len().next_multiple_of(16) + 16;
        scratch.clear();
        scratch.resize(rows * (padded + width) + KEYS * padded, 0.0);
        let (q, rest) = scratch.split_at_mut(rows * padded);
        let (tile, scores) = rest.split_at_mut(KEYS * padded);
        call.load_queries(kv, 0..call.seen.len(), q);

        for first in span.clone().step_by(KEYS) {
            let keys = KEYS.min(span.end - first);
            for (i, to) in tile.chunks_exact_mut(padded).take(keys).enumerate() {
                // SAFETY: this code is compiled for `S`.
                unsafe { widen::<S, T>(call.key(kv, first + i), to) };
            }
            for row in 0..rows {
                let q = q[row * padded..].as_ptr();
                let to = &mut scores[row * width + first - span.start..][..keys];
                for (to, key) in to.iter_mut().zip(tile.chunks_exact(padded)) {
                    // SAFETY: a query and a widened key hold `padded` elements, a multiple of 16.
                    *to = unsafe { dot::<S>(q, key.as_ptr(), padded) };
                }
            }
        }

        let record = padded + 16;
        for (row, partial) in partial.chunks_exact_mut(record).enumerate() {
            let seen = &call.seen[row / group];
            let from = seen.start.clamp(span.start, span.end);
            let to = seen.end.clamp(from, span.end);
            let scores = &mut scores[row * width..][..width];
            let own = from - span.start..to - span.start;
            // SAFETY: the slice below holds whole vectors from `own.start` on.
            let (top, total) = unsafe { softmax::<S>(scores, own.clone()) };
            partial[..padded].fill(0.0);
            partial[padded] = top;
            partial[padded + 1] = total;
        }

        for first in span.clone().step_by(KEYS) {
            let keys = KEYS.min(span.end - first);
            for (i, to) in tile.chunks_exact_mut(padded).take(keys).enumerate() {
                // SAFETY: this code is compiled for `S`.
                unsafe { widen::<S, T>(call.value(kv, first + i), to) };
            }
            for (row, partial) in partial.chunks_exact_mut(record).enumerate() {
                let seen = &call.seen[row / group];
                let from = seen.start.clamp(first, first + keys);
                let to = seen.end.clamp(from, first + keys);
                let weights = &scores[row * width + from - span.start..][..to - from];
                // SAFETY: the tile holds `padded` elements a key, and so does the partial output.
                unsafe {
                    let values = tile.as_ptr().add((from - first) * padded);
                    for d in (0..padded).step_by(S::N) {
                        let to = partial.as_mut_ptr().add(d);
                        let mut acc = S::load(to);
                        for (i, weight) in weights.iter().enumerate() {
                            acc =
                                S::fma(S::splat(*weight), S::load(values.add(i * padded + d)), acc);
                        }
                        S::store(to, acc);
                    }
                }
            }
        }
    }
}

/// Dot product of `len` elements, a multiple of 16.
#[inline(always)]
unsafe fn dot<S: Simd>(a: *const f32, b: *const f32, len: usize) -> f32 {
    // SAFETY: the caller's pointers hold `len` elements.
    unsafe {
        let mut acc = S::row_splat(0.0);
        for i in (0..len).step_by(16) {
            for (v, acc) in acc.as_mut().iter_mut().enumerate() {
                let at = i + v * S::N;
                *acc = S::fma(S::load(a.add(at)), S::load(b.add(at)), *acc);
            }
        }
        let mut total = acc.as_ref()[0];
        for v in &acc.as_ref()[1..] {
            total = S::add(total, *v);
        }
        S::sum(total)
    }
}

/// Turns the scores `own` into `exp(score - top)`; gives `top` and their sum. `-inf` and 0 for none.
///
/// # Safety
/// As for [`Simd`]; `scores` reaches 16 elements past `own`.
#[inline(always)]
unsafe fn softmax<S: Simd>(scores: &mut [f32], own: Range<usize>) -> (f32, f32) {
    if own.is_empty() {
        return (f32::NEG_INFINITY, 0.0);
    }
    // Past the row's last key, up to a whole vector: nothing.
    scores[own.end..own.end + 16].fill(f32::NEG_INFINITY);
    // SAFETY: the caller's promise.
    unsafe {
        let at = scores.as_mut_ptr().add(own.start);
        let mut top = S::splat(f32::NEG_INFINITY);
        for i in (0..own.len()).step_by(S::N) {
            top = S::max(top, S::load(at.add(i)));
        }
        let top = S::maximum(top);
        let minus = S::splat(top);
        let mut total = S::splat(0.0);
        for i in (0..own.len()).step_by(S::N) {
            let p = math::exp::<S>(S::sub(S::load(at.add(i)), minus));
            S::store(at.add(i), p);
            total = S::add(total, p);
        }
        (top, S::sum(total))
    }
}

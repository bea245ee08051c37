//! Many queries (prefill): tiles of queries over tiles of keys with an online softmax.

use std::cell::Cell;
use std::ops::Range;

use rayon::prelude::*;

use super::{Call, multiply_add};
use crate::Element;
use crate::quantized::BlockDot;
use crate::simd::{Simd, SimdOp, dispatch, math, widen};

/// Keys in a tile.
const KEYS: usize = 64;
/// Rows (queries by heads of a group) in a tile, about.
const ROWS: usize = 96;

thread_local! {
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Where tasks write their own rows of the output.
#[derive(Clone, Copy)]
struct Output<T>(*mut T);
// SAFETY: tasks write disjoint rows, and the call that owns the memory waits for all of them.
unsafe impl<T: Send> Send for Output<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Output<T> {}

impl<T> Output<T> {
    /// # Safety
    /// `at .. at + len` lies within the output, and no other task touches it meanwhile.
    unsafe fn slice<'a>(self, at: usize, len: usize) -> &'a mut [T] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(at), len) }
    }
}

pub(super) fn attention<T: Element>(call: &Call<'_, T>, out: &mut [T]) {
    let shape = call.shape;
    let queries = call.seen.len();
    let step = (ROWS / shape.group()).max(4);
    let tiles = queries.div_ceil(step);
    assert_eq!(out.len(), queries * shape.heads * shape.dim);
    let output = Output(out.as_mut_ptr());
    (0..tiles * shape.kv_heads)
        .into_par_iter()
        .for_each(|task| {
            // Late tiles see the most keys: they go first, so that no thread is left with one at the end.
            let (tile, kv) = (tiles - 1 - task / shape.kv_heads, task % shape.kv_heads);
            let queries = tile * step..((tile + 1) * step).min(queries);
            let mut scratch = SCRATCH.take();
            dispatch(
                call.path,
                Tile {
                    call,
                    kv,
                    queries,
                    scratch: &mut scratch,
                    output,
                },
            );
            SCRATCH.set(scratch);
        });
}

struct Tile<'a, T> {
    call: &'a Call<'a, T>,
    kv: usize,
    queries: Range<usize>,
    scratch: &'a mut Vec<f32>,
    output: Output<T>,
}

impl<T: Element> SimdOp for Tile<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        let Self {
            call,
            kv,
            queries,
            scratch,
            output,
        } = self;
        let (dim, padded, group) = (call.shape.dim, call.shape.padded(), call.shape.group());
        let rows = queries.len() * group;
        let seen = &call.seen[queries.clone()];
        let start = seen
            .iter()
            .filter(|r| !r.is_empty())
            .map(|r| r.start)
            .min()
            .unwrap_or(0);
        let end = seen.iter().map(|r| r.end).max().unwrap_or(0);

        scratch.clear();
        scratch.resize(
            rows * (2 * padded + KEYS + 2) + 2 * KEYS * padded + padded,
            0.0,
        );
        let (q, rest) = scratch.split_at_mut(rows * padded);
        let (acc, rest) = rest.split_at_mut(rows * padded);
        let (scores, rest) = rest.split_at_mut(rows * KEYS);
        let (keys_t, rest) = rest.split_at_mut(KEYS * padded);
        let (values, rest) = rest.split_at_mut(KEYS * padded);
        let (wide, rest) = rest.split_at_mut(padded);
        let (tops, totals) = rest.split_at_mut(rows);
        tops.fill(f32::NEG_INFINITY);
        call.load_queries(kv, queries.clone(), q);

        for first in (start..end).step_by(KEYS) {
            let keys = KEYS.min(end - first);
            for i in 0..keys {
                // SAFETY: this code is compiled for `S`.
                unsafe { widen::<S, T>(call.key(kv, first + i), wide) };
                for (d, v) in wide[..dim].iter().enumerate() {
                    keys_t[d * KEYS + i] = *v;
                }
                // SAFETY: as above.
                unsafe { widen::<S, T>(call.value(kv, first + i), &mut values[i * padded..]) };
            }
            // Rows of no further interest to the first queries of the tile, or not yet: see `own` below.
            scores.fill(0.0);
            // SAFETY: `q` is `[rows, padded]`, the keys `[padded, KEYS]`, the scores `[rows, KEYS]`.
            unsafe {
                multiply_add::<S>(
                    (q.as_ptr(), padded),
                    (keys_t.as_ptr(), KEYS),
                    (scores.as_mut_ptr(), KEYS),
                    [rows, dim, KEYS],
                );
            }
            for row in 0..rows {
                let own = &seen[row / group];
                let from = own.start.clamp(first, first + keys) - first;
                let to = own.end.clamp(first + from, first + keys) - first;
                let scores = &mut scores[row * KEYS..][..KEYS];
                scores[..from].fill(f32::NEG_INFINITY);
                scores[to..].fill(f32::NEG_INFINITY);
                // SAFETY: a row of scores holds KEYS elements and one of `acc` holds `padded`, multiples of 16.
                unsafe {
                    if from == to {
                        scores.fill(0.0);
                    } else {
                        let acc = acc[row * padded..].as_mut_ptr();
                        online::<S>(scores, &mut tops[row], &mut totals[row], acc, padded);
                    }
                }
            }
            // SAFETY: the weights are `[rows, KEYS]`, the values `[KEYS, padded]`, the sums `[rows, padded]`.
            unsafe {
                multiply_add::<S>(
                    (scores.as_ptr(), KEYS),
                    (values.as_ptr(), padded),
                    (acc.as_mut_ptr(), padded),
                    [rows, keys, padded],
                );
            }
        }

        for (row, acc) in acc.chunks_exact_mut(padded).enumerate() {
            let (query, head) = (queries.start + row / group, kv * group + row % group);
            if !seen[row / group].is_empty() {
                let inverse = 1.0 / totals[row];
                acc.iter_mut().for_each(|v| *v *= inverse);
            }
            // SAFETY: this task alone writes this query's heads.
            let out = unsafe { output.slice((query * call.shape.heads + head) * dim, dim) };
            T::narrow(&acc[..dim], out);
        }
    }
}

/// Turns a row of scores into weights under the largest score so far, and scales what was summed under the last one.
#[inline(always)]
unsafe fn online<S: Simd>(
    scores: &mut [f32],
    top: &mut f32,
    total: &mut f32,
    acc: *mut f32,
    padded: usize,
) {
    // SAFETY: the caller's slices hold whole vectors.
    unsafe {
        let at = scores.as_mut_ptr();
        let mut largest = S::splat(*top);
        for i in (0..KEYS).step_by(S::N) {
            largest = S::max(largest, S::load(at.add(i)));
        }
        let largest = S::maximum(largest);
        if largest > *top {
            let keep = (*top - largest).exp();
            *total *= keep;
            let keep = S::splat(keep);
            for d in (0..padded).step_by(S::N) {
                S::store(acc.add(d), S::mul(S::load(acc.add(d)), keep));
            }
            *top = largest;
        }
        let minus = S::splat(*top);
        let mut sum = S::splat(0.0);
        for i in (0..KEYS).step_by(S::N) {
            let p = math::exp::<S>(S::sub(S::load(at.add(i)), minus));
            S::store(at.add(i), p);
            sum = S::add(sum, p);
        }
        *total += S::sum(sum);
    }
}

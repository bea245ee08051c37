//! Token by token. The columns of a state do not depend on each other, so that a block of them goes through all tokens while it
//! stays in the first-level cache. Per token and element there is one pass: it decays and corrects the state for the token and
//! takes the next token's two dot products with the result on the way.

use super::{Head, dot};
use crate::Element;
use crate::quantized::BlockDot;
use crate::simd::{Simd, SimdOp};

/// Rows of 16 columns in a block.
const ROWS: usize = 2;
/// Columns in a block.
const COLUMNS: usize = 16 * ROWS;

/// Tokens that keys, queries and values are prepared for at a time.
const SPAN: usize = 64;

pub(super) struct Step<'a, T>(pub(super) Head<'a, T>);

/// A block of columns of a state, or of scratch memory: the address of the first row and the stride between rows.
type Block<P> = (P, usize);

impl<T: Element> SimdOp for Step<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        let head = self.0;
        let shape = head.call.shape;
        let mut scratch = std::mem::take(head.scratch);
        let mut from = head.state().map(<[f32]>::as_ptr);
        for first in (0..shape.tokens).step_by(SPAN) {
            let count = SPAN.min(shape.tokens - first);
            // SAFETY: the caller's promise; `from` is this head's old state, or the new one that the last span has written.
            unsafe { span::<S, T>(&head, first, count, from, &mut scratch) };
            from = Some(head.new_state());
        }
        *head.scratch = scratch;
    }
}

/// Takes the state `from` (`None` means zeros) over `count` tokens from `first` on, into the head's new state, which it may be.
///
/// # Safety
/// As for [`Simd`]; `from` holds `key_dim * dim` elements.
#[inline(always)]
unsafe fn span<S: Simd, T: Element>(
    head: &Head<'_, T>,
    first: usize,
    count: usize,
    from: Option<*const f32>,
    scratch: &mut Vec<f32>,
) {
    let (key_dim, dim) = (head.call.shape.key_dim, head.call.shape.dim);
    let (key_padded, padded) = (key_dim.next_multiple_of(16), dim.next_multiple_of(COLUMNS));
    scratch.resize(
        count * (2 * key_padded + padded + 3) + key_dim * COLUMNS,
        0.0,
    );
    let (keys, rest) = scratch.split_at_mut(count * key_padded);
    let (queries, rest) = rest.split_at_mut(count * key_padded);
    let (values, rest) = rest.split_at_mut(count * padded);
    let (factors, block) = rest.split_at_mut(count * 3);
    let factors = factors.as_chunks_mut::<3>().0;
    for i in 0..count {
        let k = &mut keys[i * key_padded..][..key_padded];
        let q = &mut queries[i * key_padded..][..key_padded];
        let (decay, beta) = head.decay_and_beta(first + i);
        // SAFETY: both rows hold `key_padded` elements, a multiple of 16.
        unsafe {
            head.load_key_and_query::<S>(first + i, k, q);
            factors[i] = [decay, beta, dot::<S>(k, q)];
        }
        head.load_value(first + i, &mut values[i * padded..][..padded]);
    }

    let new_state = head.new_state();
    let (keys, queries) = (keys.as_ptr(), queries.as_ptr());
    let block = block.as_mut_ptr();
    for column in (0..dim).step_by(COLUMNS) {
        let columns = COLUMNS.min(dim - column);
        let whole = columns == COLUMNS;
        // SAFETY: a row of a state holds `dim` elements and one of the scratch block `COLUMNS`, both have `key_dim` rows; the
        // other pointers are to rows of the slices above, `padded` or `key_padded` long.
        unsafe {
            let mut at: Block<*const f32> = (block, COLUMNS);
            match from {
                Some(from) if whole => at = (from.add(column), dim),
                Some(from) => {
                    for i in 0..key_dim {
                        let row = block.add(i * COLUMNS);
                        std::ptr::copy_nonoverlapping(from.add(i * dim + column), row, columns);
                        row.add(columns).write_bytes(0, COLUMNS - columns);
                    }
                }
                None => block.write_bytes(0, key_dim * COLUMNS),
            }
            let mut read = dots::<S>(at, keys, queries, key_dim);
            for (i, &[decay, beta, kq]) in factors.iter().enumerate() {
                let value = values.as_mut_ptr().add(i * padded + column);
                let delta = correct::<S>(&read, value, decay, beta, kq);
                let k = keys.add(i * key_padded);
                if i + 1 < count {
                    let next = (i + 1) * key_padded;
                    let next = (keys.add(next), queries.add(next));
                    let to = (block, COLUMNS);
                    read = update_and_dots::<S>(at, to, decay, k, &delta, next, key_dim);
                    at = (block, COLUMNS);
                } else if whole {
                    let to = (new_state.add(column), dim);
                    update::<S>(at, to, decay, k, &delta, key_dim);
                } else {
                    update::<S>(at, (block, COLUMNS), decay, k, &delta, key_dim);
                    for i in 0..key_dim {
                        let row = block.add(i * COLUMNS);
                        std::ptr::copy_nonoverlapping(
                            row,
                            new_state.add(i * dim + column),
                            columns,
                        );
                    }
                }
            }
        }
    }
    for i in 0..count {
        head.store_output(first + i, &values[i * padded..][..padded]);
    }
}

/// What a key and a query read in a block of a state: `(S^T k, S^T q)`.
type Read<S> = ([<S as Simd>::Row; ROWS], [<S as Simd>::Row; ROWS]);

/// # Safety
/// As for [`Simd`]; the block has `rows` rows, as long as `k` and `q`.
#[inline(always)]
unsafe fn dots<S: Simd>(
    (from, stride): Block<*const f32>,
    k: *const f32,
    q: *const f32,
    rows: usize,
) -> Read<S> {
    // SAFETY: the caller's promise.
    unsafe {
        let mut m = [S::row_splat(0.0); ROWS];
        let mut o = [S::row_splat(0.0); ROWS];
        for i in 0..rows {
            let (k, q) = (S::splat(*k.add(i)), S::splat(*q.add(i)));
            let from = from.add(i * stride);
            for r in 0..ROWS {
                for v in 0..16 / S::N {
                    let s = S::load(from.add(16 * r + v * S::N));
                    m[r].as_mut()[v] = S::fma(k, s, m[r].as_ref()[v]);
                    o[r].as_mut()[v] = S::fma(q, s, o[r].as_ref()[v]);
                }
            }
        }
        (m, o)
    }
}

/// The correction `beta (v - decay S^T k)`; the token's value is replaced by its result `decay S^T q + (k q) delta`.
///
/// # Safety
/// As for [`Simd`]; `value` holds [`COLUMNS`] elements.
#[inline(always)]
unsafe fn correct<S: Simd>(
    (m, o): &Read<S>,
    value: *mut f32,
    decay: f32,
    beta: f32,
    kq: f32,
) -> [S::Row; ROWS] {
    // SAFETY: the caller's promise.
    unsafe {
        let (decay, beta, kq) = (S::splat(decay), S::splat(beta), S::splat(kq));
        let mut delta = [S::row_splat(0.0); ROWS];
        for r in 0..ROWS {
            for v in 0..16 / S::N {
                let value = value.add(16 * r + v * S::N);
                let error = S::sub(S::load(value), S::mul(decay, m[r].as_ref()[v]));
                let d = S::mul(beta, error);
                delta[r].as_mut()[v] = d;
                S::store(value, S::fma(kq, d, S::mul(decay, o[r].as_ref()[v])));
            }
        }
        delta
    }
}

/// `to = decay * from + k delta^T`.
///
/// # Safety
/// As for [`Simd`]; the blocks have `rows` rows, as long as `k`.
#[inline(always)]
unsafe fn update<S: Simd>(
    (from, from_stride): Block<*const f32>,
    (to, to_stride): Block<*mut f32>,
    decay: f32,
    k: *const f32,
    delta: &[S::Row; ROWS],
    rows: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let decay = S::splat(decay);
        for i in 0..rows {
            let k = S::splat(*k.add(i));
            let (from, to) = (from.add(i * from_stride), to.add(i * to_stride));
            for (r, delta) in delta.iter().enumerate() {
                for (v, delta) in delta.as_ref().iter().enumerate() {
                    let at = 16 * r + v * S::N;
                    let s = S::mul(decay, S::load(from.add(at)));
                    S::store(to.add(at), S::fma(k, *delta, s));
                }
            }
        }
    }
}

/// [`update`], and [`dots`] of the result with the next token's key and query: the same arithmetic in one pass.
///
/// # Safety
/// As for both.
#[inline(always)]
unsafe fn update_and_dots<S: Simd>(
    (from, from_stride): Block<*const f32>,
    (to, to_stride): Block<*mut f32>,
    decay: f32,
    k: *const f32,
    delta: &[S::Row; ROWS],
    (next_k, next_q): (*const f32, *const f32),
    rows: usize,
) -> Read<S> {
    // SAFETY: the caller's promise.
    unsafe {
        let decay = S::splat(decay);
        let mut m = [S::row_splat(0.0); ROWS];
        let mut o = [S::row_splat(0.0); ROWS];
        for i in 0..rows {
            let k = S::splat(*k.add(i));
            let (next_k, next_q) = (S::splat(*next_k.add(i)), S::splat(*next_q.add(i)));
            let (from, to) = (from.add(i * from_stride), to.add(i * to_stride));
            for r in 0..ROWS {
                for v in 0..16 / S::N {
                    let at = 16 * r + v * S::N;
                    let s = S::mul(decay, S::load(from.add(at)));
                    let s = S::fma(k, delta[r].as_ref()[v], s);
                    S::store(to.add(at), s);
                    m[r].as_mut()[v] = S::fma(next_k, s, m[r].as_ref()[v]);
                    o[r].as_mut()[v] = S::fma(next_q, s, o[r].as_ref()[v]);
                }
            }
        }
        (m, o)
    }
}

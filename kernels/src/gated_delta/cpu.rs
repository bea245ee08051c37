//! The two CPU kernels: token by token, and chunk by chunk.

mod chunk;
mod step;

use std::cell::Cell;

use rayon::prelude::*;

use super::NORM_EPS;
use crate::simd::{Simd, dispatch};
use crate::{CpuPath, Element};

/// Calls of up to this many tokens give each row what it would get alone.
pub const STEP_TOKENS: usize = crate::EXACT_ROWS;
/// State elements by tokens that are worth a task of their own.
const TASK: usize = 1 << 15;

thread_local! {
    static SCRATCH: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

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

/// Which of the two forms of the rule to compute. The results agree up to rounding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Token by token.
    Step,
    /// Chunk by chunk.
    Chunk,
}

impl Form {
    /// Both do about as much arithmetic: the step form four operations for each token and element of the state, the chunk form three
    /// and what it does inside of chunks. Only long calls on wide heads repay that.
    fn fastest(shape: &GatedDeltaShape) -> Self {
        const TOKENS: usize = 256;
        const DIM: usize = 128;
        const { assert!(TOKENS > STEP_TOKENS) };
        if shape.tokens >= TOKENS && shape.key_dim.min(shape.dim) >= DIM {
            Self::Chunk
        } else {
            Self::Step
        }
    }
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
    let call = Call {
        q,
        k,
        v,
        log_decay,
        beta,
        state,
        shape,
        path: CpuPath::current(),
    };
    call.run(Form::fastest(shape), out)
}

/// One call on slices, as [`gated_delta_slice`] takes them.
pub(super) struct Call<'a, T> {
    pub(super) q: &'a [T],
    pub(super) k: &'a [T],
    pub(super) v: &'a [T],
    pub(super) log_decay: &'a [f32],
    pub(super) beta: &'a [f32],
    pub(super) state: Option<&'a [f32]>,
    pub(super) shape: &'a GatedDeltaShape,
    pub(super) path: CpuPath,
}

impl<T: Element> Call<'_, T> {
    /// Fills `out` and gives the new state.
    pub(super) fn run(&self, form: Form, out: &mut [T]) -> Vec<f32> {
        let shape = self.shape;
        let head_size = shape.key_dim * shape.dim;
        let size = shape.heads * head_size;
        assert_eq!(out.len(), shape.tokens * shape.heads * shape.dim);
        assert!(self.state.is_none_or(|state| state.len() == size));
        if shape.tokens == 0 {
            return self.state.map_or_else(|| vec![0.0; size], <[f32]>::to_vec);
        }
        let mut new_state: Vec<f32> = Vec::with_capacity(size);
        let (to, to_state) = (Target(out.as_mut_ptr()), Target(new_state.as_mut_ptr()));
        let work = |head: usize| {
            let mut scratch = SCRATCH.take();
            let head = Head {
                call: self,
                head,
                scratch: &mut scratch,
                out: to,
                new_state: to_state,
            };
            match form {
                Form::Step => dispatch(self.path, step::Step(head)),
                Form::Chunk => dispatch(self.path, chunk::Chunks(head)),
            }
            SCRATCH.set(scratch);
        };
        let heads = (TASK / head_size / shape.tokens).max(1);
        if heads >= shape.heads {
            (0..shape.heads).for_each(work);
        } else {
            (0..shape.heads)
                .into_par_iter()
                .with_min_len(heads)
                .for_each(work);
        }
        // SAFETY: both kernels write the whole state of their head, and every head had its turn.
        unsafe { new_state.set_len(size) };
        new_state
    }

    /// What a head's query, key or value of a token is.
    fn row(x: &[T], strides: [usize; 2], token: usize, head: usize, len: usize) -> &[T] {
        &x[token * strides[0] + head * strides[1]..][..len]
    }
}

/// The part of a call that one task does: one value head.
struct Head<'a, T> {
    call: &'a Call<'a, T>,
    head: usize,
    scratch: &'a mut Vec<f32>,
    out: Target<T>,
    new_state: Target<f32>,
}

impl<T: Element> Head<'_, T> {
    /// Loads the normalised key and the normalised and scaled query of a token, both padded with zeros.
    ///
    /// # Safety
    /// As for [`Simd`]; both targets hold the same multiple of 16 elements.
    #[inline(always)]
    unsafe fn load_key_and_query<S: Simd>(&self, token: usize, k: &mut [f32], q: &mut [f32]) {
        let shape = self.call.shape;
        let key_head = self.head / (shape.heads / shape.key_heads);
        let row = |x, strides| Call::<T>::row(x, strides, token, key_head, shape.key_dim);
        let scale = 1.0 / (shape.key_dim as f32).sqrt();
        // SAFETY: the caller's promise.
        unsafe {
            load_unit::<S, T>(row(self.call.k, shape.k_strides), 1.0, k);
            load_unit::<S, T>(row(self.call.q, shape.q_strides), scale, q);
        }
    }

    /// Loads the value of a token, padded with zeros.
    #[inline(always)]
    fn load_value(&self, token: usize, to: &mut [f32]) {
        let shape = self.call.shape;
        let (to, pad) = to.split_at_mut(shape.dim);
        let value = Call::<T>::row(self.call.v, shape.v_strides, token, self.head, shape.dim);
        T::widen(value, to);
        pad.fill(0.0);
    }

    /// `(exp(g), beta)` of a token.
    fn decay_and_beta(&self, token: usize) -> (f32, f32) {
        let at = token * self.call.shape.heads + self.head;
        (self.call.log_decay[at].exp(), self.call.beta[at])
    }

    /// The state before the call; `None` means zeros.
    fn state(&self) -> Option<&[f32]> {
        let size = self.call.shape.key_dim * self.call.shape.dim;
        self.call
            .state
            .map(|state| &state[self.head * size..][..size])
    }

    /// Where the state after the call goes: `key_dim * dim` elements, not initialised.
    fn new_state(&self) -> *mut f32 {
        let size = self.call.shape.key_dim * self.call.shape.dim;
        // SAFETY: the new state has room for every head.
        unsafe { self.new_state.0.add(self.head * size) }
    }

    /// Rounds a token's result into the output.
    #[inline(always)]
    fn store_output(&self, token: usize, from: &[f32]) {
        let dim = self.call.shape.dim;
        let at = (token * self.call.shape.heads + self.head) * dim;
        // SAFETY: the row lies within the output, and this task alone writes this head's rows.
        let out = unsafe { std::slice::from_raw_parts_mut(self.out.0.add(at), dim) };
        T::narrow(&from[..dim], out);
    }
}

/// Where tasks write what belongs to their own head.
struct Target<T>(*mut T);

impl<T> Clone for Target<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Target<T> {}
// SAFETY: tasks write disjoint parts, and the call that owns the memory waits for all of them.
unsafe impl<T: Send> Send for Target<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Target<T> {}

/// `scale * x / sqrt(sum(x^2) + eps)` in the first elements of `to`, zeros behind.
///
/// # Safety
/// As for [`Simd`]; `to` holds a multiple of 16 elements, at least as many as `from`.
#[inline(always)]
unsafe fn load_unit<S: Simd, T: Element>(from: &[T], scale: f32, to: &mut [f32]) {
    T::widen(from, &mut to[..from.len()]);
    to[from.len()..].fill(0.0);
    // SAFETY: the caller's promise.
    unsafe {
        let square = dot::<S>(to, to);
        let factor = S::splat(scale / (square + NORM_EPS).sqrt());
        for i in (0..to.len()).step_by(S::N) {
            let at = to.as_mut_ptr().add(i);
            S::store(at, S::mul(S::load(at), factor));
        }
    }
}

/// # Safety
/// As for [`Simd`]; both slices hold the same multiple of 16 elements.
#[inline(always)]
unsafe fn dot<S: Simd>(a: &[f32], b: &[f32]) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = S::row_splat(0.0);
        for i in (0..a.len()).step_by(16) {
            for (v, sum) in sums.as_mut().iter_mut().enumerate() {
                let at = i + v * S::N;
                *sum = S::fma(
                    S::load(a.as_ptr().add(at)),
                    S::load(b.as_ptr().add(at)),
                    *sum,
                );
            }
        }
        let mut total = 0.0;
        for v in sums.as_ref() {
            total += S::sum(*v);
        }
        total
    }
}

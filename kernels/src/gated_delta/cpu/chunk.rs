//! Chunk by chunk: the WY form of the delta rule (<https://arxiv.org/abs/2406.06484>) with decay.
//!
//! With `D[t, s]` the product of the decays of tokens `s + 1 ..= t` of a chunk, `c_t` that from the chunk's start and `S` the state
//! there, the corrections of all tokens of the chunk solve a unit lower-triangular system, and the rest is matrix products:
//!
//! ```text
//! (I + A) Delta = diag(beta) (V - diag(c) K S)      A[t, s] = beta_t D[t, s] (k_t k_s)   for s < t
//! O  = diag(c) Q S + P Delta                        P[t, s] = D[t, s] (q_t k_s)          for s <= t
//! S' = c_last S + K^T diag(D[last, :]) Delta
//! ```
//!
//! The right side already holds `S`, so the system is solved once, for `Delta` itself, instead of twice for the paper's `U` and `W`.
//! Decays are multiplied up row by row (`D[t, s] = D[t - 1, s] exp(g_t)`): nothing is ever divided by a decay or grows with its
//! inverse, so that decays down to 0 are exact.

mod tiles;

use self::tiles::{Tiles, multiply_add, row_of, store_row, tiles};
use super::Head;
use crate::Element;
use crate::quantized::BlockDot;
use crate::simd::{Simd, SimdOp};

/// Tokens in a chunk; a multiple of 16. Work inside a chunk grows with it, work on the state is shared by it: 32 is measured best
/// for heads of 64 and 128 (64, usual on GPUs, costs a tenth more).
const CHUNK: usize = 32;

pub(super) struct Chunks<'a, T>(pub(super) Head<'a, T>);

impl<T: Element> SimdOp for Chunks<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        // SAFETY: the caller's promise.
        unsafe {
            // As many rows of accumulators as the registers hold.
            if S::ROWS == 8 {
                run::<S, T, 8>(self.0);
            } else {
                run::<S, T, 4>(self.0);
            }
        }
    }
}

/// Memory of one head. Rows of keys and queries are padded with zeros to a multiple of 16. What is as wide as a value is cut into
/// panels of 16 columns, which stand one after another.
struct Buffers<'a> {
    /// Panels of `[key_padded, 16]`.
    state: &'a mut [f32],
    /// The keys of the chunk, then its queries: `[2 * rows, key_padded]`.
    keys_queries: &'a mut [f32],
    /// The keys, transposed: panels of `[key_padded, 16]`, a column a token.
    keys_t: &'a mut [f32],
    /// `-A`, then `P`: `[2 * rows, CHUNK]`.
    products: &'a mut [f32],
    /// `K S`, then `Q S`, of one panel: `[2 * rows, 16]`.
    read: &'a mut [f32],
    /// `Delta` of one panel: `[rows, 16]`.
    delta: &'a mut [f32],
    /// Values, replaced by results: `[rows, padded]`.
    values: &'a mut [f32],
    /// `exp(g)`, `beta`, `c` and `D[last, :]` of the tokens.
    decay: &'a mut [f32],
    beta: &'a mut [f32],
    from_start: &'a mut [f32],
    to_end: &'a mut [f32],
}

impl<'a> Buffers<'a> {
    fn new(scratch: &'a mut Vec<f32>, key_padded: usize, padded: usize) -> Self {
        let sizes = [
            padded * key_padded,
            2 * CHUNK * key_padded,
            CHUNK * key_padded,
            2 * CHUNK * CHUNK,
            2 * CHUNK * 16,
            CHUNK * 16,
            CHUNK * padded,
            CHUNK,
            CHUNK,
            CHUNK,
            CHUNK,
        ];
        scratch.resize(sizes.iter().sum(), 0.0);
        let mut rest = scratch.as_mut_slice();
        let [
            state,
            keys_queries,
            keys_t,
            products,
            read,
            delta,
            values,
            decay,
            beta,
            from_start,
            to_end,
        ] = sizes.map(|size| {
            let (part, others) = std::mem::take(&mut rest).split_at_mut(size);
            rest = others;
            part
        });
        Self {
            state,
            keys_queries,
            keys_t,
            products,
            read,
            delta,
            values,
            decay,
            beta,
            from_start,
            to_end,
        }
    }
}

/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn run<S: Simd + BlockDot, T: Element, const M: usize>(head: Head<'_, T>) {
    let (tokens, key_dim, dim) = {
        let shape = head.call.shape;
        (shape.tokens, shape.key_dim, shape.dim)
    };
    let (key_padded, padded) = (key_dim.next_multiple_of(16), dim.next_multiple_of(16));
    let mut scratch = std::mem::take(head.scratch);
    let mut buffers = Buffers::new(&mut scratch, key_padded, padded);
    load_state(head.state(), [key_dim, dim, key_padded], buffers.state);
    for first in (0..tokens).step_by(CHUNK) {
        let count = CHUNK.min(tokens - first);
        // A multiple of either M. The tokens that pad a chunk have k = q = v = beta = 0 and decay 1, and so change nothing.
        let rows = count.next_multiple_of(8);
        // SAFETY: the caller's promise; `rows <= CHUNK`.
        unsafe {
            load_tokens::<S, T>(
                &head,
                first,
                [count, rows],
                [key_padded, padded],
                &mut buffers,
            );
            products::<S, M>(rows, key_padded, &mut buffers);
            weigh::<S>(rows, &mut buffers);
            for panel in 0..padded / 16 {
                pass_panel::<S, M>(panel, rows, [key_padded, padded], &mut buffers);
            }
        }
        for (i, values) in buffers.values.chunks_exact(padded).take(count).enumerate() {
            head.store_output(first + i, values);
        }
    }
    // SAFETY: the new state has room for this head's `key_dim * dim` elements, which no other task touches.
    unsafe { store_state(buffers.state, [key_dim, dim, key_padded], head.new_state()) };
    *head.scratch = scratch;
}

/// Cuts a dense `[key_dim, dim]` into panels, padded with zeros.
#[inline(always)]
fn load_state(from: Option<&[f32]>, [key_dim, dim, key_padded]: [usize; 3], to: &mut [f32]) {
    to.fill(0.0);
    let Some(from) = from else { return };
    for (panel, to) in to.chunks_exact_mut(key_padded * 16).enumerate() {
        let columns = 16.min(dim - 16 * panel);
        for (to, row) in to
            .chunks_exact_mut(16)
            .zip(from.chunks_exact(dim).take(key_dim))
        {
            to[..columns].copy_from_slice(&row[16 * panel..][..columns]);
        }
    }
}

/// [`load_state`] backwards.
///
/// # Safety
/// `to` has room for `key_dim * dim` elements.
#[inline(always)]
unsafe fn store_state(from: &[f32], [key_dim, dim, key_padded]: [usize; 3], to: *mut f32) {
    for (panel, from) in from.chunks_exact(key_padded * 16).enumerate() {
        let columns = 16.min(dim - 16 * panel);
        for (i, row) in from.chunks_exact(16).take(key_dim).enumerate() {
            // SAFETY: `i < key_dim` and the columns end at `dim` at the latest.
            unsafe {
                std::ptr::copy_nonoverlapping(row.as_ptr(), to.add(i * dim + 16 * panel), columns);
            }
        }
    }
}

/// Loads keys, queries, values and factors of `count` tokens from `first`, padded to `rows` tokens, and transposes the keys.
#[inline(always)]
unsafe fn load_tokens<S: Simd, T: Element>(
    head: &Head<'_, T>,
    first: usize,
    [count, rows]: [usize; 2],
    [key_padded, padded]: [usize; 2],
    to: &mut Buffers<'_>,
) {
    let (keys, queries) = to.keys_queries.split_at_mut(rows * key_padded);
    for i in 0..rows {
        let k = &mut keys[i * key_padded..][..key_padded];
        let q = &mut queries[i * key_padded..][..key_padded];
        let values = &mut to.values[i * padded..][..padded];
        if i < count {
            // SAFETY: both rows hold `key_padded` elements, a multiple of 16.
            unsafe { head.load_key_and_query::<S>(first + i, k, q) };
            head.load_value(first + i, values);
            (to.decay[i], to.beta[i]) = head.decay_and_beta(first + i);
        } else {
            k.fill(0.0);
            q.fill(0.0);
            values.fill(0.0);
            (to.decay[i], to.beta[i]) = (1.0, 0.0);
        }
    }
    for (panel, keys_t) in to.keys_t.chunks_exact_mut(key_padded * 16).enumerate() {
        for token in 0..16 {
            match keys[..rows * key_padded]
                .chunks_exact(key_padded)
                .nth(16 * panel + token)
            {
                Some(k) => k
                    .iter()
                    .enumerate()
                    .for_each(|(i, k)| keys_t[16 * i + token] = *k),
                None => (0..key_padded).for_each(|i| keys_t[16 * i + token] = 0.0),
            }
        }
    }
}

/// The keys and queries times a panel of the state.
struct ReadState {
    keys_queries: *const f32,
    key_padded: usize,
    state: *const f32,
    read: *mut f32,
}

impl Tiles for ReadState {
    #[inline(always)]
    unsafe fn tile<S: Simd, const M: usize>(&self, row: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let acc = multiply_add::<S, M>(
                [S::row_splat(0.0); M],
                self.keys_queries.add(row * self.key_padded),
                [self.key_padded, 1],
                self.state,
                self.key_padded,
            );
            for (r, acc) in acc.iter().enumerate() {
                store_row::<S>(self.read.add((row + r) * 16), acc);
            }
        }
    }
}

/// The decayed panel of the state plus the keys, transposed, times the corrections.
struct MoveState {
    keys: *const f32,
    key_padded: usize,
    delta: *const f32,
    rows: usize,
    decay: f32,
    state: *mut f32,
}

impl Tiles for MoveState {
    #[inline(always)]
    unsafe fn tile<S: Simd, const M: usize>(&self, row: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let decay = S::splat(self.decay);
            let mut acc = [S::row_splat(0.0); M];
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = row_of::<S>(|v| S::mul(decay, S::load(self.state.add((row + r) * 16 + v))));
            }
            let a = self.keys.add(row);
            let acc = multiply_add::<S, M>(acc, a, [1, self.key_padded], self.delta, self.rows);
            for (r, acc) in acc.iter().enumerate() {
                store_row::<S>(self.state.add((row + r) * 16), acc);
            }
        }
    }
}

/// `K K^T` and `Q K^T`, panels of 16 columns down from the diagonal.
#[inline(always)]
unsafe fn products<S: Simd, const M: usize>(rows: usize, key_padded: usize, to: &mut Buffers<'_>) {
    for (panel, keys_t) in to.keys_t.chunks_exact(key_padded * 16).enumerate() {
        for row in (16 * panel..rows).step_by(M) {
            for row in [row, rows + row] {
                // SAFETY: there are `2 * rows` rows of keys and queries and of products.
                unsafe {
                    let acc = multiply_add::<S, M>(
                        [S::row_splat(0.0); M],
                        to.keys_queries.as_ptr().add(row * key_padded),
                        [key_padded, 1],
                        keys_t.as_ptr(),
                        key_padded,
                    );
                    for (r, acc) in acc.iter().enumerate() {
                        let to = to.products.as_mut_ptr().add((row + r) * CHUNK + 16 * panel);
                        store_row::<S>(to, acc);
                    }
                }
            }
        }
    }
}

/// Turns the products into `-A` and `P`, and fills in `c` and `D[last, :]`.
///
/// On and above the diagonal, what was computed there becomes 0 in `P` and is never read in `-A`.
#[inline(always)]
unsafe fn weigh<S: Simd>(rows: usize, to: &mut Buffers<'_>) {
    to.to_end.fill(0.0);
    let mut from_start = 1.0;
    for row in 0..rows {
        from_start *= to.decay[row];
        to.from_start[row] = from_start;
        // SAFETY: rows of products, and the row of decays, hold CHUNK elements, a multiple of 16.
        unsafe {
            let (decay, beta) = (S::splat(to.decay[row]), S::splat(-to.beta[row]));
            let decays = to.to_end.as_mut_ptr();
            for i in (0..row).step_by(S::N) {
                // Subnormal numbers are slow on some processors; what they would add is far below rounding.
                let product = S::mul(S::load(decays.add(i)), decay);
                S::store(
                    decays.add(i),
                    S::zero_where_less(product, S::splat(1e-30), product),
                );
            }
            to.to_end[row] = 1.0;
            let a = to.products.as_mut_ptr().add(row * CHUNK);
            let p = to.products.as_mut_ptr().add((rows + row) * CHUNK);
            for i in (0..(row + 1).next_multiple_of(16)).step_by(S::N) {
                let d = S::load(decays.add(i));
                S::store(a.add(i), S::mul(S::mul(beta, d), S::load(a.add(i))));
                S::store(p.add(i), S::mul(d, S::load(p.add(i))));
            }
        }
    }
}

/// Everything for 16 columns of the values: solves for their `Delta`, replaces the values by results and moves the state on.
#[inline(always)]
unsafe fn pass_panel<S: Simd + BlockDot, const M: usize>(
    panel: usize,
    rows: usize,
    [key_padded, padded]: [usize; 2],
    to: &mut Buffers<'_>,
) {
    let state = to.state[panel * key_padded * 16..].as_mut_ptr();
    let values = to.values[panel * 16..].as_mut_ptr();
    let (read, delta) = (to.read.as_mut_ptr(), to.delta.as_mut_ptr());
    let (keys_queries, products) = (to.keys_queries.as_ptr(), to.products.as_ptr());
    let (read_queries, p) = (
        to.read[rows * 16..].as_ptr(),
        to.products[rows * CHUNK..].as_ptr(),
    );
    // SAFETY: every pointer is to a row of its buffer, whose shapes are given at `Buffers`; `rows` and `key_padded` are multiples
    // of M, and products are read from the start of a row to the end of the diagonal block, where they were computed.
    unsafe {
        tiles::<S>(
            2 * rows,
            &ReadState {
                keys_queries,
                key_padded,
                state,
                read,
            },
        );
        for first in (0..rows).step_by(M) {
            let mut acc = [S::row_splat(0.0); M];
            for (r, acc) in acc.iter_mut().enumerate() {
                let row = first + r;
                let (c, beta) = (S::splat(to.from_start[row]), S::splat(to.beta[row]));
                *acc = row_of::<S>(|v| {
                    let read = S::mul(c, S::load(read.add(row * 16 + v)));
                    S::mul(beta, S::sub(S::load(values.add(row * padded + v)), read))
                });
            }
            let a = products.add(first * CHUNK);
            let mut acc = multiply_add::<S, M>(acc, a, [CHUNK, 1], delta, first);
            for r in 1..M {
                let (solved, rest) = acc.split_at_mut(r);
                for (s, solved) in solved.iter().enumerate() {
                    let a = S::splat(*a.add(r * CHUNK + first + s));
                    for (x, solved) in rest[0].as_mut().iter_mut().zip(solved.as_ref()) {
                        *x = S::fma(a, *solved, *x);
                    }
                }
            }
            for (r, acc) in acc.iter().enumerate() {
                store_row::<S>(delta.add((first + r) * 16), acc);
            }
        }
        for first in (0..rows).step_by(M) {
            let mut acc = [S::row_splat(0.0); M];
            for (r, acc) in acc.iter_mut().enumerate() {
                let c = S::splat(to.from_start[first + r]);
                *acc = row_of::<S>(|v| S::mul(c, S::load(read_queries.add((first + r) * 16 + v))));
            }
            let acc = multiply_add::<S, M>(acc, p.add(first * CHUNK), [CHUNK, 1], delta, first + M);
            for (r, acc) in acc.iter().enumerate() {
                store_row::<S>(values.add((first + r) * padded), acc);
            }
        }
        for (row, d) in to.to_end[..rows].iter().enumerate() {
            let (at, d) = (delta.add(row * 16), S::splat(*d));
            store_row::<S>(at, &row_of::<S>(|v| S::mul(d, S::load(at.add(v)))));
        }
        let decay = to.from_start[rows - 1];
        tiles::<S>(
            key_padded,
            &MoveState {
                keys: keys_queries,
                key_padded,
                delta,
                rows,
                decay,
                state,
            },
        );
    }
}

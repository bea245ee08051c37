//! The two CPU kernels: up to [`EXACT_ROWS`] queries split over spans of keys, and more queries in tiles.

mod decode;
mod prefill;

use super::visible;
use crate::simd::Simd;
use crate::{CpuPath, EXACT_ROWS, Element};

/// Calls of up to this many queries give each row what it would get alone.
pub(super) const FEW_QUERIES: usize = EXACT_ROWS;

/// Sizes and strides of one attention call, in elements.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements a head.
    pub dim: usize,
    /// From one key head to the next, and from one key to the next.
    pub k_strides: [usize; 2],
    /// The same for values.
    pub v_strides: [usize; 2],
    /// Factor on the scores before softmax, usually `1 / sqrt(dim)`.
    pub scale: f32,
    /// Sliding window in positions.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Elements of a head in scratch memory: padded with zeros to whole vectors of every path.
    fn padded(&self) -> usize {
        self.dim.next_multiple_of(16)
    }
}

/// One attention call on slices: `q` dense `[Tq, heads, dim]`, `k` and `v` strided as `shape` says.
struct Call<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    k_positions: &'a [u32],
    /// The keys that each query sees.
    seen: &'a [std::ops::Range<usize>],
    shape: &'a AttentionShape,
    path: CpuPath,
}

impl<T: Element> Call<'_, T> {
    fn key(&self, head: usize, key: usize) -> &[T] {
        let [head_stride, key_stride] = self.shape.k_strides;
        &self.k[head * head_stride + key * key_stride..][..self.shape.dim]
    }

    fn value(&self, head: usize, key: usize) -> &[T] {
        let [head_stride, key_stride] = self.shape.v_strides;
        &self.v[head * head_stride + key * key_stride..][..self.shape.dim]
    }

    /// Widens the scaled queries that read key head `kv`, queries `first ..`, to `[queries * group, padded]`.
    fn load_queries(&self, kv: usize, queries: std::ops::Range<usize>, into: &mut [f32]) {
        let (dim, group) = (self.shape.dim, self.shape.group());
        let rows = queries.flat_map(|query| (0..group).map(move |g| (query, kv * group + g)));
        for ((query, head), to) in rows.zip(into.chunks_exact_mut(self.shape.padded())) {
            let (to, pad) = to.split_at_mut(dim);
            T::widen(
                &self.q[(query * self.shape.heads + head) * dim..][..dim],
                to,
            );
            to.iter_mut().for_each(|v| *v *= self.shape.scale);
            pad.fill(0.0);
        }
    }
}

/// Attention on slices: `q` and `out` dense `[Tq, heads, dim]`, `k` and `v` strided as `shape` says.
///
/// # Panics
/// If a slice is shorter than the shape says.
pub fn attention_slice<T: Element>(
    q: &[T],
    k: &[T],
    v: &[T],
    q_positions: &[u32],
    k_positions: &[u32],
    shape: &AttentionShape,
    out: &mut [T],
) {
    let seen: Vec<_> = q_positions
        .iter()
        .map(|&p| visible(k_positions, p, shape.window))
        .collect();
    let call = Call {
        q,
        k,
        v,
        k_positions,
        seen: &seen,
        shape,
        path: CpuPath::current(),
    };
    if q_positions.len() <= FEW_QUERIES {
        decode::attention(&call, out);
    } else {
        prefill::attention(&call, out);
    }
}

/// `c += a b` for row-major `a` `[rows, depth]`, `b` `[depth, columns]`, `c` `[rows, columns]`, with the given row strides.
///
/// # Safety
/// As for [`Simd`]; the pointers are valid for those shapes, `columns` is a multiple of 16.
#[inline(always)]
unsafe fn multiply_add<S: Simd + crate::quantized::BlockDot>(
    (a, a_stride): (*const f32, usize),
    (b, b_stride): (*const f32, usize),
    (c, c_stride): (*mut f32, usize),
    [rows, depth, columns]: [usize; 3],
) {
    // SAFETY: the caller's promise; a step of rows never goes past `rows`.
    unsafe {
        let mut row = 0;
        while row < rows {
            let a = a.add(row * a_stride);
            let c = c.add(row * c_stride);
            if S::ROWS == 8 && rows - row >= 8 {
                multiply_add_rows::<S, 8>(
                    (a, a_stride),
                    (b, b_stride),
                    (c, c_stride),
                    depth,
                    columns,
                );
                row += 8;
            } else if rows - row >= 4 {
                multiply_add_rows::<S, 4>(
                    (a, a_stride),
                    (b, b_stride),
                    (c, c_stride),
                    depth,
                    columns,
                );
                row += 4;
            } else {
                multiply_add_rows::<S, 1>(
                    (a, a_stride),
                    (b, b_stride),
                    (c, c_stride),
                    depth,
                    columns,
                );
                row += 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn multiply_add_rows<S: Simd, const M: usize>(
    (a, a_stride): (*const f32, usize),
    (b, b_stride): (*const f32, usize),
    (c, c_stride): (*mut f32, usize),
    depth: usize,
    columns: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for column in (0..columns).step_by(16) {
            let mut acc = [S::row_splat(0.0); M];
            let mut b = b.add(column);
            for i in 0..depth {
                for r in 0..M {
                    let a = S::splat(*a.add(r * a_stride + i));
                    for (v, acc) in acc[r].as_mut().iter_mut().enumerate() {
                        *acc = S::fma(a, S::load(b.add(v * S::N)), *acc);
                    }
                }
                b = b.add(b_stride);
            }
            for (r, acc) in acc.iter().enumerate() {
                for (v, acc) in acc.as_ref().iter().enumerate() {
                    let c = c.add(r * c_stride + column + v * S::N);
                    S::store(c, S::add(S::load(c), *acc));
                }
            }
        }
    }
}

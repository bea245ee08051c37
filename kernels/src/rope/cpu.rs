use rayon::prelude::*;

use crate::quantized::BlockDot;
use crate::simd::{Simd, SimdOp, dispatch, widen};
use crate::{CpuPath, Element};

/// Pairs widened at a time.
const CHUNK: usize = 128;
/// Elements that are worth a task of their own.
const TASK: usize = 1 << 15;

/// Where the elements of `x` lie, in elements.
#[derive(Clone, Copy, Debug)]
pub struct RopeShape {
    /// Heads a token.
    pub heads: usize,
    /// Elements a head.
    pub dim: usize,
    /// Rotated pairs a head: `R / 2`.
    pub half: usize,
    /// From one token to the next.
    pub token_stride: usize,
    /// From one head to the next.
    pub head_stride: usize,
}

/// RoPE on slices: `x` strided as `shape` says, `cos` and `sin` `[T, half]`, `out` dense `[T, heads, dim]`.
///
/// # Panics
/// If a slice is shorter than the shape says.
pub fn rope_slice<T: Element>(x: &[T], cos: &[f32], sin: &[f32], shape: RopeShape, out: &mut [T]) {
    let path = CpuPath::current();
    let width = shape.heads * shape.dim;
    if width == 0 {
        return;
    }
    let tokens = (TASK / width).max(1);
    let work = |(task, out): (usize, &mut [T])| {
        dispatch(
            path,
            Rope {
                x,
                cos,
                sin,
                shape,
                first: task * tokens,
                out,
            },
        );
    };
    if out.len() <= tokens * width {
        return work((0, out));
    }
    out.par_chunks_mut(tokens * width)
        .enumerate()
        .for_each(work);
}

struct Rope<'a, T> {
    x: &'a [T],
    cos: &'a [f32],
    sin: &'a [f32],
    shape: RopeShape,
    /// The first token of `out`.
    first: usize,
    out: &'a mut [T],
}

impl<T: Element> SimdOp for Rope<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        let RopeShape {
            heads,
            dim,
            half,
            token_stride,
            head_stride,
        } = self.shape;
        let (mut a, mut b) = ([0f32; CHUNK], [0f32; CHUNK]);
        for (token, out) in self.out.chunks_exact_mut(heads * dim).enumerate() {
            let token = self.first + token;
            let cos = &self.cos[token * half..][..half];
            let sin = &self.sin[token * half..][..half];
            for (head, out) in out.chunks_exact_mut(dim).enumerate() {
                let x = &self.x[token * token_stride + head * head_stride..][..dim];
                for from in (0..half).step_by(CHUNK) {
                    let len = CHUNK.min(half - from);
                    // SAFETY: this code is compiled for `S`.
                    unsafe {
                        widen::<S, T>(&x[from..][..len], &mut a);
                        widen::<S, T>(&x[half + from..][..len], &mut b);
                    }
                    let angles = cos[from..][..len].iter().zip(&sin[from..][..len]);
                    for ((a, b), (cos, sin)) in a.iter_mut().zip(&mut b).zip(angles) {
                        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                    }
                    T::narrow(&a[..len], &mut out[from..][..len]);
                    T::narrow(&b[..len], &mut out[half + from..][..len]);
                }
                out[2 * half..].copy_from_slice(&x[2 * half..]);
            }
        }
    }
}

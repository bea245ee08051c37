//! Products of small matrices, in tiles that stay in registers.

use crate::quantized::BlockDot;
use crate::simd::Simd;

/// A product computed in tiles of some rows by 16 columns.
pub(super) trait Tiles {
    /// Computes rows `row .. row + M`.
    ///
    /// # Safety
    /// As for [`Simd`]; the rows are among those that [`tiles`] was told of. Implementations are `#[inline(always)]`.
    unsafe fn tile<S: Simd, const M: usize>(&self, row: usize);
}

/// Computes `rows` rows, an even number, in tiles as high as the registers hold.
///
/// # Safety
/// As for [`Simd`], and what `product` needs for these rows.
#[inline(always)]
pub(super) unsafe fn tiles<S: Simd + BlockDot>(rows: usize, product: &impl Tiles) {
    let mut row = 0;
    // SAFETY: the caller's promise; no tile goes past `rows`.
    unsafe {
        while S::N == 16 && rows - row >= 12 {
            product.tile::<S, 12>(row);
            row += 12;
        }
        while S::N < 16 && S::ROWS > 2 && rows - row >= 6 {
            product.tile::<S, 6>(row);
            row += 6;
        }
        while S::ROWS > 2 && rows - row >= 4 {
            product.tile::<S, 4>(row);
            row += 4;
        }
        while row < rows {
            product.tile::<S, 2>(row);
            row += 2;
        }
    }
}

/// `acc += a b` for `M` rows of `a`, elements `[row, depth]` with the given strides, and a panel `b` `[depth, 16]`.
///
/// # Safety
/// As for [`Simd`]; the pointers are valid for those shapes.
#[inline(always)]
pub(super) unsafe fn multiply_add<S: Simd, const M: usize>(
    mut acc: [S::Row; M],
    a: *const f32,
    [row_stride, depth_stride]: [usize; 2],
    b: *const f32,
    depth: usize,
) -> [S::Row; M] {
    // SAFETY: the caller's promise.
    unsafe {
        for i in 0..depth {
            let (a, b) = (a.add(i * depth_stride), b.add(16 * i));
            for (r, acc) in acc.iter_mut().enumerate() {
                let a = S::splat(*a.add(r * row_stride));
                for (v, acc) in acc.as_mut().iter_mut().enumerate() {
                    *acc = S::fma(a, S::load(b.add(v * S::N)), *acc);
                }
            }
        }
        acc
    }
}

/// Writes a row of 16.
///
/// # Safety
/// As for [`Simd`]; `to` is valid for 16 elements.
#[inline(always)]
pub(super) unsafe fn store_row<S: Simd>(to: *mut f32, row: &S::Row) {
    for (v, x) in row.as_ref().iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { S::store(to.add(v * S::N), *x) };
    }
}

/// The row that `f` gives vector by vector, from the offset of each.
#[inline(always)]
pub(super) unsafe fn row_of<S: Simd>(f: impl Fn(usize) -> S::V) -> S::Row {
    // SAFETY: a splat reads no memory; the processor has the instructions by the caller's promise.
    let mut row = unsafe { S::row_splat(0.0) };
    for (v, x) in row.as_mut().iter_mut().enumerate() {
        *x = f(v * S::N);
    }
    row
}

//! The matmul of a range of tiles with a range of rows, for both activation precisions.

use std::ops::Range;

use super::activations::Activations;
use super::codes::QUADS;
use super::format::Scales;
use super::scales::{BlockScales, row};
use super::{BLOCK, BlockDot, PackedMatrix, TILE};
use crate::simd::{Simd, SimdOp};

/// `out[row, n]` of the whole call, written by several tasks at disjoint places.
#[derive(Clone, Copy)]
pub(crate) struct Output {
    pub(crate) to: *mut f32,
    pub(crate) n: usize,
}

// SAFETY: tasks write disjoint elements, and the call that owns the memory waits for all of them.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

impl Output {
    /// Writes the 16 outputs of a tile for one row, or as many as the matrix has there.
    ///
    /// # Safety
    /// As for [`Simd`]; `row` and `tile` lie within the output, which no one else reads or writes there.
    #[inline(always)]
    unsafe fn store<S: Simd>(self, row: usize, tile: usize, value: S::Row) {
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.to.add(row * self.n + tile * TILE);
            let columns = TILE.min(self.n - tile * TILE);
            if columns == TILE {
                for (i, v) in value.as_ref().iter().enumerate() {
                    S::store(to.add(i * S::N), *v);
                }
            } else {
                let mut all = [0f32; TILE];
                for (i, v) in value.as_ref().iter().enumerate() {
                    S::store(all.as_mut_ptr().add(i * S::N), *v);
                }
                std::ptr::copy_nonoverlapping(all.as_ptr(), to, columns);
            }
        }
    }
}

/// Calls `$f::<.., M>($args, rows)` for all `$rows`, in steps of up to `$most` rows.
///
/// Few values of `M` are compiled: a step of 5 rows runs as 8, with its last row several times.
macro_rules! by_rows {
    ($rows:expr, $most:expr, $f:ident::<$($g:tt),*>($($arg:expr),*)) => {{
        let mut rows: Range<usize> = $rows;
        while !rows.is_empty() {
            let step = rows.start..rows.end.min(rows.start + $most);
            rows.start = step.end;
            if step.len() == 1 {
                $f::<$($g,)* 1>($($arg,)* step);
            } else if const { $most == 2 } || step.len() == 2 {
                $f::<$($g,)* 2>($($arg,)* step);
            } else if step.len() == 3 {
                $f::<$($g,)* 3>($($arg,)* step);
            } else if const { $most == 4 } || step.len() == 4 {
                $f::<$($g,)* 4>($($arg,)* step);
            } else {
                $f::<$($g,)* 8>($($arg,)* step);
            }
        }
    }};
}

/// Tiles by rows of activations in 8 bit.
pub(crate) struct Int8Tiles<'a, const BITS: u32, const HALVES: bool> {
    pub(crate) matrix: &'a PackedMatrix,
    pub(crate) x: &'a Activations,
    pub(crate) tiles: Range<usize>,
    pub(crate) rows: Range<usize>,
    pub(crate) out: Output,
}

impl<const BITS: u32, const HALVES: bool> SimdOp for Int8Tiles<'_, BITS, HALVES> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        for tile in self.tiles.clone() {
            // SAFETY: the driver's ranges lie within the matrix, the activations and the output.
            unsafe {
                by_rows!(
                    self.rows.clone(),
                    S::ROWS,
                    int8_rows::<S, BITS, HALVES>(&self, tile)
                );
            }
        }
    }
}

#[inline(always)]
unsafe fn int8_rows<S: Simd + BlockDot, const BITS: u32, const HALVES: bool, const M: usize>(
    job: &Int8Tiles<'_, BITS, HALVES>,
    tile: usize,
    rows: Range<usize>,
) {
    // SAFETY: the caller's tile and rows lie within the matrix, the activations and the output.
    unsafe {
        let matrix = job.matrix;
        let format = matrix.format;
        let (header, block_bytes) = (format.header_bytes(), format.block_bytes());
        let (k, groups) = (matrix.k, matrix.groups());
        let (has_min, offset) = match format.scales {
            Scales::Symmetric { offset } => (false, offset),
            Scales::Affine { offset, .. } => (true, offset),
            Scales::Super => (true, 0),
            Scales::Halves { .. } => (true, 0),
        };
        // Only 8-bit codes are signed, and so raised where the processor multiplies unsigned by signed.
        let offset = if BITS == 8 {
            offset + S::SIGNED_BIAS
        } else {
            offset
        };
        let (mut x, mut metas) = ([job.x.codes.as_ptr(); M], [job.x.metas.as_ptr(); M]);
        for r in 0..M {
            let row = (rows.start + r).min(rows.end - 1);
            x[r] = x[r].add(row * k);
            metas[r] = metas[r].add(row * k / BLOCK);
        }
        let mut acc = [S::row_splat(0.0); M];
        let mut record = matrix
            .data
            .as_ptr()
            .add(tile * groups * format.record_bytes());
        for _ in 0..groups {
            let mut codes = record.add(header);
            for block in 0..format.blocks {
                let scales = BlockScales::<S>::load(&format, record, block);
                let mut correction = [0i32; M];
                if !HALVES {
                    for r in 0..M {
                        correction[r] = -offset * (*metas[r])[2].to_bits() as i32;
                    }
                }
                let dot = S::dot::<BITS, HALVES, M>(codes, scales.halves, x, correction);
                for r in 0..M {
                    let [d, sum, low, high] = *metas[r];
                    let d = S::splat(d);
                    for (i, acc) in acc[r].as_mut().iter_mut().enumerate() {
                        let scale = S::mul(scales.scale.as_ref()[i], d);
                        *acc = S::fma(dot[r].as_ref()[i], scale, *acc);
                        let min = scales.min.as_ref()[i];
                        if HALVES {
                            *acc = S::fma(min, S::splat(low), *acc);
                            *acc = S::fma(scales.min_high.as_ref()[i], S::splat(high), *acc);
                        } else if has_min {
                            *acc = S::fma(min, S::splat(sum), *acc);
                        }
                    }
                    x[r] = x[r].add(BLOCK);
                    metas[r] = metas[r].add(1);
                }
                codes = codes.add(block_bytes);
            }
            record = codes;
        }
        for (row, acc) in rows.zip(&acc) {
            job.out.store::<S>(row, tile, *acc);
        }
    }
}

/// Widens a tile to `[K, 16]`, with the very values that dequantization gives.
pub(crate) struct WidenTile<'a, const BITS: u32, const HALVES: bool> {
    pub(crate) matrix: &'a PackedMatrix,
    pub(crate) tile: usize,
    /// `K * 16` values.
    pub(crate) strip: &'a mut [f32],
}

impl<const BITS: u32, const HALVES: bool> SimdOp for WidenTile<'_, BITS, HALVES> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        let Self {
            matrix,
            tile,
            strip,
        } = self;
        let format = matrix.format;
        let (offset, has_min) = match format.scales {
            Scales::Symmetric { offset } | Scales::Halves { offset } => (offset, false),
            Scales::Affine { offset, .. } => (offset, true),
            Scales::Super => (0, true),
        };
        debug_assert_eq!(strip.len(), matrix.k * TILE);
        let mut to = strip.as_mut_ptr();
        for group in 0..matrix.groups() {
            let record = matrix.record(tile, group);
            for block in 0..format.blocks {
                let codes = format.codes_of(record, block).as_ptr();
                // SAFETY: the record and its codes are whole, and the strip has room for every block of the tile.
                unsafe {
                    let scales = BlockScales::<S>::load(&format, record.as_ptr(), block);
                    let offset = S::splat(offset as f32);
                    for quad in 0..QUADS {
                        let scale = if HALVES {
                            let sc = scales.halves.add(quad / 4 * TILE);
                            row::<S>(|i| {
                                S::mul(scales.scale.as_ref()[i / S::N], S::load_i8(sc.add(i)))
                            })
                        } else {
                            scales.scale
                        };
                        for j in 0..4 {
                            let code = S::element::<BITS>(codes, quad, j);
                            for (i, code) in code.as_ref().iter().enumerate() {
                                let mut value = S::mul(S::sub(*code, offset), scale.as_ref()[i]);
                                if has_min {
                                    value = S::add(value, scales.min.as_ref()[i]);
                                }
                                S::store(to.add(i * S::N), value);
                            }
                            to = to.add(TILE);
                        }
                    }
                }
            }
        }
    }
}

/// A widened tile by rows of f32 activations.
pub(crate) struct F32Rows<'a> {
    /// `[M, K]`.
    pub(crate) x: &'a [f32],
    pub(crate) k: usize,
    /// `[K, 16]`.
    pub(crate) strip: &'a [f32],
    pub(crate) tile: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) out: Output,
}

impl SimdOp for F32Rows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        // SAFETY: the driver's tile and rows lie within the activations and the output.
        unsafe {
            let x = self.x.as_ptr();
            by_rows!(
                self.rows,
                4,
                f32_rows::<S>(x, self.k, self.strip, self.tile, self.out)
            );
        }
    }
}

#[inline(always)]
unsafe fn f32_rows<S: Simd, const M: usize>(
    x: *const f32,
    k: usize,
    strip: &[f32],
    tile: usize,
    out: Output,
    rows: Range<usize>,
) {
    // SAFETY: the caller's rows lie within `x` and the output; the strip holds `k * 16` values.
    unsafe {
        let mut x = [x; M];
        for (r, x) in x.iter_mut().enumerate() {
            *x = x.add((rows.start + r).min(rows.end - 1) * k);
        }
        let mut acc = [S::row_splat(0.0); M];
        let mut w = strip.as_ptr();
        for i in 0..k {
            for r in 0..M {
                let x = S::splat(*x[r].add(i));
                for (v, acc) in acc[r].as_mut().iter_mut().enumerate() {
                    *acc = S::fma(x, S::load(w.add(v * S::N)), *acc);
                }
            }
            w = w.add(TILE);
        }
        for (row, acc) in rows.zip(&acc) {
            out.store::<S>(row, tile, *acc);
        }
    }
}

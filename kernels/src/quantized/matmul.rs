//! Sharing a matmul out over the pool.

use std::cell::Cell;
use std::ops::Range;

use rayon::prelude::*;

use super::activations::{Activations, Quantize};
use super::format::Scales;
use super::kernel::{F32Rows, Int8Tiles, Output, WidenTile};
use super::{ActivationPrecision, BLOCK, PackedMatrix, TILE};
use crate::CpuPath;
use crate::simd::dispatch;

/// Below this much work (multiply-adds), waking other threads costs more than it gains.
const SERIAL: usize = 1 << 16;
/// Bytes of activations that a task goes over for each tile: they should stay in its core's second-level cache.
const ROW_BYTES: usize = 384 << 10;

thread_local! {
    /// Kept from call to call so that decoding does not allocate; taken out while in use.
    static ACTIVATIONS: Cell<Activations> = const { Cell::new(Activations { codes: Vec::new(), metas: Vec::new() }) };
    static STRIP: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    /// Inputs and outputs of twice as many rows, for [`ActivationPrecision::Int8Twice`].
    static TWICE: Cell<(Vec<f32>, Vec<f32>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

/// `out = x W^T`; lengths are checked.
pub(super) fn matmul(w: &PackedMatrix, x: &[f32], m: usize, out: &mut [f32]) {
    if m == 0 {
        return;
    }
    let path = CpuPath::current();
    match w.precision {
        ActivationPrecision::Int8 => rounded(path, w, x, m, out),
        ActivationPrecision::Int8Twice => {
            let (mut inputs, mut outputs) = TWICE.take();
            split(path, w, x, m, &mut inputs);
            outputs.resize(2 * m * w.n, 0.0);
            rounded(path, w, &inputs, 2 * m, &mut outputs);
            for (out, both) in out.chunks_exact_mut(w.n).zip(outputs.chunks_exact(2 * w.n)) {
                let (coarse, fine) = both.split_at(w.n);
                for ((out, coarse), fine) in out.iter_mut().zip(coarse).zip(fine) {
                    *out = coarse + fine;
                }
            }
            TWICE.set((inputs, outputs));
        }
        ActivationPrecision::F32 => {
            let output = Output {
                to: out.as_mut_ptr(),
                n: w.n,
            };
            share_out(w, m, |tiles, rows| {
                let mut strip = STRIP.take();
                strip.resize(w.k * TILE, 0.0);
                widened(path, w, x, tiles, rows, output, &mut strip);
                STRIP.set(strip);
            });
        }
    }
}

/// `out = x W^T` with activations rounded to 8 bit.
fn rounded(path: CpuPath, w: &PackedMatrix, x: &[f32], m: usize, out: &mut [f32]) {
    let output = Output {
        to: out.as_mut_ptr(),
        n: w.n,
    };
    let mut activations = ACTIVATIONS.take();
    quantize(path, w, x, m, &mut activations);
    share_out(w, m, |tiles, rows| {
        int8(path, w, &activations, tiles, rows, output)
    });
    ACTIVATIONS.set(activations);
}

/// For each row, the row and what rounding it to 8 bit leaves: `[m, 2, K]`.
fn split(path: CpuPath, w: &PackedMatrix, x: &[f32], m: usize, into: &mut Vec<f32>) {
    let mut activations = ACTIVATIONS.take();
    quantize(path, w, x, m, &mut activations);
    into.clear();
    let rows = x.chunks_exact(w.k).zip(activations.codes.chunks_exact(w.k));
    for ((row, codes), metas) in rows.zip(activations.metas.chunks_exact(w.k / BLOCK)) {
        into.extend_from_slice(row);
        let blocks = row.chunks_exact(BLOCK).zip(codes.chunks_exact(BLOCK));
        for ((row, codes), [d, ..]) in blocks.zip(metas) {
            into.extend(
                row.iter()
                    .zip(codes)
                    .map(|(x, code)| x - d * f32::from(*code)),
            );
        }
    }
    ACTIVATIONS.set(activations);
}

fn quantize(path: CpuPath, w: &PackedMatrix, x: &[f32], m: usize, into: &mut Activations) {
    into.resize(m, w.k);
    let halves = matches!(w.format.scales, Scales::Halves { .. });
    let rows = if m * w.k < SERIAL {
        m
    } else {
        (SERIAL / w.k).max(1)
    };
    let one = |((x, codes), metas): ((&[f32], &mut [i8]), &mut [_])| {
        dispatch(
            path,
            Quantize {
                x,
                codes,
                metas,
                halves,
            },
        );
    };
    if rows == m {
        one(((x, &mut into.codes), &mut into.metas));
        return;
    }
    x.par_chunks(rows * w.k)
        .zip(into.codes.par_chunks_mut(rows * w.k))
        .zip(into.metas.par_chunks_mut(rows * w.k / BLOCK))
        .for_each(one);
}

/// Calls `task` for ranges of tiles and rows that together cover the product once.
fn share_out(w: &PackedMatrix, m: usize, task: impl Fn(Range<usize>, Range<usize>) + Sync) {
    let tiles = w.tiles();
    let threads = rayon::current_num_threads();
    if threads == 1 || m * w.n * w.k < SERIAL {
        task(0..tiles, 0..m);
        return;
    }
    let rows = (ROW_BYTES / w.k).max(16) / 8 * 8;
    let row_tasks = m.div_ceil(rows);
    // A few tasks a thread even out what other load takes from the cores.
    let span = tiles.div_ceil((4 * threads).div_ceil(row_tasks)).max(1);
    let tile_tasks = tiles.div_ceil(span);
    (0..row_tasks * tile_tasks).into_par_iter().for_each(|i| {
        let (row, tile) = (i / tile_tasks * rows, i % tile_tasks * span);
        task(tile..(tile + span).min(tiles), row..(row + rows).min(m));
    });
}

/// Calls `$op` with the constants of a format: bits, and whether it scales half blocks.
macro_rules! for_format {
    ($w:expr, $op:ident { $($field:tt)* } on $path:expr) => {{
        macro_rules! go {
            ($bits:literal, $halves:literal) => { dispatch($path, $op::<$bits, $halves> { $($field)* }) };
        }
        match ($w.format.bits, matches!($w.format.scales, Scales::Halves { .. })) {
            (2, _) => go!(2, false),
            (3, false) => go!(3, false),
            (3, true) => go!(3, true),
            (4, _) => go!(4, false),
            (5, _) => go!(5, false),
            (6, false) => go!(6, false),
            (6, true) => go!(6, true),
            _ => go!(8, false),
        }
    }};
}

fn int8(
    path: CpuPath,
    matrix: &PackedMatrix,
    x: &Activations,
    tiles: Range<usize>,
    rows: Range<usize>,
    out: Output,
) {
    for_format!(matrix, Int8Tiles { matrix, x, tiles, rows, out } on path);
}

fn widened(
    path: CpuPath,
    matrix: &PackedMatrix,
    x: &[f32],
    tiles: Range<usize>,
    rows: Range<usize>,
    out: Output,
    strip: &mut [f32],
) {
    for tile in tiles {
        for_format!(matrix, WidenTile { matrix, tile, strip: &mut *strip } on path);
        dispatch(
            path,
            F32Rows {
                x,
                k: matrix.k,
                strip: &*strip,
                tile,
                rows: rows.clone(),
                out,
            },
        );
    }
}

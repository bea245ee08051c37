//! Reading the scales of a group: one column at a time (dequantization), or 16 at once (kernels).

use candle_core::DType;
use half::{bf16, f16};

use super::format::{Format, ScaleType, Scales};
use super::{BLOCK, TILE};
use crate::simd::Simd;

/// One stored scale.
fn value(ty: ScaleType, bytes: &[u8], index: usize) -> f32 {
    let two = |i: usize| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
    match ty {
        ScaleType::F16 => f16::from_bits(two(index)).to_f32(),
        ScaleType::Bf16 => bf16::from_bits(two(index)).to_f32(),
        ScaleType::F32 => {
            f32::from_bits(u32::from(two(2 * index)) | u32::from(two(2 * index + 1)) << 16)
        }
    }
}

/// Writes one stored scale.
pub(crate) fn store(ty: ScaleType, bytes: &mut [u8], index: usize, value: f32) {
    match ty {
        ScaleType::F16 => {
            bytes[2 * index..][..2].copy_from_slice(&f16::from_f32(value).to_le_bytes())
        }
        ScaleType::Bf16 => {
            bytes[2 * index..][..2].copy_from_slice(&bf16::from_f32(value).to_le_bytes())
        }
        ScaleType::F32 => bytes[4 * index..][..4].copy_from_slice(&value.to_le_bytes()),
    }
}

/// Widens one column of one block for a reader who wants it in `dtype`, each product and sum rounded to f32 by itself as in the formats' own definitions.
pub(crate) fn dequantize(
    format: &Format,
    record: &[u8],
    block: usize,
    column: usize,
    codes: &[u8; BLOCK],
    dtype: DType,
    out: &mut [f32],
) {
    let affine = |offset: i32, scale: f32, min: f32, codes: &[u8], out: &mut [f32]| {
        for (o, &code) in out.iter_mut().zip(codes) {
            let code = if format.bits == 8 {
                i32::from(code as i8)
            } else {
                i32::from(code)
            };
            *o = (code - offset) as f32 * scale + min;
        }
    };
    match format.scales {
        Scales::Symmetric { offset } => affine(
            offset,
            value(ScaleType::F16, record, column),
            0.0,
            codes,
            out,
        ),
        Scales::Affine { ty, offset, mlx } => {
            let (scale, min) = (value(ty, record, column), value(ty, record, TILE + column));
            if mlx && dtype == ty.dtype() {
                affine(offset, scale, 0.0, codes, out);
                out.iter_mut()
                    .for_each(|v| *v = ty.round(ty.round(*v) + min));
            } else {
                affine(offset, scale, min, codes, out);
            }
        }
        Scales::Super => {
            let d = value(ScaleType::F16, record, column);
            let dmin = value(ScaleType::F16, record, TILE + column);
            let sc = record[4 * TILE + block * TILE + column];
            let mn = record[(4 + format.blocks + block) * TILE + column];
            affine(0, d * f32::from(sc), -(dmin * f32::from(mn)), codes, out);
        }
        Scales::Halves { offset } => {
            let d = value(ScaleType::F16, record, column);
            for half in 0..2 {
                let sc = record[(2 + 2 * block + half) * TILE + column] as i8;
                let span = half * BLOCK / 2..(half + 1) * BLOCK / 2;
                affine(
                    offset,
                    d * f32::from(sc),
                    0.0,
                    &codes[span.clone()],
                    &mut out[span],
                );
            }
        }
    }
}

/// The scales of one block for the 16 columns of a tile.
pub(crate) struct BlockScales<S: Simd> {
    pub(crate) scale: S::Row,
    /// Added for every unit of activation: whole block, or its first half.
    pub(crate) min: S::Row,
    /// The same for the second half.
    pub(crate) min_high: S::Row,
    /// `sc` of both halves, for formats that have it.
    pub(crate) halves: *const i8,
}

/// Loads 16 stored scales.
///
/// # Safety
/// As for [`Simd`]; `from` holds 16 values of type `ty`.
#[inline(always)]
unsafe fn load<S: Simd>(ty: ScaleType, from: *const u8) -> S::Row {
    // SAFETY: the caller's promise.
    unsafe {
        match ty {
            ScaleType::F16 => row::<S>(|i| S::load_f16(from.cast::<u16>().add(i))),
            ScaleType::Bf16 => row::<S>(|i| S::load_bf16(from.cast::<u16>().add(i))),
            ScaleType::F32 => row::<S>(|i| S::load(from.cast::<f32>().add(i))),
        }
    }
}

/// A row made of the vectors that begin at columns `0, N, 2 N, ..`.
#[inline(always)]
pub(crate) unsafe fn row<S: Simd>(f: impl Fn(usize) -> S::V) -> S::Row {
    // SAFETY: the caller is in code compiled for `S`.
    let mut out = unsafe { S::row_splat(0.0) };
    for (i, v) in out.as_mut().iter_mut().enumerate() {
        *v = f(i * S::N);
    }
    out
}

impl<S: Simd> BlockScales<S> {
    /// The scales of block `block` of a record.
    ///
    /// # Safety
    /// As for [`Simd`]; `record` points to a whole record of `format`.
    #[inline(always)]
    pub(crate) unsafe fn load(format: &Format, record: *const u8, block: usize) -> Self {
        // SAFETY: the caller's promise: every address below lies within the record's header.
        unsafe {
            let zero = S::row_splat(0.0);
            let (mut min, mut min_high, mut halves) = (zero, zero, std::ptr::null());
            let scale = match format.scales {
                Scales::Symmetric { .. } => load::<S>(ScaleType::F16, record),
                Scales::Affine { ty, .. } => {
                    min = load::<S>(ty, record.add(TILE * ty.bytes()));
                    load::<S>(ty, record)
                }
                Scales::Super => {
                    let d = load::<S>(ScaleType::F16, record);
                    let dmin = load::<S>(ScaleType::F16, record.add(2 * TILE));
                    let sc = record.add((4 + block) * TILE);
                    let mn = record.add((4 + format.blocks + block) * TILE);
                    let minus = S::splat(-1.0);
                    min = row::<S>(|i| {
                        S::mul(
                            S::mul(dmin.as_ref()[i / S::N], minus),
                            S::load_u8(mn.add(i)),
                        )
                    });
                    row::<S>(|i| S::mul(d.as_ref()[i / S::N], S::load_u8(sc.add(i))))
                }
                Scales::Halves { offset } => {
                    let d = load::<S>(ScaleType::F16, record);
                    halves = record.add((2 + 2 * block) * TILE).cast::<i8>();
                    let minus = S::splat(-(offset as f32));
                    let sc = |half: usize, i: usize| {
                        S::mul(
                            S::mul(d.as_ref()[i / S::N], minus),
                            S::load_i8(halves.add(half * TILE + i)),
                        )
                    };
                    min = row::<S>(|i| sc(0, i));
                    min_high = row::<S>(|i| sc(1, i));
                    d
                }
            };
            Self {
                scale,
                min,
                min_high,
                halves,
            }
        }
    }
}

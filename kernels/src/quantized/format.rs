//! How a group of quantized weights lies in memory.

use candle_core::DType;
use half::{bf16, f16};

use super::codes::QUAD;
use super::{BLOCK, TILE};

/// Element type of stored scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleType {
    F16,
    Bf16,
    F32,
}

impl ScaleType {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 => 4,
        }
    }

    pub(crate) const fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
            Self::F32 => DType::F32,
        }
    }

    /// The nearest value of this type.
    pub(crate) fn round(self, value: f32) -> f32 {
        match self {
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::Bf16 => bf16::from_f32(value).to_f32(),
            Self::F32 => value,
        }
    }
}

/// How the scales of a group are stored; every entry holds one value for each of the 16 columns of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// `w = d * (code - offset)`: `d` (f16).
    Symmetric { offset: i32 },
    /// `w = d * (code - offset) + m`: `d`, `m`. With `mlx`, weights asked for in the scales' own type are rounded to it after
    /// the product and again after the sum, as MLX's `dequantize` does.
    Affine {
        ty: ScaleType,
        offset: i32,
        mlx: bool,
    },
    /// K-quants with minima, `w = d * sc * code - dmin * mn`: `d`, `dmin` (f16), then `sc` (u8) of each block, then `mn`.
    Super,
    /// K-quants scaled by half blocks, `w = d * sc * (code - offset)`: `d` (f16), then `sc` (i8) of each half block.
    Halves { offset: i32 },
}

/// The layout of a [`super::PackedMatrix`]: a group's record is its scales, then the codes of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    /// Bits a stored code: 2, 3, 4, 5, 6 or 8. Codes of 8 bits are signed, others unsigned.
    pub(crate) bits: u32,
    /// Blocks of 32 in a group that shares scales.
    pub(crate) blocks: usize,
    pub(crate) scales: Scales,
}

impl Format {
    /// Bytes of scales before the codes.
    pub(crate) const fn header_bytes(&self) -> usize {
        TILE * match self.scales {
            Scales::Symmetric { .. } => 2,
            Scales::Affine { ty, .. } => 2 * ty.bytes(),
            Scales::Super => 4 + 2 * self.blocks,
            Scales::Halves { .. } => 2 + 2 * self.blocks,
        }
    }

    /// Bytes of the codes of one block.
    pub(crate) const fn block_bytes(&self) -> usize {
        TILE * BLOCK * self.bits as usize / 8
    }

    /// Bytes of a group's record.
    pub(crate) const fn record_bytes(&self) -> usize {
        self.header_bytes() + self.blocks * self.block_bytes()
    }

    /// The codes of block `block` of a record.
    pub(crate) fn codes_of<'a>(&self, record: &'a [u8], block: usize) -> &'a [u8] {
        &record[self.header_bytes() + block * self.block_bytes()..][..self.block_bytes()]
    }

    /// Bytes a column has in each of the header's entries, in their order.
    fn entries(&self) -> impl Iterator<Item = usize> {
        let (large, small) = match self.scales {
            Scales::Symmetric { .. } => (vec![2], 0),
            Scales::Affine { ty, .. } => (vec![ty.bytes(); 2], 0),
            Scales::Super => (vec![2; 2], 2 * self.blocks),
            Scales::Halves { .. } => (vec![2], 2 * self.blocks),
        };
        large.into_iter().chain(std::iter::repeat_n(1, small))
    }

    /// Copies one column of a record to one of another: in every vector of codes a column has 4 neighbouring bytes.
    pub(crate) fn copy_column(
        &self,
        (from, source): (&[u8], usize),
        (to, target): (&mut [u8], usize),
    ) {
        let mut at = 0;
        let codes = (self.record_bytes() - self.header_bytes()) / QUAD;
        for size in self
            .entries()
            .chain(std::iter::repeat_n(QUAD / TILE, codes))
        {
            to[at + target * size..][..size].copy_from_slice(&from[at + source * size..][..size]);
            at += TILE * size;
        }
    }
}

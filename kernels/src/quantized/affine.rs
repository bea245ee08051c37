//! MLX's affine quantization: `w = scale * code + bias` over groups of 32, 64 or 128 elements of a row.

use candle_core::{DType, Result};
use half::{bf16, f16};
use rayon::prelude::*;

use super::format::{Format, ScaleType, Scales};
use super::{ActivationPrecision, BLOCK, PackedMatrix, TILE, codes, scales};

/// Scales or biases of an affine matrix, `[n, k / group]`, in their stored type.
#[derive(Clone, Copy, Debug)]
pub enum AffineParams<'a> {
    /// Half precision.
    F16(&'a [f16]),
    /// Brain float.
    Bf16(&'a [bf16]),
    /// Single precision.
    F32(&'a [f32]),
}

impl AffineParams<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F16(v) => v.len(),
            Self::Bf16(v) => v.len(),
            Self::F32(v) => v.len(),
        }
    }

    fn ty(&self) -> ScaleType {
        match self {
            Self::F16(_) => ScaleType::F16,
            Self::Bf16(_) => ScaleType::Bf16,
            Self::F32(_) => ScaleType::F32,
        }
    }

    fn get(&self, index: usize) -> f32 {
        match self {
            Self::F16(v) => v[index].to_f32(),
            Self::Bf16(v) => v[index].to_f32(),
            Self::F32(v) => v[index],
        }
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F16(_) => DType::F16,
            Self::Bf16(_) => DType::BF16,
            Self::F32(_) => DType::F32,
        }
    }
}

impl PackedMatrix {
    /// Packs an MLX affine matrix `[n, k]`.
    ///
    /// `words` is `[n, k * bits / 32]`; code `i` of a row is bits `i * bits ..` of the row's little-endian bit stream.
    /// `scales` and `biases` are `[n, k / group]` of one dtype; `bits` is 2, 3, 4, 5, 6 or 8, `group` 32, 64 or 128.
    ///
    /// # Errors
    /// If bits, group, dtypes or lengths do not fit.
    pub fn from_affine(
        bits: u32,
        group: usize,
        words: &[u32],
        scales: AffineParams<'_>,
        biases: AffineParams<'_>,
        n: usize,
        k: usize,
    ) -> Result<Self> {
        if !matches!(bits, 2 | 3 | 4 | 5 | 6 | 8) || !matches!(group, 32 | 64 | 128) {
            candle_core::bail!(
                "affine weights have 2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128, not {bits} in {group}"
            );
        }
        if n == 0 || k == 0 || !k.is_multiple_of(group) {
            candle_core::bail!("an affine matrix [{n}, {k}] needs rows of whole groups of {group}");
        }
        // Groups are multiples of 32, so a row's bits fill whole words.
        let row_words = k / 32 * bits as usize;
        let groups = k / group;
        if n.checked_mul(row_words) != Some(words.len())
            || n.checked_mul(groups) != Some(scales.len())
            || scales.len() != biases.len()
        {
            candle_core::bail!(
                "an affine matrix [{n}, {k}] of {bits} bits in groups of {group} does not have {} words, {} scales and {} biases",
                words.len(),
                scales.len(),
                biases.len()
            );
        }
        let ty = scales.ty();
        if biases.ty() != ty {
            candle_core::bail!(
                "affine scales are {:?} and biases {:?}",
                scales.dtype(),
                biases.dtype()
            );
        }
        // Codes of 8 bits are kept signed, as every other 8-bit format's.
        let offset = if bits == 8 { -128 } else { 0 };
        let format = Format {
            bits,
            blocks: group / BLOCK,
            scales: Scales::Affine {
                ty,
                offset,
                mlx: true,
            },
        };
        let record_bytes = format.record_bytes();
        let mut data = vec![0; n.div_ceil(TILE) * groups * record_bytes];
        data.par_chunks_exact_mut(groups * record_bytes)
            .enumerate()
            .for_each(|(tile, out)| {
                for (g, record) in out.chunks_exact_mut(record_bytes).enumerate() {
                    let (header, packed) = record.split_at_mut(format.header_bytes());
                    for (block, packed) in packed.chunks_exact_mut(format.block_bytes()).enumerate()
                    {
                        let mut codes = [[0u8; BLOCK]; TILE];
                        for (column, codes) in codes.iter_mut().enumerate().take(n - tile * TILE) {
                            let row = tile * TILE + column;
                            let words = &words[row * row_words..][..row_words];
                            let first = g * group + block * BLOCK;
                            for (i, code) in codes.iter_mut().enumerate() {
                                *code = bits_at(words, (first + i) * bits as usize, bits);
                                if bits == 8 {
                                    *code ^= 0x80;
                                }
                            }
                            scales::store(ty, header, column, scales.get(row * groups + g));
                            scales::store(ty, header, TILE + column, biases.get(row * groups + g));
                        }
                        codes::pack(bits, &codes, packed);
                    }
                }
            });
        Ok(Self {
            n,
            k,
            format,
            precision: ActivationPrecision::default(),
            data,
        })
    }
}

/// The `bits` bits of a little-endian bit stream that begin at `bit`.
fn bits_at(words: &[u32], bit: usize, bits: u32) -> u8 {
    let (word, shift) = (bit / 32, bit % 32);
    let high = words.get(word + 1).copied().unwrap_or(0);
    let both = u64::from(words[word]) | u64::from(high) << 32;
    ((both >> shift) & ((1 << bits) - 1)) as u8
}

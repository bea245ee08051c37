//! Reading GGUF's block types (layouts: ggml's `ggml-common.h`) into tiles.

use candle_core::Result;
use rayon::prelude::*;

use super::format::{Format, ScaleType, Scales};
use super::{ActivationPrecision, BLOCK, PackedMatrix, TILE, codes};

/// GGUF block types that [`PackedMatrix`] takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum GgufQuant {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

/// One block of one row of weights, read.
struct Block {
    /// Codes of up to 8 blocks of 32.
    codes: [[u8; BLOCK]; 8],
    d: [u8; 2],
    m: [u8; 2],
    /// Scales of blocks or half blocks, and minima of blocks.
    sc: [u8; 16],
    mn: [u8; 8],
}

impl GgufQuant {
    /// Every type.
    pub const ALL: [Self; 9] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// The type that candle calls `dtype`, if it is one of these.
    pub fn from_candle(dtype: candle_core::quantized::GgmlDType) -> Option<Self> {
        use candle_core::quantized::GgmlDType as G;
        Some(match dtype {
            G::Q4_0 => Self::Q4_0,
            G::Q4_1 => Self::Q4_1,
            G::Q5_0 => Self::Q5_0,
            G::Q5_1 => Self::Q5_1,
            G::Q8_0 => Self::Q8_0,
            G::Q3K => Self::Q3K,
            G::Q4K => Self::Q4K,
            G::Q5K => Self::Q5K,
            G::Q6K => Self::Q6K,
            _ => return None,
        })
    }

    /// Elements in a block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    const fn format(self) -> Format {
        let d = ScaleType::F16;
        let (bits, scales) = match self {
            Self::Q4_0 => (4, Scales::Symmetric { offset: 8 }),
            Self::Q4_1 => (
                4,
                Scales::Affine {
                    ty: d,
                    offset: 0,
                    mlx: false,
                },
            ),
            Self::Q5_0 => (5, Scales::Symmetric { offset: 16 }),
            Self::Q5_1 => (
                5,
                Scales::Affine {
                    ty: d,
                    offset: 0,
                    mlx: false,
                },
            ),
            Self::Q8_0 => (8, Scales::Symmetric { offset: 0 }),
            Self::Q3K => (3, Scales::Halves { offset: 4 }),
            Self::Q4K => (4, Scales::Super),
            Self::Q5K => (5, Scales::Super),
            Self::Q6K => (6, Scales::Halves { offset: 32 }),
        };
        Format {
            bits,
            blocks: self.block_len() / BLOCK,
            scales,
        }
    }

    fn read(self, b: &[u8], out: &mut Block) {
        let two = |at: usize| [b[at], b[at + 1]];
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => {
                out.d = two(0);
                let min = matches!(self, Self::Q4_1 | Self::Q5_1);
                if min {
                    out.m = two(2);
                }
                let mut at = if min { 4 } else { 2 };
                let mut top = 0u32;
                if matches!(self, Self::Q5_0 | Self::Q5_1) {
                    top = u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
                    at += 4;
                }
                for i in 0..16 {
                    out.codes[0][i] = b[at + i] & 15 | ((top >> i & 1) as u8) << 4;
                    out.codes[0][i + 16] = b[at + i] >> 4 | ((top >> (i + 16) & 1) as u8) << 4;
                }
            }
            Self::Q8_0 => {
                out.d = two(0);
                out.codes[0].copy_from_slice(&b[2..34]);
            }
            Self::Q4K | Self::Q5K => {
                (out.d, out.m) = (two(0), two(2));
                let s = &b[4..16];
                for i in 0..4 {
                    out.sc[i] = s[i] & 63;
                    out.mn[i] = s[i + 4] & 63;
                    out.sc[i + 4] = s[i + 8] & 15 | s[i] >> 6 << 4;
                    out.mn[i + 4] = s[i + 8] >> 4 | s[i + 4] >> 6 << 4;
                }
                let five = self == Self::Q5K;
                let low = &b[if five { 48 } else { 16 }..];
                for (block, codes) in out.codes.iter_mut().enumerate() {
                    for (i, code) in codes.iter_mut().enumerate() {
                        let top = if five {
                            (b[16 + i] >> block & 1) << 4
                        } else {
                            0
                        };
                        *code = low[block / 2 * 32 + i] >> (4 * (block % 2)) & 15 | top;
                    }
                }
            }
            Self::Q6K => {
                let (low, high) = (&b[..128], &b[128..192]);
                for (block, codes) in out.codes.iter_mut().enumerate() {
                    // Two runs of 128 elements; in each, blocks 0 and 1 are low nibbles, 2 and 3 high ones.
                    let (run, part) = (block / 4, block % 4);
                    for (i, code) in codes.iter_mut().enumerate() {
                        let nibble = low[run * 64 + part % 2 * 32 + i] >> (4 * (part / 2)) & 15;
                        *code = nibble | (high[run * 32 + i] >> (2 * part) & 3) << 4;
                    }
                }
                out.sc.copy_from_slice(&b[192..208]);
                out.d = two(208);
            }
            Self::Q3K => {
                let (top, low, s) = (&b[..32], &b[32..96], &b[96..108]);
                for (block, codes) in out.codes.iter_mut().enumerate() {
                    for (i, code) in codes.iter_mut().enumerate() {
                        let pair = low[block / 4 * 32 + i] >> (2 * (block % 4)) & 3;
                        *code = pair | (top[i] >> block & 1) << 2;
                    }
                }
                for (i, sc) in out.sc.iter_mut().enumerate() {
                    let nibble = s[i % 8] >> (4 * (i / 8)) & 15;
                    let pair = s[8 + i % 4] >> (2 * (i / 4)) & 3;
                    *sc = ((nibble | pair << 4) as i8 - 32) as u8;
                }
                out.d = two(108);
            }
        }
    }
}

impl PackedMatrix {
    /// Packs the bytes of a GGUF tensor of `n` rows of `k` elements.
    ///
    /// # Errors
    /// If `k` is no multiple of the type's block length, or the number of bytes is not that of `n * k` elements.
    pub fn from_gguf(quant: GgufQuant, bytes: &[u8], n: usize, k: usize) -> Result<Self> {
        let row_bytes = k / quant.block_len() * quant.block_bytes();
        if k == 0 || !k.is_multiple_of(quant.block_len()) || n == 0 {
            candle_core::bail!(
                "a {quant:?} matrix [{n}, {k}] needs rows of whole blocks of {}",
                quant.block_len()
            );
        }
        if n.checked_mul(row_bytes) != Some(bytes.len()) {
            candle_core::bail!(
                "a {quant:?} matrix [{n}, {k}] does not have {} bytes",
                bytes.len()
            );
        }
        let format = quant.format();
        let groups = k / quant.block_len();
        let record_bytes = format.record_bytes();
        let mut data = vec![0; n.div_ceil(TILE) * groups * record_bytes];
        data.par_chunks_exact_mut(groups * record_bytes)
            .enumerate()
            .for_each(|(tile, out)| {
                let mut codes = vec![[[0u8; BLOCK]; TILE]; format.blocks];
                let mut read = Block {
                    codes: [[0; BLOCK]; 8],
                    d: [0; 2],
                    m: [0; 2],
                    sc: [0; 16],
                    mn: [0; 8],
                };
                for (group, record) in out.chunks_exact_mut(record_bytes).enumerate() {
                    for column in 0..TILE.min(n - tile * TILE) {
                        let at = (tile * TILE + column) * row_bytes + group * quant.block_bytes();
                        quant.read(&bytes[at..][..quant.block_bytes()], &mut read);
                        for (all, own) in codes.iter_mut().zip(&read.codes) {
                            all[column] = *own;
                        }
                        write_scales(&format, &read, column, record);
                    }
                    for (codes, out) in codes
                        .iter()
                        .zip(record[format.header_bytes()..].chunks_exact_mut(format.block_bytes()))
                    {
                        codes::pack(format.bits, codes, out);
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

fn write_scales(format: &Format, read: &Block, column: usize, record: &mut [u8]) {
    record[2 * column..][..2].copy_from_slice(&read.d);
    match format.scales {
        Scales::Affine { .. } | Scales::Super => {
            record[2 * (TILE + column)..][..2].copy_from_slice(&read.m);
        }
        _ => {}
    }
    match format.scales {
        Scales::Super => {
            for block in 0..format.blocks {
                record[(4 + block) * TILE + column] = read.sc[block];
                record[(4 + format.blocks + block) * TILE + column] = read.mn[block];
            }
        }
        Scales::Halves { .. } => {
            for half in 0..2 * format.blocks {
                record[(2 + half) * TILE + column] = read.sc[half];
            }
        }
        _ => {}
    }
}

//! Packed codes of a tile block: 16 columns by 32 elements.
//!
//! Unpacked, a block is 8 *quads* of 64 bytes: byte `4 * column + j` of quad `q` is element `4 * q + j` of the column, which
//! is what 8-bit dot-product instructions take. Packed, it is split into planes:
//! * 8 bits: the quads themselves;
//! * 4, 5, 6 bits: 4 vectors of 64 bytes; vector `i` holds the low four bits of quads `i` (low nibbles) and `i + 4`;
//! * 2, 3, 6 bits: 2 vectors; vector `i` holds two bits of quads `4 i .. 4 i + 4`, quad `4 i + s` at bit `2 s`;
//! * 3, 5 bits: 1 vector; bit `q` is the top bit of quad `q`.
//!
//! Planes follow one another in this order.

use super::{BLOCK, TILE};

/// Quads in a block.
pub(crate) const QUADS: usize = 8;
/// Bytes of a quad.
pub(crate) const QUAD: usize = 64;

/// Packs one block; `codes[column][element]`, each below `2^bits`.
pub(crate) fn pack(bits: u32, codes: &[[u8; BLOCK]; TILE], out: &mut [u8]) {
    out.fill(0);
    for quad in 0..QUADS {
        for byte in 0..QUAD {
            let code = codes[byte / 4][4 * quad + byte % 4];
            let (nibble, pair, single) = planes(bits);
            let mut rest = code;
            if bits == 8 {
                out[quad * QUAD + byte] = code;
            }
            if let Some(at) = nibble {
                out[at + (quad % 4) * QUAD + byte] |= (rest & 15) << (4 * (quad / 4));
                rest >>= 4;
            }
            if let Some(at) = pair {
                out[at + (quad / 4) * QUAD + byte] |= (rest & 3) << (2 * (quad % 4));
                rest >>= 2;
            }
            if let Some(at) = single {
                out[at + byte] |= (rest & 1) << quad;
            }
        }
    }
}

/// Where the planes of four, two and one bits begin, if the width has them.
#[inline(always)]
pub(crate) const fn planes(bits: u32) -> (Option<usize>, Option<usize>, Option<usize>) {
    match bits {
        2 => (None, Some(0), None),
        3 => (None, Some(0), Some(2 * QUAD)),
        4 => (Some(0), None, None),
        5 => (Some(0), None, Some(4 * QUAD)),
        6 => (Some(0), Some(4 * QUAD), None),
        _ => (None, None, None),
    }
}

/// One code: byte `byte` of quad `quad`.
#[inline(always)]
pub(crate) fn code(bits: u32, packed: &[u8], quad: usize, byte: usize) -> u8 {
    let (nibble, pair, single) = planes(bits);
    let (mut code, mut shift) = (0, 0);
    if bits == 8 {
        code = packed[quad * QUAD + byte];
    }
    if let Some(at) = nibble {
        code = (packed[at + (quad % 4) * QUAD + byte] >> (4 * (quad / 4))) & 15;
        shift = 4;
    }
    if let Some(at) = pair {
        code |= ((packed[at + (quad / 4) * QUAD + byte] >> (2 * (quad % 4))) & 3) << shift;
        shift += 2;
    }
    if let Some(at) = single {
        code |= ((packed[at + byte] >> quad) & 1) << shift;
    }
    code
}

/// The codes of one column.
pub(crate) fn column(bits: u32, packed: &[u8], column: usize) -> [u8; BLOCK] {
    std::array::from_fn(|element| code(bits, packed, element / 4, 4 * column + element % 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_is_undone_by_reading() {
        for bits in [2, 3, 4, 5, 6, 8] {
            let mask = (1u32 << bits) - 1;
            let codes: [[u8; BLOCK]; TILE] = std::array::from_fn(|c| {
                std::array::from_fn(|e| {
                    (((c * 31 + e * 17 + c * e) as u32).wrapping_mul(2_654_435_761) >> 9 & mask)
                        as u8
                })
            });
            let mut packed = vec![0xff; TILE * BLOCK * bits as usize / 8];
            pack(bits, &codes, &mut packed);
            for (c, want) in codes.iter().enumerate() {
                assert_eq!(column(bits, &packed, c), *want, "{bits} bits, column {c}");
            }
        }
    }
}

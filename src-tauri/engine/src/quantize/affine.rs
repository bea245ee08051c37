//! MLX's affine quantizer: `w = scale * code + bias` for groups along a row, codes packed into 32-bit words.

use candle_core::DType;
use half::{bf16, f16};

use crate::weights::AffineFormat;

/// A quantized matrix as its file will hold it, little-endian.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizedRows {
    /// Codes, a bit stream a row: `rows * columns * bits / 8` bytes.
    pub words: Vec<u8>,
    /// One scale a group, in the dtype asked for.
    pub scales: Vec<u8>,
    /// One bias a group, likewise.
    pub biases: Vec<u8>,
}

/// Quantizes rows of `columns` weights; `dtype` (F32, F16 or BF16) is that of scales and biases. Codes are chosen for the scales and
/// biases as they are stored, not as they were before rounding.
///
/// The range of a group is anchored at its end of larger magnitude, and 0 is kept exact where the range contains it: MLX's rule, so that
/// its files and ours differ in no more than rounding.
///
/// # Panics
/// Never for `weights` of whole rows and `columns` of whole groups, which the caller has checked.
pub fn quantize_rows(weights: &[f32], format: AffineFormat, dtype: DType) -> QuantizedRows {
    let groups = weights.len() / format.group;
    let mut out = QuantizedRows {
        words: Vec::with_capacity(weights.len() * format.bits as usize / 8),
        scales: Vec::with_capacity(groups * dtype.size_in_bytes()),
        biases: Vec::with_capacity(groups * dtype.size_in_bytes()),
    };
    // Groups are multiples of 32, so a group's bits fill whole words.
    let (mut pending, mut bits) = (0u64, 0);
    for group in weights.chunks_exact(format.group) {
        let (scale, bias) = range(group, format.bits);
        let scale = store(scale, dtype, &mut out.scales);
        let bias = store(bias, dtype, &mut out.biases);
        let largest = ((1u32 << format.bits) - 1) as f32;
        for weight in group {
            let code = if scale == 0.0 {
                0.0
            } else {
                ((weight - bias) / scale).round()
            };
            // NaN becomes 0, as every cast does.
            pending |= u64::from(code.clamp(0.0, largest) as u32) << bits;
            bits += format.bits;
            while bits >= 8 {
                out.words.push(pending as u8);
                pending >>= 8;
                bits -= 8;
            }
        }
    }
    out
}

/// Scale and bias of one group.
fn range(group: &[f32], bits: u32) -> (f32, f32) {
    let low = group.iter().copied().fold(f32::INFINITY, f32::min);
    let high = group.iter().copied().fold(0.0, f32::max);
    let levels = ((1u32 << bits) - 1) as f32;
    let from_low = low.abs() > high.abs();
    let step = ((high - low) / levels).max(1e-7);
    let step = if from_low { step } else { -step };
    let edge = if from_low { low } else { high };
    let zero = (edge / step).round();
    if zero == 0.0 {
        (step, 0.0)
    } else {
        (edge / zero, edge)
    }
}

/// Appends `value` in `dtype` and returns it as stored.
fn store(value: f32, dtype: DType, out: &mut Vec<u8>) -> f32 {
    match dtype {
        DType::BF16 => {
            let value = bf16::from_f32(value);
            out.extend_from_slice(&value.to_le_bytes());
            value.to_f32()
        }
        DType::F16 => {
            let value = f16::from_f32(value);
            out.extend_from_slice(&value.to_le_bytes());
            value.to_f32()
        }
        _ => {
            out.extend_from_slice(&value.to_le_bytes());
            value
        }
    }
}

#[cfg(test)]
mod tests {
    use headstart_kernels::{AffineParams, PackedMatrix};

    use super::*;

    fn weights(count: usize) -> Vec<f32> {
        let mut state = 1u32;
        (0..count)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            })
            .collect()
    }

    fn restored(weights: &[f32], columns: usize, format: AffineFormat, dtype: DType) -> Vec<f32> {
        let rows = weights.len() / columns;
        let packed = quantize_rows(weights, format, dtype);
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&packed.words);
        let f32s = |bytes: &[u8]| -> Vec<f32> { bytemuck::pod_collect_to_vec(bytes) };
        let bf16s = |bytes: &[u8]| -> Vec<bf16> { bytemuck::pod_collect_to_vec(bytes) };
        let matrix = if dtype == DType::F32 {
            let (scales, biases) = (f32s(&packed.scales), f32s(&packed.biases));
            let (scales, biases) = (AffineParams::F32(&scales), AffineParams::F32(&biases));
            PackedMatrix::from_affine(
                format.bits,
                format.group,
                &words,
                scales,
                biases,
                rows,
                columns,
            )
        } else {
            let (scales, biases) = (bf16s(&packed.scales), bf16s(&packed.biases));
            let (scales, biases) = (AffineParams::Bf16(&scales), AffineParams::Bf16(&biases));
            PackedMatrix::from_affine(
                format.bits,
                format.group,
                &words,
                scales,
                biases,
                rows,
                columns,
            )
        };
        let ids: Vec<u32> = (0..rows as u32).collect();
        let tensor = matrix.unwrap().dequantize_rows(&ids, DType::F32).unwrap();
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// Reading back through the kernels' own unpacking. Putting 0 on a code may move the far end of the range by half a step, so a
    /// weight there is off by up to one; on average it is a quarter.
    #[test]
    fn every_weight_comes_back_within_a_step() {
        let weights = weights(3 * 256);
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                for (dtype, slack) in [(DType::F32, 1e-5), (DType::BF16, 0.02)] {
                    let format = AffineFormat { bits, group };
                    let back = restored(&weights, 256, format, dtype);
                    let step = 2.0 / ((1 << bits) - 1) as f32;
                    let mut sum = 0.0;
                    for (a, b) in weights.iter().zip(&back) {
                        let error = (a - b).abs();
                        assert!(
                            error <= step + slack,
                            "{bits} bits, {group}: {a} became {b}"
                        );
                        sum += error;
                    }
                    let mean = sum / weights.len() as f32;
                    assert!(
                        mean <= 0.35 * step + slack / 4.0,
                        "{bits} bits, {group}: {mean} of {step}"
                    );
                }
            }
        }
    }

    #[test]
    fn constant_and_zero_groups_are_exact() {
        let format = AffineFormat { bits: 4, group: 32 };
        assert_eq!(restored(&[0.0; 64], 32, format, DType::F32), [0.0; 64]);
        for constant in [0.5f32, -0.25] {
            let back = restored(&[constant; 32], 32, format, DType::F32);
            assert!(back.iter().all(|w| (w - constant).abs() < 1e-6), "{back:?}");
        }
    }
}

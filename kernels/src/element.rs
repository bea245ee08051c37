//! The element types of tensors: f32, f16 and bf16, each read into f32 and rounded back.

use candle_core::WithDType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A dtype that the kernels read and write. Arithmetic is always f32.
pub trait Element: WithDType + Copy + Send + Sync {
    /// The value as f32, exact.
    fn to_f32(self) -> f32;
    /// The nearest value of this type, ties to even.
    fn from_f32(value: f32) -> Self;
    /// The values themselves, if they are f32.
    fn as_f32(_values: &[Self]) -> Option<&[f32]> {
        None
    }
    /// Widens `source` into `target`; both have the same length.
    fn widen(source: &[Self], target: &mut [f32]);
    /// Rounds `source` into `target`; both have the same length.
    fn narrow(source: &[f32], target: &mut [Self]);
}

impl Element for f32 {
    fn as_f32(values: &[Self]) -> Option<&[f32]> {
        Some(values)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn widen(source: &[Self], target: &mut [f32]) {
        target.copy_from_slice(source);
    }
    #[inline(always)]
    fn narrow(source: &[f32], target: &mut [Self]) {
        target.copy_from_slice(source);
    }
}

impl Element for f16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
    }
    #[inline(always)]
    fn widen(source: &[Self], target: &mut [f32]) {
        source.convert_to_f32_slice(target);
    }
    #[inline(always)]
    fn narrow(source: &[f32], target: &mut [Self]) {
        target.convert_from_f32_slice(source);
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        // Written without a branch so that loops over it become vector code, which half's own conversion does not.
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        let quiet = (bits >> 16) | 0x40;
        bf16::from_bits(if value.is_nan() { quiet } else { rounded } as u16)
    }
    #[inline(always)]
    fn widen(source: &[Self], target: &mut [f32]) {
        for (t, s) in target.iter_mut().zip(source) {
            *t = Element::to_f32(*s);
        }
    }
    #[inline(always)]
    fn narrow(source: &[f32], target: &mut [Self]) {
        for (t, s) in target.iter_mut().zip(source) {
            *t = Element::from_f32(*s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_as_half_does() {
        for bits in (0..u32::MAX - 9973).step_by(9973) {
            let value = f32::from_bits(bits);
            assert_eq!(
                <bf16 as Element>::from_f32(value).to_bits(),
                bf16::from_f32(value).to_bits(),
                "{value} ({bits:#x})"
            );
        }
        for value in [
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MAX,
            -0.0,
            f32::NAN,
            f32::MIN_POSITIVE,
        ] {
            assert_eq!(
                <bf16 as Element>::from_f32(value).to_bits(),
                bf16::from_f32(value).to_bits()
            );
        }
    }
}

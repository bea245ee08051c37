use super::*;
use crate::testing::on_every_path;

struct Exp<'a>(&'a [f32], &'a mut [f32]);

impl SimdOp for Exp<'_> {
    type Output = ();
    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) {
        for i in (0..self.0.len()).step_by(S::N) {
            // SAFETY: both slices hold a multiple of 16 elements.
            unsafe {
                S::store(
                    self.1.as_mut_ptr().add(i),
                    math::exp::<S>(S::load(self.0.as_ptr().add(i))),
                )
            };
        }
    }
}

#[test]
fn exp_is_accurate_over_its_whole_range() {
    let x: Vec<f32> = (0..17600).map(|i| -87.0 + i as f32 * 0.0099).collect();
    on_every_path(|path| {
        let mut y = vec![0.0; x.len()];
        dispatch(path, Exp(&x, &mut y));
        for (x, y) in x.iter().zip(&y) {
            let want = f64::from(*x).min(88.0).exp();
            assert!(
                (f64::from(*y) - want).abs() <= 3e-7 * want,
                "{path}: exp({x}) = {y}, not {want}"
            );
        }
        let edge = [
            f32::NEG_INFINITY,
            -1e30,
            -88.0,
            0.0,
            1e30,
            f32::INFINITY,
            f32::NAN,
            -1.0,
        ];
        let x: Vec<f32> = edge.iter().chain(&edge).copied().collect();
        let mut y = vec![0.0; 16];
        dispatch(path, Exp(&x, &mut y));
        assert_eq!(y[..4], [0.0, 0.0, 0.0, 1.0], "{path}");
        assert!(
            y[4].is_finite() && y[4] > 1e38 && y[5] == y[4] && y[6].is_nan(),
            "{path}: {y:?}"
        );
    });
}

struct Loads<'a>(&'a [u8], &'a mut [f32]);

impl SimdOp for Loads<'_> {
    type Output = (f32, f32);
    #[inline(always)]
    unsafe fn run<S: Simd + BlockDot>(self) -> (f32, f32) {
        // SAFETY: the bytes hold 16 values of each type, the output four times 16.
        unsafe {
            for i in (0..16).step_by(S::N) {
                let out = |slot: usize| self.1.as_ptr().cast_mut().add(slot * 16 + i);
                S::store(out(0), S::load_f16(self.0.as_ptr().cast::<u16>().add(i)));
                S::store(out(1), S::load_bf16(self.0.as_ptr().cast::<u16>().add(i)));
                S::store(out(2), S::load_u8(self.0.as_ptr().add(i)));
                S::store(out(3), S::load_i8(self.0.as_ptr().cast::<i8>().add(i)));
            }
            let v = S::load(self.1.as_ptr().add(32));
            (S::sum(v), S::maximum(v))
        }
    }
}

#[test]
fn loads_widen_exactly() {
    let bytes: Vec<u8> = (0..32u8)
        .map(|i| i.wrapping_mul(37).wrapping_add(11) & 0xbf)
        .collect();
    let word = |i: usize| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
    on_every_path(|path| {
        let mut out = vec![0.0; 64];
        let (sum, max) = dispatch(path, Loads(&bytes, &mut out));
        for i in 0..16 {
            assert_eq!(out[i], half::f16::from_bits(word(i)).to_f32(), "{path}");
            assert_eq!(
                out[16 + i],
                half::bf16::from_bits(word(i)).to_f32(),
                "{path}"
            );
            assert_eq!(out[32 + i], f32::from(bytes[i]), "{path}");
            assert_eq!(out[48 + i], f32::from(bytes[i] as i8), "{path}");
        }
        let n = [4, 8, 16]
            .into_iter()
            .find(|&n| out[32..32 + n].iter().sum::<f32>() == sum);
        let n = n.unwrap_or_else(|| panic!("{path}: {sum} is no sum of lanes"));
        assert_eq!(
            max,
            out[32..32 + n].iter().copied().fold(0.0, f32::max),
            "{path}"
        );
    });
}

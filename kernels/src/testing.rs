//! What the tests of several operations share.

use candle_core::{DType, Device, Tensor};

use crate::CpuPath;

/// Calls `f` once for every path that this processor has, with that path forced.
pub(crate) fn on_every_path(f: impl Fn(CpuPath)) {
    let paths: Vec<_> = CpuPath::ALL.into_iter().filter(|p| p.available()).collect();
    assert!(paths.contains(&CpuPath::Portable));
    for path in paths {
        crate::with_path(path, || f(path)).unwrap();
    }
}

/// Repeatable values between -1 and 1.
pub(crate) fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(next).collect()
}

/// A CPU tensor of [`values`] times `scale`.
pub(crate) fn tensor(shape: &[usize], seed: u64, scale: f32, dtype: DType) -> Tensor {
    let values: Vec<f32> = values(shape.iter().product(), seed)
        .iter()
        .map(|v| v * scale)
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
        .unwrap()
        .to_dtype(dtype)
        .unwrap()
}

/// The elements of a tensor in row-major order.
pub(crate) fn to_f64(tensor: &Tensor) -> Vec<f64> {
    tensor
        .to_dtype(DType::F64)
        .unwrap()
        .flatten_all()
        .unwrap()
        .to_vec1()
        .unwrap()
}

/// The dtypes that every operation takes, with the relative size of one rounding (f32: of a few sums).
pub(crate) const DTYPES: [(DType, f64); 3] = [
    (DType::F32, 3e-6),
    (DType::F16, 1.1e-3),
    (DType::BF16, 8.5e-3),
];

/// Fails unless `have` is within `step` of `want`, relative to magnitudes above `least`.
pub(crate) fn assert_close(what: &str, have: &Tensor, want: &[f64], step: f64, least: f64) {
    let have = to_f64(have);
    assert_eq!(have.len(), want.len(), "{what}");
    for (i, (have, want)) in have.iter().zip(want).enumerate() {
        assert!(
            (have - want).abs() <= step * want.abs().max(least),
            "{what}, element {i}: {have}, not {want}"
        );
    }
}

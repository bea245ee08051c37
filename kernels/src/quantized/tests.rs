use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};

use super::*;
use crate::testing::{on_every_path, values};

const GGUF: [(GgufQuant, GgmlDType); 9] = [
    (GgufQuant::Q4_0, GgmlDType::Q4_0),
    (GgufQuant::Q4_1, GgmlDType::Q4_1),
    (GgufQuant::Q5_0, GgmlDType::Q5_0),
    (GgufQuant::Q5_1, GgmlDType::Q5_1),
    (GgufQuant::Q8_0, GgmlDType::Q8_0),
    (GgufQuant::Q3K, GgmlDType::Q3K),
    (GgufQuant::Q4K, GgmlDType::Q4K),
    (GgufQuant::Q5K, GgmlDType::Q5K),
    (GgufQuant::Q6K, GgmlDType::Q6K),
];

fn gguf(quant: GgufQuant, dtype: GgmlDType, n: usize, k: usize) -> (PackedMatrix, Vec<f32>) {
    let w = Tensor::from_vec(values(n * k, (n * k) as u64), (n, k), &Device::Cpu).unwrap();
    let stock = QTensor::quantize(&w, dtype).unwrap();
    let packed = PackedMatrix::from_gguf(quant, &stock.data().unwrap(), n, k).unwrap();
    let wide = stock.dequantize(&Device::Cpu).unwrap();
    (packed, wide.flatten_all().unwrap().to_vec1().unwrap())
}

/// An affine matrix with random bits, and its values.
fn affine(bits: u32, group: usize, n: usize, k: usize) -> (PackedMatrix, Vec<f32>) {
    let row_words = k * bits as usize / 32;
    let words: Vec<u32> = values(n * row_words, 5)
        .iter()
        .map(|v| v.to_bits().wrapping_mul(2_654_435_761))
        .collect();
    let scales: Vec<bf16> = values(n * k / group, 6)
        .iter()
        .map(|v| bf16::from_f32(v * 0.01))
        .collect();
    let biases: Vec<bf16> = values(n * k / group, 7)
        .iter()
        .map(|v| bf16::from_f32(v * 0.1))
        .collect();
    let wide = (0..n * k)
        .map(|i| {
            let (row, bit) = (i / k, (i % k) * bits as usize);
            let code = (0..bits as usize).fold(0, |code, b| {
                let word = words[row * row_words + (bit + b) / 32];
                code | (word >> ((bit + b) % 32) & 1) << b
            });
            code as f32 * scales[i / group].to_f32() + biases[i / group].to_f32()
        })
        .collect();
    let (scales, biases) = (AffineParams::Bf16(&scales), AffineParams::Bf16(&biases));
    (
        PackedMatrix::from_affine(bits, group, &words, scales, biases, n, k).unwrap(),
        wide,
    )
}

/// Every format, with a number of blocks a row that suits it.
fn every_matrix(n: usize, blocks: usize) -> Vec<(String, PackedMatrix, Vec<f32>)> {
    let mut all = Vec::new();
    for (quant, dtype) in GGUF {
        let k = (blocks * 32).next_multiple_of(quant.block_len());
        let (packed, wide) = gguf(quant, dtype, n, k);
        all.push((format!("{quant:?} [{n}, {k}]"), packed, wide));
    }
    for (bits, group) in [
        (2, 32),
        (3, 64),
        (4, 64),
        (5, 128),
        (6, 32),
        (8, 64),
        (4, 32),
        (8, 128),
        (6, 64),
    ] {
        let k = (blocks * 32).next_multiple_of(group);
        let (packed, wide) = affine(bits, group, n, k);
        all.push((format!("affine {bits} in {group} [{n}, {k}]"), packed, wide));
    }
    all
}

/// What 8-bit activations stand for, by the format's definition.
fn rounded(x: &[f32]) -> Vec<f64> {
    let round = |block: &[f32]| {
        let largest = block.iter().fold(0f32, |a, b| a.max(b.abs()));
        let (d, inverse) = (
            largest / 127.0,
            if largest > 0.0 { 127.0 / largest } else { 0.0 },
        );
        block
            .iter()
            .map(move |v| f64::from(d) * f64::from((v * inverse).round_ties_even()))
            .collect::<Vec<_>>()
    };
    x.chunks_exact(32).flat_map(round).collect()
}

fn to_f64(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}

/// Largest distance from the f64 product, relative to the sum of magnitudes.
fn check_product(what: &str, out: &[f32], x: &[f64], w: &[f32], k: usize) {
    let w = to_f64(w);
    let abs = |x: &[f64]| x.iter().map(|v| v.abs()).collect::<Vec<_>>();
    let want = reference(x, &w, k);
    let magnitude = reference(&abs(x), &abs(&w), k);
    for ((out, want), magnitude) in out.iter().zip(want).zip(magnitude) {
        assert!(
            (f64::from(*out) - want).abs() <= 2e-6 * magnitude + 1e-30,
            "{what}: {out}, not {want}"
        );
    }
}

#[test]
fn dequantized_rows_are_what_candle_gives() {
    for (name, packed, wide) in every_matrix(37, 18) {
        let ids = [36u32, 0, 17, 17];
        let rows = packed
            .dequantize_rows(&ids, DType::F32)
            .unwrap()
            .to_vec2::<f32>()
            .unwrap();
        for (id, row) in ids.iter().zip(rows) {
            let want = &wide[*id as usize * packed.k()..][..packed.k()];
            for (have, want) in row.iter().zip(want) {
                assert!(
                    (have - want).abs() <= 2e-7 * want.abs().max(0.5),
                    "{name}: {have}, not {want}"
                );
            }
        }
        assert!(packed.dequantize_rows(&[37], DType::F32).is_err());
    }
}

#[test]
fn dequantized_rows_keep_the_asked_dtype() {
    let (packed, wide) = gguf(GgufQuant::Q4_1, GgmlDType::Q4_1, 16, 64);
    let half = packed.dequantize_rows(&[3], DType::BF16).unwrap();
    assert_eq!(half.dtype(), DType::BF16);
    let want: Vec<bf16> = wide[3 * 64..4 * 64]
        .iter()
        .map(|v| bf16::from_f32(*v))
        .collect();
    assert_eq!(half.flatten_all().unwrap().to_vec1::<bf16>().unwrap(), want);
}

const PRECISIONS: [ActivationPrecision; 3] = [
    ActivationPrecision::Int8,
    ActivationPrecision::Int8Twice,
    ActivationPrecision::F32,
];

/// `x` as [`ActivationPrecision::Int8Twice`] sees it: within 2^-15 of the largest value of each block.
fn rounded_twice(x: &[f32]) -> Vec<f64> {
    let coarse = rounded(x);
    let rest: Vec<f32> = x.iter().zip(&coarse).map(|(x, c)| x - *c as f32).collect();
    let both: Vec<f64> = coarse
        .iter()
        .zip(rounded(&rest))
        .map(|(a, b)| a + b)
        .collect();
    for (x, both) in x.chunks(32).zip(both.chunks(32)) {
        let largest = x.iter().fold(0f32, |a, b| a.max(b.abs()));
        for (x, both) in x.iter().zip(both) {
            assert!((f64::from(*x) - both).abs() <= f64::from(largest) / 32_000.0);
        }
    }
    both
}

#[test]
fn products_match_the_reference_on_every_path() {
    for (n, blocks, m) in [
        (1, 1, 1),
        (5, 3, 2),
        (16, 4, 3),
        (37, 18, 5),
        (64, 2, 8),
        (48, 5, 33),
    ] {
        for (name, packed, wide) in every_matrix(n, blocks) {
            let k = packed.k();
            let x = values(m * k, 11);
            let mut out = vec![f32::NAN; m * n];
            let mut packed = packed;
            for precision in PRECISIONS {
                packed = packed.with_precision(precision);
                let x64 = match precision {
                    ActivationPrecision::Int8 => rounded(&x),
                    ActivationPrecision::Int8Twice => rounded_twice(&x),
                    ActivationPrecision::F32 => to_f64(&x),
                };
                on_every_path(|path| {
                    let mut out = vec![f32::NAN; m * n];
                    packed.matmul(&x, m, &mut out).unwrap();
                    check_product(
                        &format!("{name}, {m} rows, {precision:?}, {path}"),
                        &out,
                        &x64,
                        &wide,
                        k,
                    );
                });
            }
            packed.matmul(&x, m, &mut out).unwrap();
        }
    }
}

#[test]
fn a_row_is_the_same_bit_for_bit_however_many_run_with_it() {
    let most = 200;
    for (name, packed, _) in every_matrix(53, 9) {
        let (n, k) = (packed.n(), packed.k());
        let x = values(most * k, 3);
        let mut packed = packed;
        for precision in PRECISIONS {
            packed = packed.with_precision(precision);
            on_every_path(|path| {
                let mut alone = vec![0.0; most * n];
                for (x, out) in x.chunks_exact(k).zip(alone.chunks_exact_mut(n)) {
                    packed.matmul(x, 1, out).unwrap();
                }
                for m in [2, 3, 4, 5, 6, 7, 8, 9, 33, most] {
                    let mut out = vec![f32::NAN; m * n];
                    packed.matmul(&x[..m * k], m, &mut out).unwrap();
                    assert!(
                        out[..] == alone[..m * n],
                        "{name}, {m} rows, {precision:?}, {path}"
                    );
                }
            });
        }
    }
}

#[test]
fn extreme_codes_do_not_overflow() {
    // Largest codes of one sign against the largest activations: 16-bit sums are at their limit.
    for (bits, group) in [(2, 32), (3, 32), (4, 32), (5, 32), (6, 32), (8, 32)] {
        let (n, k) = (16, 64);
        let one = vec![f16::ONE; n * k / group];
        let zero = vec![f16::ZERO; n * k / group];
        for word in [u32::MAX, 0] {
            let words = vec![word; n * k * bits / 32];
            let (s, b) = (AffineParams::F16(&one), AffineParams::F16(&zero));
            let packed = PackedMatrix::from_affine(bits as u32, group, &words, s, b, n, k).unwrap();
            let code = if word == 0 {
                0.0
            } else {
                ((1u32 << bits) - 1) as f32
            };
            for x in [1.0, -1.0] {
                on_every_path(|path| {
                    let mut out = vec![0.0; n];
                    packed.matmul(&vec![x; k], 1, &mut out).unwrap();
                    let want = code * x * k as f32;
                    for out in out {
                        assert!(
                            (out - want).abs() <= 1e-5 * want.abs(),
                            "{bits} bits, {path}: {out}, not {want}"
                        );
                    }
                });
            }
        }
    }
    let (quant, n, k) = (GgufQuant::Q6K, 16, 256);
    for (low, high, sc) in [
        (0xff, 0xff, 127),
        (0xff, 0xff, -128i8),
        (0, 0, 127),
        (0, 0, -128),
    ] {
        let mut block = vec![low; 192];
        block[128..].fill(high);
        block.extend([sc as u8; 16]);
        block.extend(f16::ONE.to_le_bytes());
        let packed = PackedMatrix::from_gguf(quant, &block.repeat(n), n, k).unwrap();
        let weight = if low == 0 { -32.0 } else { 31.0 } * f32::from(sc);
        on_every_path(|path| {
            let mut out = vec![0.0; n];
            packed.matmul(&vec![1.0; k], 1, &mut out).unwrap();
            let want = weight * k as f32;
            assert!(
                out.iter().all(|o| (o - want).abs() <= 1e-5 * want.abs()),
                "{path}: {out:?}, not {want}"
            );
        });
    }
}

#[test]
fn forward_keeps_the_dtype_and_leading_shape() {
    let (packed, wide) = gguf(GgufQuant::Q8_0, GgmlDType::Q8_0, 20, 96);
    let packed = packed.with_precision(ActivationPrecision::F32);
    let x = Tensor::from_vec(values(6 * 96, 2), (2, 3, 96), &Device::Cpu).unwrap();
    let mut exact = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let x = x.to_dtype(dtype).unwrap();
        let out = packed.forward(&x).unwrap();
        assert_eq!((out.dims(), out.dtype()), (&[2, 3, 20][..], dtype));
        let wide_x: Vec<f32> = x
            .to_dtype(DType::F32)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap();
        let want = reference(&to_f64(&wide_x), &to_f64(&wide), 96);
        let out: Vec<f32> = out
            .to_dtype(DType::F32)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap();
        let step = match dtype {
            DType::F32 => 1e-5,
            DType::F16 => 1e-3,
            _ => 8e-3,
        };
        for (out, want) in out.iter().zip(&want) {
            assert!(
                (f64::from(*out) - want).abs() <= step * want.abs().max(1.0),
                "{dtype:?}: {out}, not {want}"
            );
        }
        exact.push(out);
    }
    assert_ne!(exact[0], exact[1]);
    assert!(packed.forward(&x.narrow(2, 0, 95).unwrap()).is_err());
    assert!(packed.forward(&x.to_dtype(DType::U32).unwrap()).is_err());
    assert_eq!(
        packed.forward(&x.narrow(1, 0, 0).unwrap()).unwrap().dims(),
        &[2, 0, 20]
    );
}

#[test]
fn a_strided_input_is_read_as_its_shape_says() {
    let (packed, _) = gguf(GgufQuant::Q4_0, GgmlDType::Q4_0, 16, 64);
    let x = Tensor::from_vec(values(4 * 64, 2), (64, 4), &Device::Cpu)
        .unwrap()
        .t()
        .unwrap();
    let dense = packed
        .forward(&x.contiguous().unwrap())
        .unwrap()
        .to_vec2::<f32>()
        .unwrap();
    assert_eq!(packed.forward(&x).unwrap().to_vec2::<f32>().unwrap(), dense);
}

#[test]
fn broken_activations_stay_visible() {
    let (packed, _) = gguf(GgufQuant::Q4_1, GgmlDType::Q4_1, 16, 64);
    for broken in [f32::NAN, f32::INFINITY] {
        on_every_path(|path| {
            let mut x = vec![0.5; 128];
            x[70] = broken;
            let mut out = vec![0.0; 32];
            packed.matmul(&x, 2, &mut out).unwrap();
            assert!(
                out[..16].iter().all(|v| v.is_finite()) && out[16..].iter().all(|v| !v.is_finite()),
                "{path}"
            );
        });
    }
}

#[test]
fn wrong_sizes_are_errors() {
    let bytes = vec![0; 20 * 4];
    assert!(PackedMatrix::from_gguf(GgufQuant::Q4_1, &bytes, 2, 64).is_ok());
    assert!(PackedMatrix::from_gguf(GgufQuant::Q4_1, &bytes, 2, 63).is_err());
    assert!(PackedMatrix::from_gguf(GgufQuant::Q4_1, &bytes, 3, 64).is_err());
    assert!(PackedMatrix::from_gguf(GgufQuant::Q4_1, &bytes, usize::MAX, 64).is_err());
    assert!(PackedMatrix::from_gguf(GgufQuant::Q4K, &bytes, 2, 64).is_err());
    assert!(PackedMatrix::from_gguf(GgufQuant::Q4_1, &[], 0, 64).is_err());
    let (words, params) = (vec![0u32; 8], vec![1f32; 2]);
    let params = AffineParams::F32(&params);
    let make =
        |bits, group, n, k| PackedMatrix::from_affine(bits, group, &words, params, params, n, k);
    assert!(make(4, 32, 1, 64).is_ok());
    assert!(make(7, 32, 1, 64).is_err());
    assert!(make(4, 48, 1, 64).is_err());
    assert!(make(4, 32, 2, 64).is_err());
    assert!(make(4, 32, usize::MAX, 64).is_err());
    let (packed, _) = gguf(GgufQuant::Q4_1, GgmlDType::Q4_1, 16, 64);
    assert!(packed.matmul(&[0.0; 64], 2, &mut [0.0; 32]).is_err());
    assert!(packed.matmul(&[0.0; 64], 1, &mut [0.0; 15]).is_err());
}

#[test]
fn packing_takes_the_room_of_the_file() {
    for (quant, dtype) in GGUF {
        let (packed, _) = gguf(quant, dtype, 32, 512);
        let file = 32 * 512 / quant.block_len() * quant.block_bytes();
        assert!(
            packed.bytes() >= file && packed.bytes() as f64 <= 1.04 * file as f64,
            "{quant:?}"
        );
    }
}

/// Values and products of MLX itself, which the fixtures hold.
#[test]
fn affine_weights_are_what_mlx_says() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/affine");
    for (name, dtype) in [
        ("f32", DType::F32),
        ("f16", DType::F16),
        ("bf16", DType::BF16),
    ] {
        let file = folder.join(format!("affine_{name}.safetensors"));
        let all = candle_core::safetensors::load(&file, &Device::Cpu).unwrap();
        let x = &all["x"];
        let w: Vec<f32> = all["w"]
            .to_dtype(DType::F32)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap();
        // Six arrays for each of 6 widths and 3 groups, and the two that all share: none is left unlooked at.
        assert_eq!(all.len(), 6 * 18 + 2, "{name}");
        for bits in [2, 3, 4, 5, 6, 8] {
            for group in [32, 64, 128] {
                let get = |what: &str| &all[&format!("b{bits}_g{group}_{what}")];
                let (n, k) = get("dequant").dims2().unwrap();
                let words: Vec<u32> = get("weight").flatten_all().unwrap().to_vec1().unwrap();
                let (s, b) = (
                    get("scales").flatten_all().unwrap(),
                    get("biases").flatten_all().unwrap(),
                );
                let make =
                    |s, b| PackedMatrix::from_affine(bits, group, &words, s, b, n, k).unwrap();
                let packed = match dtype {
                    DType::F32 => {
                        let (s, b) = (s.to_vec1().unwrap(), b.to_vec1().unwrap());
                        make(AffineParams::F32(&s), AffineParams::F32(&b))
                    }
                    DType::F16 => {
                        let (s, b) = (s.to_vec1().unwrap(), b.to_vec1().unwrap());
                        make(AffineParams::F16(&s), AffineParams::F16(&b))
                    }
                    _ => {
                        let (s, b) = (s.to_vec1().unwrap(), b.to_vec1().unwrap());
                        make(AffineParams::Bf16(&s), AffineParams::Bf16(&b))
                    }
                };
                let packed = packed.with_precision(ActivationPrecision::F32);
                let ids: Vec<u32> = (0..n as u32).collect();
                let wide = packed
                    .dequantize_rows(&ids, dtype)
                    .unwrap()
                    .to_dtype(DType::F32)
                    .unwrap();
                let want = get("dequant").to_dtype(DType::F32).unwrap();
                let differ = wide
                    .ne(&want)
                    .unwrap()
                    .to_dtype(DType::F32)
                    .unwrap()
                    .sum_all()
                    .unwrap();
                assert_eq!(
                    differ.to_scalar::<f32>().unwrap(),
                    0.0,
                    "{name}, {bits} bits in {group}"
                );
                let product: Vec<f32> = packed
                    .forward(&x.to_dtype(DType::F32).unwrap())
                    .unwrap()
                    .flatten_all()
                    .unwrap()
                    .to_vec1()
                    .unwrap();
                let floats = |t: &Tensor| -> Vec<f32> {
                    t.to_dtype(DType::F32)
                        .unwrap()
                        .flatten_all()
                        .unwrap()
                        .to_vec1()
                        .unwrap()
                };
                let want = floats(get("product_f32"));
                let rounded = floats(get("product"));
                // MLX rounded the product of scale and code, and the weight, to the dtype before it multiplied.
                let step = match dtype {
                    DType::F32 => 1e-6,
                    DType::F16 => 2f32.powi(-11),
                    _ => 2f32.powi(-8),
                };
                let largest = |t: &Tensor| {
                    to_f64(&t.flatten_all().unwrap().to_vec1().unwrap())
                        .iter()
                        .fold(0.0, |a: f64, b| a.max(b.abs()))
                };
                let weight = largest(&wide.to_dtype(DType::F32).unwrap()) as f32;
                // MLX stretches a group's scale so that the end of its range farther from 0 is exact. That cuts the other end by up to
                // one scale, of before: at most 4/3 of the stored one, with 2 bits. The rest is rounding of scale, bias and weight.
                let scales = floats(get("scales"));
                for (i, (have, want)) in floats(&wide).iter().zip(&w).enumerate() {
                    let bound = 4.0 / 3.0 * scales[i / group].abs() + 2.0 * step * weight;
                    assert!(
                        (have - want).abs() <= bound,
                        "{name}, {bits} bits in {group}: {have}, not {want} by {bound}"
                    );
                }
                let x = x
                    .to_dtype(DType::F32)
                    .unwrap()
                    .abs()
                    .unwrap()
                    .sum(1)
                    .unwrap()
                    .to_vec1::<f32>()
                    .unwrap();
                for (i, (have, want)) in product.iter().zip(want).enumerate() {
                    let bound = step * weight * x[i / n];
                    assert!(
                        (have - want).abs() <= bound,
                        "{name}, {bits} bits in {group}: {have}, not {want}"
                    );
                    // And once more rounded, to the dtype.
                    assert!(
                        (have - rounded[i]).abs() <= bound + step * rounded[i].abs(),
                        "{name}, {bits} bits in {group}: {have}, not {} in {dtype:?}",
                        rounded[i]
                    );
                }
            }
        }
    }
}

#[test]
fn selected_rows_are_the_rows_themselves() {
    for (name, packed, _) in every_matrix(37, 8) {
        let ids = [
            36u32, 0, 5, 5, 17, 31, 16, 15, 1, 2, 3, 4, 6, 7, 8, 9, 33, 20, 21,
        ];
        let selected = packed.select_rows(&ids).unwrap();
        assert_eq!((selected.n(), selected.k()), (ids.len(), packed.k()));
        let x = values(2 * packed.k(), 9);
        on_every_path(|path| {
            let (mut all, mut some) = (vec![0f32; 2 * 37], vec![0f32; 2 * ids.len()]);
            packed.matmul(&x, 2, &mut all).unwrap();
            selected.matmul(&x, 2, &mut some).unwrap();
            for (i, id) in ids.iter().enumerate() {
                for row in 0..2 {
                    let (have, want) = (some[row * ids.len() + i], all[row * 37 + *id as usize]);
                    assert_eq!(have.to_bits(), want.to_bits(), "{path}, {name}, row {id}");
                }
            }
        });
        assert!(packed.select_rows(&[37]).is_err());
        assert_eq!(packed.select_rows(&[]).unwrap().n(), 0);
    }
}

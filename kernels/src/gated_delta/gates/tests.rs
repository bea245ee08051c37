use super::*;
use crate::testing::{DTYPES, assert_close, on_every_path, tensor, to_f64};

#[test]
fn the_gated_norm_matches_the_reference_on_every_path_and_dtype() {
    for shape in [[1, 1], [3, 24], [2, 128], [5, 301], [70, 515]] {
        for (dtype, step) in DTYPES {
            let x = tensor(&shape, 1, 4.0, dtype);
            let gate = tensor(&shape, 2, 12.0, dtype);
            for weight_dtype in [dtype, DType::F32] {
                let weight = tensor(&shape[1..], 3, 2.0, weight_dtype);
                let want =
                    gated_rms_norm_reference(&to_f64(&x), &to_f64(&gate), &to_f64(&weight), 1e-6);
                on_every_path(|path| {
                    let out = gated_rms_norm(&x, &gate, &weight, 1e-6).unwrap();
                    assert_eq!((out.dtype(), out.dims()), (dtype, &shape[..]));
                    assert_close(
                        &format!("{shape:?} {dtype:?} {path}"),
                        &out,
                        &want,
                        step,
                        1e-2,
                    );
                });
                let out = stock_gated_rms_norm(&x, &gate, &weight, 1e-6).unwrap();
                assert_eq!(out.dtype(), dtype);
                assert_close("stock", &out, &want, step, 1e-2);
            }
        }
    }
}

#[test]
fn the_sigmoid_gate_matches_the_reference_on_every_path_and_dtype() {
    for shape in [[1, 1], [3, 37], [2, 256], [70, 515]] {
        for (dtype, step) in DTYPES {
            let (x, gate) = (
                tensor(&shape, 1, 4.0, dtype),
                tensor(&shape, 2, 12.0, dtype),
            );
            let want = sigmoid_mul_reference(&to_f64(&x), &to_f64(&gate));
            on_every_path(|path| {
                let out = sigmoid_mul(&x, &gate).unwrap();
                assert_eq!((out.dtype(), out.dims()), (dtype, &shape[..]));
                assert_close(
                    &format!("{shape:?} {dtype:?} {path}"),
                    &out,
                    &want,
                    step,
                    1e-3,
                );
            });
            assert_close(
                "stock",
                &stock_sigmoid_mul(&x, &gate).unwrap(),
                &want,
                step,
                1e-3,
            );
        }
    }
}

#[test]
fn decay_and_beta_match_the_reference() {
    for shape in [[1, 1], [1, 16], [5, 3], [513, 16]] {
        for (dtype, _) in DTYPES {
            let (a, b) = (tensor(&shape, 1, 9.0, dtype), tensor(&shape, 2, 9.0, dtype));
            let a_log = tensor(&shape[1..], 3, 2.0, DType::F32);
            let dt_bias = tensor(&shape[1..], 4, 3.0, DType::F32);
            let [a_values, b_values, logs, biases] = [&a, &b, &a_log, &dt_bias].map(to_f64);
            let (decay, beta) = decay_and_beta_reference(&a_values, &b_values, &logs, &biases);
            let (a_wide, b_wide) = (
                a.to_dtype(DType::F32).unwrap(),
                b.to_dtype(DType::F32).unwrap(),
            );
            // Stock candle has no ln(1 + x): the stock version loses what 1 + x rounds away, which no decay can tell.
            for (what, least, out) in [
                ("kernel", 0.1, decay_and_beta(&a, &b, &a_log, &dt_bias)),
                (
                    "stock",
                    1.0,
                    stock_decay_and_beta(&a_wide, &b_wide, &a_log, &dt_bias),
                ),
            ] {
                let out = out.unwrap();
                assert_eq!((out.0.dtype(), out.1.dtype()), (DType::F32, DType::F32));
                assert_eq!((out.0.dims(), out.1.dims()), (&shape[..], &shape[..]));
                assert_close(what, &out.0, &decay, 3e-6, least);
                assert_close(what, &out.1, &beta, 3e-6, 1e-3);
            }
        }
    }
}

#[test]
fn softplus_is_exact_for_large_inputs() {
    let row = |values: &[f32]| {
        Tensor::from_slice(values, (1, values.len()), &candle_core::Device::Cpu).unwrap()
    };
    let a = row(&[-1e30, -200.0, 0.0, 100.0, 1e30]);
    let zeros = Tensor::zeros(5, DType::F32, &candle_core::Device::Cpu).unwrap();
    for out in [
        decay_and_beta(&a, &a, &zeros, &zeros).unwrap(),
        stock_decay_and_beta(&a, &a, &zeros, &zeros).unwrap(),
    ] {
        let (decay, beta) = (to_f64(&out.0), to_f64(&out.1));
        assert!(decay[0] == 0.0 && decay[1].abs() < 1e-30, "{decay:?}");
        assert!((decay[2] + 2f64.ln()).abs() < 1e-6, "{decay:?}");
        assert_eq!(decay[3..], [-100.0, f64::from(-1e30f32)]);
        assert_eq!((beta[0], beta[2], beta[4]), (0.0, 0.5, 1.0));
    }
}

#[test]
fn large_gates_saturate() {
    let gate = Tensor::new(&[-1e4f32, -100.0, 100.0, 1e4], &candle_core::Device::Cpu).unwrap();
    let one = gate.ones_like().unwrap();
    on_every_path(|path| {
        let out = sigmoid_mul(&one, &gate).unwrap().to_vec1::<f32>().unwrap();
        assert!(
            out[0].abs() < 1e-30 && out[1].abs() < 1e-30,
            "{path}: {out:?}"
        );
        assert_eq!(out[2..], [1.0, 1.0], "{path}");
        let out = gated_rms_norm(&one, &gate, &one, 0.0).unwrap();
        let out = out.to_vec1::<f32>().unwrap();
        assert!(
            out[0].abs() < 1e-30 && out[1].abs() < 1e-30,
            "{path}: {out:?}"
        );
        assert_eq!(out[2..], [100.0, 1e4], "{path}");
    });
}

#[test]
fn misfits_are_errors() {
    let x = tensor(&[2, 6], 1, 1.0, DType::F32);
    let half = x.to_dtype(DType::F16).unwrap();
    let weight = tensor(&[6], 1, 1.0, DType::F32);
    let one = x.narrow(0, 0, 1).unwrap();
    assert!(gated_rms_norm(&x, &one, &weight, 1e-6).is_err());
    assert!(gated_rms_norm(&x, &half, &weight, 1e-6).is_err());
    assert!(gated_rms_norm(&x, &x, &weight.narrow(0, 0, 5).unwrap(), 1e-6).is_err());
    assert!(gated_rms_norm(&x, &x, &weight.to_dtype(DType::F16).unwrap(), 1e-6).is_err());
    assert!(sigmoid_mul(&x, &half).is_err());
    assert!(sigmoid_mul(&x, &one).is_err());
    let ids = x.to_dtype(DType::U32).unwrap();
    assert!(sigmoid_mul(&ids, &ids).is_err());
    assert!(decay_and_beta(&x, &one, &weight, &weight).is_err());
    assert!(decay_and_beta(&x, &x, &weight, &weight.narrow(0, 0, 5).unwrap()).is_err());
    assert!(decay_and_beta(&x, &x, &weight.to_dtype(DType::F16).unwrap(), &weight).is_err());
    let none = x.narrow(0, 0, 0).unwrap();
    assert_eq!(
        gated_rms_norm(&none, &none, &weight, 1e-6).unwrap().dims(),
        [0, 6]
    );
    assert_eq!(
        decay_and_beta(&none, &none, &weight, &weight)
            .unwrap()
            .0
            .dims(),
        [0, 6]
    );
}

use super::*;
use crate::testing::{DTYPES, assert_close, on_every_path, tensor, to_f64};

#[test]
fn matches_the_reference_on_every_path_and_dtype() {
    for shape in [[1, 1], [3, 37], [2, 256], [1, 300], [70, 515]] {
        for (dtype, step) in DTYPES {
            let (gate, up) = (
                tensor(&shape, 1, 12.0, dtype),
                tensor(&shape, 2, 3.0, dtype),
            );
            let want = reference(&to_f64(&gate), &to_f64(&up));
            on_every_path(|path| {
                let out = swiglu(&gate, &up).unwrap();
                assert_eq!((out.dtype(), out.dims()), (dtype, &shape[..]));
                assert_close(
                    &format!("{shape:?} {dtype:?} {path}"),
                    &out,
                    &want,
                    step,
                    1e-3,
                );
                let both = Tensor::cat(&[&gate, &up], 1).unwrap();
                let fused = swiglu_fused(&both).unwrap();
                assert_eq!((fused.dtype(), fused.dims()), (dtype, &shape[..]));
                assert_eq!(to_f64(&fused), to_f64(&out), "{shape:?} {dtype:?} {path}");
            });
            assert_close("stock", &stock(&gate, &up).unwrap(), &want, step, 1e-3);
        }
    }
}

#[test]
fn large_gates_saturate() {
    let gate = Tensor::new(&[-1e4f32, -100.0, 100.0, 1e4], &candle_core::Device::Cpu).unwrap();
    let one = gate.ones_like().unwrap();
    on_every_path(|path| {
        let out = swiglu(&gate, &one).unwrap().to_vec1::<f32>().unwrap();
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
    assert!(swiglu(&x, &tensor(&[2, 5], 1, 1.0, DType::F32)).is_err());
    assert!(swiglu(&x, &x.to_dtype(DType::BF16).unwrap()).is_err());
    assert!(swiglu_fused(&tensor(&[2, 5], 1, 1.0, DType::F32)).is_err());
    assert!(
        swiglu(
            &x.to_dtype(DType::U32).unwrap(),
            &x.to_dtype(DType::U32).unwrap()
        )
        .is_err()
    );
    assert_eq!(
        swiglu_fused(&x.narrow(0, 0, 0).unwrap()).unwrap().dims(),
        &[0, 3]
    );
}

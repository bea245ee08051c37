use super::*;
use crate::testing::{DTYPES, assert_close, on_every_path, tensor, to_f64};

#[test]
fn matches_the_reference_on_every_path_and_dtype() {
    for shape in [[1, 1], [3, 24], [2, 576], [5, 301], [130, 515]] {
        for (dtype, step) in DTYPES {
            let x = tensor(&shape, 1, 4.0, dtype);
            let residual = tensor(&shape, 3, 2.0, dtype);
            let weight = tensor(&shape[1..], 2, 2.0, dtype);
            // Summed in f32 and rounded once: candle's own bf16 sum is cut off, not rounded, on some processors.
            let wide = |t: &Tensor| t.to_dtype(DType::F32).unwrap();
            let exact_sum = (wide(&x) + wide(&residual))
                .unwrap()
                .to_dtype(dtype)
                .unwrap();
            let want = reference(&to_f64(&x), &to_f64(&weight), 1e-5);
            on_every_path(|path| {
                let what = format!("{shape:?} {dtype:?} {path}");
                let out = rms_norm(&x, &weight, 1e-5).unwrap();
                assert_eq!((out.dtype(), out.dims()), (dtype, &shape[..]));
                assert_close(&what, &out, &want, step, 1e-3);

                let (sum, normed) = add_rms_norm(&x, &residual, &weight, 1e-5).unwrap();
                assert_eq!(to_f64(&sum), to_f64(&exact_sum), "{what}");
                assert_eq!(
                    to_f64(&normed),
                    to_f64(&rms_norm(&sum, &weight, 1e-5).unwrap()),
                    "{what}"
                );
                assert_eq!((normed.dtype(), sum.dtype()), (dtype, dtype));
            });
            assert_close(
                "stock",
                &stock(&x, &weight, 1e-5).unwrap(),
                &want,
                step,
                1e-3,
            );
        }
    }
}

#[test]
fn a_row_does_not_depend_on_its_neighbours() {
    let (x, weight) = (
        tensor(&[200, 576], 1, 1.0, DType::F32),
        tensor(&[576], 2, 1.0, DType::F32),
    );
    on_every_path(|path| {
        let all = rms_norm(&x, &weight, 1e-6).unwrap();
        for row in [0, 7, 199] {
            let alone = rms_norm(&x.narrow(0, row, 1).unwrap(), &weight, 1e-6).unwrap();
            assert_eq!(
                to_f64(&alone),
                to_f64(&all.narrow(0, row, 1).unwrap()),
                "{path}"
            );
        }
    });
}

#[test]
fn misfits_are_errors() {
    let x = tensor(&[2, 6], 1, 1.0, DType::F32);
    let weight = tensor(&[6], 1, 1.0, DType::F32);
    assert!(rms_norm(&x, &tensor(&[5], 1, 1.0, DType::F32), 1e-5).is_err());
    assert!(rms_norm(&x, &weight.to_dtype(DType::F16).unwrap(), 1e-5).is_err());
    assert!(add_rms_norm(&x, &x.narrow(0, 0, 1).unwrap(), &weight, 1e-5).is_err());
    assert_eq!(
        rms_norm(&x.narrow(0, 0, 0).unwrap(), &weight, 1e-5)
            .unwrap()
            .dims(),
        &[0, 6]
    );
}

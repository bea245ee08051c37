use candle_core::{DType, Tensor};

use super::dense_matmul;
use crate::EXACT_ROWS;
use crate::quantized::reference;
use crate::testing::{DTYPES, assert_close, on_every_path, tensor, to_f64};

/// Outputs and inputs: whole blocks, ragged ones, one of each, and enough to be shared out over threads.
const SHAPES: [(usize, usize); 6] = [(16, 64), (13, 37), (1, 5), (8, 1), (3, 200), (515, 384)];

#[test]
fn equals_the_reference() {
    on_every_path(|path| {
        for (dtype, step) in DTYPES {
            for (n, k) in SHAPES {
                for m in [1, 2, 3, 4, 5, 9, 12] {
                    let x = tensor(&[m, k], 1, 1.0, dtype);
                    let w = tensor(&[n, k], 2, 1.0, dtype);
                    if m > EXACT_ROWS && dtype == DType::BF16 {
                        continue;
                    }
                    let want = reference(&to_f64(&x), &to_f64(&w), k);
                    let have = dense_matmul(&x, &w).unwrap();
                    assert_eq!((have.dims(), have.dtype()), ([m, n].as_slice(), dtype));
                    let step = step.max(k as f64 * 6e-8);
                    let what = format!("{path}, {dtype:?}, {m} x {n} x {k}");
                    assert_close(&what, &have, &want, step, (k as f64).sqrt());
                }
            }
        }
    });
}

#[test]
fn a_row_does_not_depend_on_the_others() {
    on_every_path(|path| {
        for (dtype, _) in DTYPES {
            for (n, k) in SHAPES {
                let x = tensor(&[EXACT_ROWS, k], 3, 1.0, dtype);
                let w = tensor(&[n, k], 4, 1.0, dtype);
                let alone = |row| to_f64(&dense_matmul(&x.narrow(0, row, 1).unwrap(), &w).unwrap());
                let alone: Vec<Vec<f64>> = (0..EXACT_ROWS).map(alone).collect();
                for first in 0..EXACT_ROWS {
                    for m in 1..=EXACT_ROWS - first {
                        let rows = x.narrow(0, first, m).unwrap();
                        let together = to_f64(&dense_matmul(&rows, &w).unwrap());
                        for (r, together) in together.chunks_exact(n).enumerate() {
                            let what = format!("{path}, {dtype:?}, rows {first}+{r} of {m}");
                            assert_eq!(together, alone[first + r], "{what}, {n} x {k}");
                        }
                    }
                }
            }
        }
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    let x = tensor(&[2, 8], 1, 1.0, DType::F32);
    let narrow = tensor(&[4, 7], 2, 1.0, DType::F32);
    let other = tensor(&[4, 8], 2, 1.0, DType::F16);
    assert!(dense_matmul(&x, &narrow).is_err());
    assert!(dense_matmul(&x, &other).is_err());
    let none = Tensor::zeros((0, 8), DType::F32, x.device()).unwrap();
    assert_eq!(
        dense_matmul(&none, &tensor(&[4, 8], 2, 1.0, DType::F32))
            .unwrap()
            .dims(),
        [0, 4]
    );
}

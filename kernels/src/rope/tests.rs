use super::*;
use crate::testing::{DTYPES, assert_close, on_every_path, tensor, to_f64};

#[test]
fn matches_the_reference_on_every_path_and_dtype() {
    // [tokens, heads, dim, rotated]: whole and partial rotary, odd sizes, more pairs than a chunk, several tasks.
    for [t, h, d, r] in [
        [1, 1, 2, 2],
        [3, 4, 64, 64],
        [5, 2, 72, 24],
        [2, 3, 80, 6],
        [1, 2, 512, 512],
        [90, 9, 64, 32],
    ] {
        for (dtype, step) in DTYPES {
            let x = tensor(&[t, h, d], 1, 2.0, dtype);
            let (cos, sin) = (
                tensor(&[t, r / 2], 2, 1.0, DType::F32),
                tensor(&[t, r / 2], 3, 1.0, DType::F32),
            );
            let want = reference(&to_f64(&x), &to_f64(&cos), &to_f64(&sin), h, d, r / 2);
            on_every_path(|path| {
                let what = format!("{:?} {dtype:?} {path}", [t, h, d, r]);
                let out = rope(&x, &cos, &sin).unwrap();
                assert_eq!((out.dtype(), out.dims()), (dtype, &[t, h, d][..]));
                assert_close(&what, &out, &want, step, 1.0);

                // A view into a fused projection: heads from the middle of each token's row.
                let around = tensor(&[t, 2, d], 7, 1.0, dtype);
                let fused = Tensor::cat(&[&around, &x, &around], 1).unwrap();
                let view = rope(&fused.narrow(1, 2, h).unwrap(), &cos, &sin).unwrap();
                assert_eq!(to_f64(&view), to_f64(&out), "{what}");
            });
            assert_close("stock", &stock(&x, &cos, &sin).unwrap(), &want, step, 1.0);
        }
    }
}

#[test]
fn misfits_are_errors() {
    let x = tensor(&[2, 3, 8], 1, 1.0, DType::F32);
    let angles = |t: usize, half: usize| tensor(&[t, half], 1, 1.0, DType::F32);
    assert!(rope(&x, &angles(2, 4), &angles(2, 4)).is_ok());
    assert!(rope(&x, &angles(2, 5), &angles(2, 5)).is_err());
    assert!(rope(&x, &angles(1, 4), &angles(1, 4)).is_err());
    assert!(rope(&x, &angles(2, 4), &angles(2, 3)).is_err());
    assert_eq!(
        rope(&x.narrow(0, 0, 0).unwrap(), &angles(0, 4), &angles(0, 4))
            .unwrap()
            .dims(),
        &[0, 3, 8]
    );
}

use super::*;
use crate::testing::{DTYPES, assert_close, on_every_path, tensor, to_f64};

#[test]
fn matches_the_reference_on_every_path_and_dtype() {
    for taps in [1, 2, 4, 5] {
        for (tokens, channels) in [(1, 1), (2, 37), (3, 128), (4, 300), (33, 16), (100, 130)] {
            for (dtype, step) in DTYPES {
                let x = tensor(&[tokens, channels], 1, 3.0, dtype);
                let state = tensor(&[taps - 1, channels], 2, 3.0, dtype);
                for weight_dtype in [dtype, DType::F32] {
                    let weight = tensor(&[channels, taps], 3, 1.0, weight_dtype);
                    for state in [Some(&state), None] {
                        let zeros = vec![0.0; (taps - 1) * channels];
                        let before = state.map_or(zeros, to_f64);
                        let (x_values, weights) = (to_f64(&x), to_f64(&weight));
                        let want = reference(&x_values, &weights, &before, channels);
                        let padded = [before, x_values].concat();
                        let check = |what: &str, (y, new): (Tensor, Tensor)| {
                            let what = format!("{what} {taps} {tokens} {channels} {dtype:?}");
                            assert_eq!((y.dtype(), y.dims()), (dtype, &[tokens, channels][..]));
                            assert_eq!(
                                (new.dtype(), new.dims()),
                                (dtype, &[taps - 1, channels][..])
                            );
                            // f32 sums of a few products that cancel; half precision sees only the last rounding.
                            assert_close(&what, &y, &want, step, 0.3);
                            assert_eq!(to_f64(&new), padded[tokens * channels..], "{what}");
                        };
                        on_every_path(|path| {
                            let out = causal_conv1d_silu(&x, &weight, state).unwrap();
                            check(&path.to_string(), out);
                        });
                        let wide = weight.to_dtype(DType::F32).unwrap();
                        check(
                            "stock",
                            stock::causal_conv1d_silu(&x, &wide, state).unwrap(),
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn any_split_gives_the_same_rows_bit_for_bit() {
    let (x, weight) = (
        tensor(&[70, 40], 1, 2.0, DType::F16),
        tensor(&[40, 4], 2, 1.0, DType::F32),
    );
    on_every_path(|path| {
        let (all, end) = causal_conv1d_silu(&x, &weight, None).unwrap();
        for cut in [1, 2, 3, 4, 33, 69] {
            let (a, b) = (
                x.narrow(0, 0, cut).unwrap(),
                x.narrow(0, cut, 70 - cut).unwrap(),
            );
            let (first, state) = causal_conv1d_silu(&a, &weight, None).unwrap();
            let kept = to_f64(&state);
            let (second, last) = causal_conv1d_silu(&b, &weight, Some(&state)).unwrap();
            let both = Tensor::cat(&[first, second], 0).unwrap();
            assert_eq!(to_f64(&both), to_f64(&all), "{path}, cut at {cut}");
            assert_eq!(to_f64(&last), to_f64(&end), "{path}, cut at {cut}");
            assert_eq!(to_f64(&state), kept, "{path}: the old state was written");
        }
    });
}

#[test]
fn columns_of_a_wider_tensor_need_no_copy_of_their_own() {
    let wide = tensor(&[9, 50], 1, 2.0, DType::BF16);
    let weight = tensor(&[20, 4], 2, 1.0, DType::F32);
    let view = wide.narrow(1, 13, 20).unwrap();
    let (from_view, _) = causal_conv1d_silu(&view, &weight, None).unwrap();
    let (dense, _) = causal_conv1d_silu(&view.contiguous().unwrap(), &weight, None).unwrap();
    assert_eq!(to_f64(&from_view), to_f64(&dense));
    let turned = tensor(&[20, 9], 1, 2.0, DType::BF16).t().unwrap();
    let (from_view, _) = causal_conv1d_silu(&turned, &weight, None).unwrap();
    let (dense, _) = causal_conv1d_silu(&turned.contiguous().unwrap(), &weight, None).unwrap();
    assert_eq!(to_f64(&from_view), to_f64(&dense));
}

#[test]
fn misfits_are_errors() {
    let (x, weight) = (
        tensor(&[2, 6], 1, 1.0, DType::F32),
        tensor(&[6, 4], 1, 1.0, DType::F32),
    );
    let state = tensor(&[3, 6], 1, 1.0, DType::F32);
    let half = |t: &Tensor| t.to_dtype(DType::F16).unwrap();
    assert!(causal_conv1d_silu(&x, &weight.narrow(0, 0, 5).unwrap(), None).is_err());
    assert!(causal_conv1d_silu(&x, &weight.narrow(1, 0, 0).unwrap(), None).is_err());
    assert!(causal_conv1d_silu(&x, &half(&weight), None).is_err());
    assert!(causal_conv1d_silu(&x, &weight, Some(&half(&state))).is_err());
    assert!(causal_conv1d_silu(&x, &weight, Some(&state.narrow(0, 0, 2).unwrap())).is_err());
    let ids = x.to_dtype(DType::U32).unwrap();
    assert!(causal_conv1d_silu(&ids, &weight, None).is_err());
    let none = x.narrow(0, 0, 0).unwrap();
    let (y, kept) = causal_conv1d_silu(&none, &weight, Some(&state)).unwrap();
    assert_eq!((y.dims(), to_f64(&kept)), (&[0, 6][..], to_f64(&state)));
}

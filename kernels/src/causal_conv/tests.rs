use super::*;
use crate::testing::{assert_close, tensor, to_f64};

#[test]
fn smoke() {
    for t in [1, 2, 9] {
        let x = tensor(&[t, 7], 1, 2.0, DType::F32);
        let w = tensor(&[7, 4], 2, 1.0, DType::F32);
        let s = tensor(&[3, 7], 3, 2.0, DType::F32);
        let want = reference(&to_f64(&x), &to_f64(&w), &to_f64(&s), 7);
        let all = Tensor::cat(&[&s, &x], 0).unwrap();
        for (y, n) in [
            causal_conv1d_silu(&x, &w, Some(&s)).unwrap(),
            stock::causal_conv1d_silu(&x, &w, Some(&s)).unwrap(),
        ] {
            assert_close("y", &y, &want, 1e-5, 0.1);
            assert_eq!(to_f64(&n), to_f64(&all.narrow(0, t, 3).unwrap()));
        }
    }
}

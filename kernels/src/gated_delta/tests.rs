use super::*;
use crate::testing::{tensor, to_f64};

#[test]
fn smoke() {
    let (t, hk, hv, dk, dv) = (65, 2, 4, 24, 16);
    let q = tensor(&[t, hk, dk], 1, 1.0, DType::F32);
    let k = tensor(&[t, hk, dk], 2, 1.0, DType::F32);
    let v = tensor(&[t, hv, dv], 3, 1.0, DType::F32);
    let g = (tensor(&[t, hv], 4, 0.5, DType::F32) - 0.5).unwrap();
    let beta = (tensor(&[t, hv], 5, 0.5, DType::F32) + 0.5).unwrap();
    let s = tensor(&[hv, dk, dv], 6, 0.5, DType::F32);
    let mut want_s = to_f64(&s);
    let want = reference(
        &to_f64(&q),
        &to_f64(&k),
        &to_f64(&v),
        &to_f64(&g),
        &to_f64(&beta),
        &mut want_s,
        [hk, hv, dk, dv],
    );
    for (o, n) in [
        gated_delta(&q, &k, &v, &g, &beta, Some(&s)).unwrap(),
        stock::gated_delta(&q, &k, &v, &g, &beta, Some(&s)).unwrap(),
    ] {
        crate::testing::assert_close("o", &o, &want, 1e-5, 0.5);
        crate::testing::assert_close("s", &n, &want_s, 1e-5, 0.5);
    }
}

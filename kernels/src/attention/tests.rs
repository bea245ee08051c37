use candle_core::{DType, Device};

use super::*;
use crate::testing::{DTYPES, assert_close, on_every_path, tensor, to_f64};

struct Case {
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    dim: usize,
    window: Option<usize>,
    q_positions: Vec<u32>,
    k_positions: Vec<u32>,
}

impl Case {
    /// The last `queries` of `keys` dense positions.
    fn dense(
        queries: usize,
        keys: usize,
        [heads, kv_heads, dim]: [usize; 3],
        window: Option<usize>,
    ) -> Self {
        let k_positions: Vec<u32> = (0..keys as u32).collect();
        let q_positions = k_positions[keys - queries..].to_vec();
        Self {
            queries,
            keys,
            heads,
            kv_heads,
            dim,
            window,
            q_positions,
            k_positions,
        }
    }

    fn inputs(&self, dtype: DType) -> [Tensor; 3] {
        // Keys and values are the first rows of a larger cache.
        let cache = |seed| {
            let all = tensor(&[self.kv_heads, self.keys + 5, self.dim], seed, 1.0, dtype);
            all.narrow(1, 0, self.keys).unwrap()
        };
        [
            tensor(&[self.queries, self.heads, self.dim], 1, 3.0, dtype),
            cache(2),
            cache(3),
        ]
    }

    fn scale(&self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    fn run(&self, [q, k, v]: &[Tensor; 3]) -> Tensor {
        attention(
            q,
            k,
            v,
            &self.q_positions,
            &self.k_positions,
            self.scale(),
            self.window,
        )
        .unwrap()
    }

    fn check(&self, what: &str) {
        for (dtype, step) in DTYPES {
            let inputs = self.inputs(dtype);
            let [q, k, v] = &inputs;
            let want = reference(
                &to_f64(q),
                &to_f64(k),
                &to_f64(v),
                &self.q_positions,
                &self.k_positions,
                (self.heads, self.kv_heads, self.dim),
                f64::from(self.scale()),
                self.window,
            );
            on_every_path(|path| {
                let out = self.run(&inputs);
                assert_eq!(
                    (out.dtype(), out.dims()),
                    (dtype, &[self.queries, self.heads * self.dim][..])
                );
                assert_close(&format!("{what} {dtype:?} {path}"), &out, &want, step, 0.3);
            });
            let stock = stock::attention(
                q,
                k,
                v,
                &self.q_positions,
                &self.k_positions,
                self.scale(),
                self.window,
            )
            .unwrap();
            assert_eq!(
                (stock.dtype(), stock.dims()),
                (dtype, &[self.queries, self.heads * self.dim][..])
            );
            // Stock operations round scores and weights to the dtype, too, and on some processors even sum in f16.
            assert_close(
                &format!("{what} {dtype:?} stock"),
                &stock,
                &want,
                20.0 * step,
                0.3,
            );
        }
    }
}

#[test]
fn dense_attention_matches_the_reference() {
    for dims in [
        [1, 1, 16],
        [9, 3, 64],
        [4, 2, 24],
        [2, 1, 72],
        [4, 4, 80],
        [2, 1, 256],
        [3, 1, 7],
    ] {
        for (queries, keys) in [
            (1, 1),
            (1, 77),
            (3, 40),
            (8, 130),
            (9, 9),
            (33, 33),
            (40, 150),
        ] {
            Case::dense(queries, keys, dims, None)
                .check(&format!("{dims:?}, {queries} over {keys}"));
        }
    }
}

#[test]
fn many_keys_match_the_reference() {
    for queries in [1, 4, 9, 50] {
        Case::dense(queries, 1300, [6, 2, 64], None).check(&format!("{queries} over 1300"));
    }
}

#[test]
fn a_window_hides_old_keys() {
    for window in [1, 2, 64, 100, 700] {
        for queries in [1, 5, 40] {
            let case = Case::dense(queries, 620, [4, 2, 32], Some(window));
            case.check(&format!("window {window}, {queries} queries"));
        }
    }
}

#[test]
fn positions_and_not_indices_decide() {
    for queries in [3, 20] {
        // A sparse prefill: keys kept here and there, queries beyond and between them, in no order.
        let k_positions: Vec<u32> = (0..300).map(|i| i * 7 + i % 3).collect();
        let q_positions: Vec<u32> = (0..queries).map(|i| (i * 1571 + 90) % 2500).collect();
        for window in [None, Some(50)] {
            let case = Case {
                queries: queries as usize,
                keys: k_positions.len(),
                heads: 4,
                kv_heads: 2,
                dim: 16,
                window,
                q_positions: q_positions.clone(),
                k_positions: k_positions.clone(),
            };
            case.check(&format!("sparse, {queries} queries, window {window:?}"));
        }
    }
}

#[test]
fn a_query_that_sees_nothing_gets_zeros() {
    for queries in [2, 12] {
        let mut case = Case::dense(queries, 20, [2, 1, 16], None);
        case.k_positions = (100..120).collect();
        case.q_positions = vec![110; queries];
        case.q_positions[1] = 99;
        case.check("one blind query");
        let out = case.run(&case.inputs(DType::F32)).to_vec2::<f32>().unwrap();
        assert!(out[1].iter().all(|&v| v == 0.0) && out[0].iter().any(|&v| v != 0.0));
    }
    let none = tensor(&[1, 0, 16], 1, 1.0, DType::F32);
    let q = tensor(&[1, 2, 16], 1, 1.0, DType::F32);
    let out = attention(&q, &none, &none, &[3], &[], 1.0, None).unwrap();
    assert_eq!(out.to_vec2::<f32>().unwrap(), vec![vec![0.0; 32]]);
}

#[test]
fn a_row_of_few_is_the_same_bit_for_bit_alone() {
    // As verify and plain decoding meet it: alone, a query sees a cache without the later drafts, and a sliding cache may
    // begin elsewhere.
    for dtype in [DType::F32, DType::BF16] {
        for window in [None, Some(300)] {
            for queries in [2, 4, 8, 9] {
                let case = Case::dense(queries, 1100, [6, 2, 40], window);
                let inputs = case.inputs(dtype);
                let [q, k, v] = &inputs;
                on_every_path(|path| {
                    let all = case.run(&inputs);
                    for row in 0..queries {
                        let end = case.keys - queries + row + 1;
                        let start = window.map_or(0, |w| end - w);
                        let alone = attention(
                            &q.narrow(0, row, 1).unwrap(),
                            &k.narrow(1, start, end - start).unwrap(),
                            &v.narrow(1, start, end - start).unwrap(),
                            &case.q_positions[row..=row],
                            &case.k_positions[start..end],
                            case.scale(),
                            window,
                        )
                        .unwrap();
                        let own = all.narrow(0, row, 1).unwrap();
                        assert_eq!(
                            to_f64(&alone),
                            to_f64(&own),
                            "{path} {dtype:?} {window:?} {queries}, row {row}"
                        );
                    }
                });
            }
        }
    }
}

#[test]
fn huge_scores_do_not_overflow() {
    for queries in [2, 16] {
        let case = Case::dense(queries, 64, [1, 1, 16], None);
        let [q, k, v] = case.inputs(DType::F32);
        let q = (q * 1e4).unwrap();
        let inputs = [q, k, v];
        on_every_path(|path| {
            let out = to_f64(&case.run(&inputs));
            assert!(
                out.iter().all(|v| v.is_finite() && v.abs() <= 1.0 + 1e-6),
                "{path}"
            );
        });
    }
}

#[test]
fn a_nan_stays_visible() {
    for queries in [2, 16] {
        let case = Case::dense(queries, 64, [2, 1, 16], None);
        let [q, k, v] = case.inputs(DType::F32);
        let mut broken = q.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        broken[3] = f32::NAN;
        let inputs = [
            Tensor::from_vec(broken, q.shape(), &Device::Cpu).unwrap(),
            k,
            v,
        ];
        on_every_path(|path| {
            let out = to_f64(&case.run(&inputs));
            assert!(
                out[..16].iter().all(|v| v.is_nan()),
                "{path}: {:?}",
                &out[..16]
            );
            assert!(out[16..].iter().all(|v| v.is_finite()), "{path}");
        });
    }
}

#[test]
fn strided_caches_are_read_as_their_shape_says() {
    // [Tk, Hkv, D], seen as [Hkv, Tk, D].
    let q = tensor(&[3, 4, 24], 1, 1.0, DType::F32);
    let k = tensor(&[30, 2, 24], 2, 1.0, DType::F32)
        .transpose(0, 1)
        .unwrap();
    let v = tensor(&[24, 2, 30], 3, 1.0, DType::F32)
        .permute((1, 2, 0))
        .unwrap();
    let (qp, kp): (Vec<u32>, Vec<u32>) = ((27..30).collect(), (0..30).collect());
    let strided = attention(&q, &k, &v, &qp, &kp, 0.2, None).unwrap();
    let (k, v) = (k.contiguous().unwrap(), v.contiguous().unwrap());
    let dense = attention(&q, &k, &v, &qp, &kp, 0.2, None).unwrap();
    assert_eq!(to_f64(&strided), to_f64(&dense));
}

#[test]
fn misfits_are_errors() {
    let t = |shape: &[usize]| tensor(shape, 1, 1.0, DType::F32);
    let (q, k) = (t(&[2, 4, 16]), t(&[2, 3, 16]));
    let run = |q: &Tensor, k: &Tensor, v: &Tensor, qp: &[u32], kp: &[u32]| {
        attention(q, k, v, qp, kp, 1.0, None)
    };
    assert!(run(&q, &k, &k, &[1, 2], &[0, 1, 2]).is_ok());
    assert!(run(&q, &k, &k, &[1], &[0, 1, 2]).is_err());
    assert!(run(&q, &k, &k, &[1, 2], &[0, 1]).is_err());
    assert!(run(&q, &k, &k, &[1, 2], &[0, 2, 1]).is_err());
    assert!(run(&q, &k, &t(&[2, 4, 16]), &[1, 2], &[0, 1, 2]).is_err());
    assert!(run(&q, &t(&[3, 3, 16]), &t(&[3, 3, 16]), &[1, 2], &[0, 1, 2]).is_err());
    assert!(run(&q, &t(&[2, 3, 8]), &t(&[2, 3, 8]), &[1, 2], &[0, 1, 2]).is_err());
    let half = k.to_dtype(DType::F16).unwrap();
    assert!(run(&q, &half, &half, &[1, 2], &[0, 1, 2]).is_err());
}

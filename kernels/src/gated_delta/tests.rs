use candle_core::Device;

use super::cpu::{Call, Form};
use super::*;
use crate::CpuPath;
use crate::testing::{DTYPES, assert_close, on_every_path, tensor, to_f64};

/// Inputs of one call.
struct Case {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor,
}

/// `[key heads, heads, key dim, dim]`.
type Sizes = [usize; 4];

impl Case {
    /// Decays between `e^-2` and 1, some of them exactly 1 and some nearly 0.
    fn new(tokens: usize, [key_heads, heads, key_dim, dim]: Sizes, dtype: DType) -> Self {
        let decays = tensor(&[tokens, heads], 4, 1.0, DType::F32)
            .to_vec2::<f32>()
            .unwrap();
        let decays = decays
            .concat()
            .into_iter()
            .enumerate()
            .map(|(i, x)| match i % 11 {
                3 => 0.0,
                7 => -95.0,
                _ => x - 1.0,
            });
        Self {
            q: tensor(&[tokens, key_heads, key_dim], 1, 1.0, dtype),
            k: tensor(&[tokens, key_heads, key_dim], 2, 1.0, dtype),
            v: tensor(&[tokens, heads, dim], 3, 1.0, dtype),
            log_decay: Tensor::from_iter(decays, &Device::Cpu)
                .and_then(|g| g.reshape((tokens, heads)))
                .unwrap(),
            beta: ((tensor(&[tokens, heads], 5, 0.5, DType::F32) + 0.5).unwrap()),
            state: tensor(&[heads, key_dim, dim], 6, 1.0, DType::F32),
        }
    }

    fn sizes(&self) -> Sizes {
        let [_, key_heads, key_dim] = self.k.dims() else {
            panic!()
        };
        let [_, heads, dim] = self.v.dims() else {
            panic!()
        };
        [*key_heads, *heads, *key_dim, *dim]
    }

    fn narrow(&self, from: usize, len: usize) -> Self {
        let cut = |t: &Tensor| t.narrow(0, from, len).unwrap();
        Self {
            q: cut(&self.q),
            k: cut(&self.k),
            v: cut(&self.v),
            log_decay: cut(&self.log_decay),
            beta: cut(&self.beta),
            state: self.state.clone(),
        }
    }

    fn reference(&self, state: Option<&Tensor>) -> (Vec<f64>, Vec<f64>) {
        let [_, heads, key_dim, dim] = self.sizes();
        let mut state = state.map_or(vec![0.0; heads * key_dim * dim], to_f64);
        let [q, k, v, g, beta] =
            [&self.q, &self.k, &self.v, &self.log_decay, &self.beta].map(to_f64);
        let out = reference(&q, &k, &v, &g, &beta, &mut state, self.sizes());
        (out, state)
    }

    fn run(&self, state: Option<&Tensor>) -> (Tensor, Tensor) {
        gated_delta(
            &self.q,
            &self.k,
            &self.v,
            &self.log_decay,
            &self.beta,
            state,
        )
        .unwrap()
    }

    fn stock(&self, state: Option<&Tensor>) -> (Tensor, Tensor) {
        stock::gated_delta(
            &self.q,
            &self.k,
            &self.v,
            &self.log_decay,
            &self.beta,
            state,
        )
        .unwrap()
    }

    /// One form of the CPU kernel, whatever the number of tokens.
    fn form(&self, form: Form, state: Option<&Tensor>) -> (Tensor, Tensor) {
        let [key_heads, heads, key_dim, dim] = self.sizes();
        let tokens = self.v.dim(0).unwrap();
        let strides = [key_heads * key_dim, key_dim];
        let shape = GatedDeltaShape {
            tokens,
            key_heads,
            heads,
            key_dim,
            dim,
            q_strides: strides,
            k_strides: strides,
            v_strides: [heads * dim, dim],
        };
        let floats = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (log_decay, beta, state) = (
            floats(&self.log_decay),
            floats(&self.beta),
            state.map(floats),
        );
        let run = || {
            for_element!(self.v.dtype(), T => {
                let values = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<T>().unwrap();
                let mut out = vec![T::default(); tokens * heads * dim];
                let call = Call {
                    q: &values(&self.q),
                    k: &values(&self.k),
                    v: &values(&self.v),
                    log_decay: &log_decay,
                    beta: &beta,
                    state: state.as_deref(),
                    shape: &shape,
                    path: CpuPath::current(),
                };
                let new = call.run(form, &mut out);
                Ok((
                    from_values(out, (tokens, heads, dim))?,
                    from_values(new, (heads, key_dim, dim))?,
                ))
            })
        };
        run().unwrap()
    }
}

fn check(what: &str, (out, new): &(Tensor, Tensor), want: &(Vec<f64>, Vec<f64>), step: f64) {
    // Sums of `key_dim` products: what is small came from cancellation of terms of the size of the largest.
    let top = |x: &[f64]| x.iter().fold(0f64, |top, x| top.max(x.abs()));
    assert_close(what, out, &want.0, step, top(&want.0) / 4.0);
    assert_close(what, new, &want.1, DTYPES[0].1, top(&want.1) / 4.0);
}

const SIZES: [Sizes; 6] = [
    [1, 1, 16, 16],
    [2, 4, 24, 40],
    [1, 3, 64, 24],
    [2, 2, 128, 128],
    [1, 2, 33, 65],
    [2, 2, 5, 3],
];

#[test]
fn every_form_matches_the_reference_on_every_path_and_dtype() {
    for sizes in SIZES {
        for tokens in [1, 2, 3, 4, 5, 6, 7, 8, 33, 64, 65, 200] {
            for (dtype, step) in DTYPES {
                let case = Case::new(tokens, sizes, dtype);
                for state in [Some(&case.state), None] {
                    let want = case.reference(state);
                    let what =
                        |form: &str| format!("{form}, {sizes:?}, {tokens} tokens, {dtype:?}");
                    on_every_path(|path| {
                        for form in [Form::Step, Form::Chunk] {
                            let out = case.form(form, state);
                            check(&what(&format!("{path} {form:?}")), &out, &want, step);
                        }
                        let out = case.run(state);
                        assert_eq!((out.0.dtype(), out.0.dims()), (dtype, case.v.dims()));
                        assert_eq!(
                            (out.1.dtype(), out.1.dims()),
                            (DType::F32, case.state.dims())
                        );
                        check(&what(&path.to_string()), &out, &want, step);
                    });
                    let out = case.stock(state);
                    assert_eq!((out.0.dtype(), out.0.dims()), (dtype, case.v.dims()));
                    assert_eq!(
                        (out.1.dtype(), out.1.dims()),
                        (DType::F32, case.state.dims())
                    );
                    check(&what("stock"), &out, &want, step);
                }
            }
        }
    }
}

#[test]
fn verify_widths_give_each_row_what_it_gets_alone_bit_for_bit() {
    for sizes in SIZES {
        let case = Case::new(STEP_TOKENS, sizes, DType::BF16);
        on_every_path(|path| {
            let mut state = Some(case.state.clone());
            let mut rows = Vec::new();
            for width in 1..=STEP_TOKENS {
                let (row, new) = case.narrow(width - 1, 1).run(state.as_ref());
                rows.push(row);
                let (out, end) = case.narrow(0, width).run(Some(&case.state));
                let alone = Tensor::cat(&rows, 0).unwrap();
                assert_eq!(
                    to_f64(&out),
                    to_f64(&alone),
                    "{path} {sizes:?}, width {width}"
                );
                assert_eq!(
                    to_f64(&end),
                    to_f64(&new),
                    "{path} {sizes:?}, width {width}"
                );
                state = Some(new);
            }
        });
    }
}

#[test]
fn any_split_gives_the_same_result() {
    let case = Case::new(150, [1, 2, 64, 48], DType::F32);
    let whole = case.reference(Some(&case.state));
    type Run = dyn Fn(&Case, &Tensor) -> (Tensor, Tensor);
    let runs: [&Run; 4] = [
        &|case, state| case.run(Some(state)),
        &|case, state| case.stock(Some(state)),
        &|case, state| case.form(Form::Step, Some(state)),
        &|case, state| case.form(Form::Chunk, Some(state)),
    ];
    on_every_path(|path| {
        for (i, run) in runs.iter().enumerate() {
            for cut in [1, 8, 9, 32, 63, 64, 65, 149] {
                let (first, state) = run(&case.narrow(0, cut), &case.state);
                let (second, end) = run(&case.narrow(cut, 150 - cut), &state);
                let both = Tensor::cat(&[first, second], 0).unwrap();
                check(
                    &format!("{path}, way {i}, cut at {cut}"),
                    &(both, end),
                    &whole,
                    1e-5,
                );
            }
        }
    });
}

#[test]
fn the_old_state_is_never_written() {
    let before = Case::new(70, [1, 2, 16, 40], DType::F32);
    let kept = to_f64(&before.state);
    on_every_path(|path| {
        for tokens in [0, 1, 2, 8, 9, 70] {
            let case = before.narrow(0, tokens);
            for (_, new) in [case.run(Some(&case.state)), case.stock(Some(&case.state))] {
                assert_eq!(to_f64(&case.state), kept, "{path}, {tokens} tokens");
                assert_eq!(to_f64(&new) == kept, tokens == 0, "{path}, {tokens} tokens");
            }
        }
    });
}

/// Every way there is, on every path.
fn on_every_way(case: &Case, check: impl Fn(&str, (Tensor, Tensor))) {
    on_every_path(|path| {
        for form in [Form::Step, Form::Chunk] {
            check(
                &format!("{path} {form:?}"),
                case.form(form, Some(&case.state)),
            );
        }
    });
    check("stock", case.stock(Some(&case.state)));
}

#[test]
fn decays_from_none_to_total_stay_exact() {
    let sizes = [1, 2, 32, 32];
    // Always none; always total; small ones behind total ones; and ones whose product underflows within a chunk.
    let decays: [&dyn Fn(usize) -> f32; 5] = [
        &|_| 0.0,
        &|_| -1e4,
        &|i| if i % 7 == 0 { -1e4 } else { -1e-3 },
        &|_| -5.0,
        &|i| if i == 20 { f32::NEG_INFINITY } else { -0.1 },
    ];
    for (which, decay) in decays.iter().enumerate() {
        let mut case = Case::new(130, sizes, DType::F32);
        let values: Vec<f32> = (0..260).map(|i| decay(i / 2)).collect();
        case.log_decay = Tensor::from_vec(values, (130, 2), &Device::Cpu).unwrap();
        let want = case.reference(Some(&case.state));
        on_every_way(&case, |way, out| {
            check(&format!("{way}, decays {which}"), &out, &want, 1e-5);
        });
    }
}

#[test]
fn one_key_over_and_over_is_solved_exactly() {
    // The hardest system: with one key, no decay and beta 1 every entry of A is 1, and powers of A reach 1e18.
    let sizes = [1, 1, 16, 16];
    let mut case = Case::new(128, sizes, DType::F32);
    case.k = case.k.narrow(0, 0, 1).unwrap().repeat((128, 1, 1)).unwrap();
    case.log_decay = case.log_decay.zeros_like().unwrap();
    case.beta = case.beta.ones_like().unwrap();
    let want = case.reference(Some(&case.state));
    on_every_way(&case, |way, out| check(way, &out, &want, 2e-5));
}

#[test]
fn zero_keys_and_queries_are_no_division_by_zero() {
    let mut case = Case::new(70, [1, 1, 16, 16], DType::F32);
    (case.q, case.k) = (case.q.zeros_like().unwrap(), case.k.zeros_like().unwrap());
    let want = case.reference(Some(&case.state));
    assert!(want.0.iter().all(|o| *o == 0.0));
    on_every_way(&case, |way, (out, new)| {
        assert_eq!(to_f64(&out), want.0, "{way}");
        assert_close(way, &new, &want.1, 1e-5, 1e-6);
    });
}

#[test]
fn views_of_a_fused_projection_give_what_dense_tensors_give() {
    let [heads, dim] = [2, 24];
    let plain = Case::new(20, [heads, heads, dim, dim], DType::F16);
    let fused = Tensor::cat(&[&plain.q, &plain.k, &plain.v], 1).unwrap();
    let turned = |t: &Tensor| {
        t.permute((2, 0, 1))
            .unwrap()
            .contiguous()
            .unwrap()
            .permute((1, 2, 0))
            .unwrap()
    };
    let want = plain.run(Some(&plain.state));
    let part = |i: usize| fused.narrow(1, i * heads, heads).unwrap();
    for [q, k, v] in [
        [part(0), part(1), part(2)],
        [turned(&plain.q), turned(&plain.k), turned(&plain.v)],
    ] {
        let case = Case {
            q,
            k,
            v,
            ..plain.narrow(0, 20)
        };
        let out = case.run(Some(&plain.state));
        assert_eq!(to_f64(&out.0), to_f64(&want.0));
        assert_eq!(to_f64(&out.1), to_f64(&want.1));
    }
}

#[test]
fn misfits_are_errors() {
    let fails = |change: &dyn Fn(&mut Case)| {
        let mut case = Case::new(3, [2, 4, 8, 8], DType::F32);
        change(&mut case);
        let Case {
            q,
            k,
            v,
            log_decay,
            beta,
            state,
        } = &case;
        gated_delta(q, k, v, log_decay, beta, Some(state)).is_err()
    };
    assert!(!fails(&|_| ()));
    assert!(fails(&|c| c.q = c.q.narrow(0, 0, 2).unwrap()));
    assert!(fails(&|c| c.k = c.k.narrow(2, 0, 7).unwrap()));
    assert!(fails(&|c| c.v = c.v.narrow(1, 0, 3).unwrap()));
    assert!(fails(&|c| c.v = c.v.narrow(0, 0, 2).unwrap()));
    assert!(fails(&|c| c.v = c.v.to_dtype(DType::F16).unwrap()));
    assert!(fails(&|c| c.beta = c.beta.to_dtype(DType::F16).unwrap()));
    assert!(fails(&|c| c.beta = c.beta.narrow(0, 0, 2).unwrap()));
    assert!(fails(
        &|c| c.log_decay = c.log_decay.narrow(1, 0, 2).unwrap()
    ));
    assert!(fails(
        &|c| c.log_decay = c.log_decay.to_dtype(DType::BF16).unwrap()
    ));
    assert!(fails(&|c| c.state = c.state.narrow(0, 0, 2).unwrap()));
    assert!(fails(&|c| c.state = c.state.to_dtype(DType::BF16).unwrap()));
    assert!(fails(&|c| {
        for t in [&mut c.q, &mut c.k, &mut c.v] {
            *t = t.to_dtype(DType::F64).unwrap();
        }
    }));
}

#[test]
fn a_long_call_on_wide_heads_takes_the_chunk_form_and_a_narrow_one_the_step_form() {
    for (dim, form) in [(128, Form::Chunk), (64, Form::Step)] {
        let case = Case::new(256, [1, 1, dim, dim], DType::F32);
        let (out, want) = (case.run(None), case.form(form, None));
        assert_eq!(to_f64(&out.0), to_f64(&want.0));
        assert_eq!(to_f64(&out.1), to_f64(&want.1));
    }
}

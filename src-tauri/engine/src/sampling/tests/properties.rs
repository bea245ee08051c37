//! Thousands of random cases against the reference.

use proptest::{prelude::*, sample::select};

use super::*;

const SLACK: f64 = 1e-6;

fn logits() -> impl Strategy<Value = Vec<f32>> {
    let tied = (-16..16).prop_map(|n| n as f32 / 4.0);
    let any = -30.0..30.0_f32;
    let masked = prop_oneof![3 => -8.0..8.0_f32, 1 => Just(f32::NEG_INFINITY)];
    let wild = select(vec![
        f32::MIN,
        -1e30,
        -1e-30,
        -0.0,
        0.0,
        1e-30,
        5.0,
        1e30,
        f32::MAX,
    ]);
    prop_oneof![
        prop::collection::vec(tied.clone(), 1..6),
        prop::collection::vec(masked, 1..6),
        prop::collection::vec(wild, 1..40),
        prop::collection::vec(tied, 1..700),
        prop::collection::vec(any, 1..3000),
    ]
}

fn params() -> impl Strategy<Value = SamplingParams> {
    (
        select(vec![1e-6_f32, 0.01, 0.3, 0.7, 1.0, 1.5, 100.0, 1e30, 1e-45]),
        prop_oneof![Just(0), 1..8_usize, 1..4000_usize, Just(usize::MAX)],
        prop_oneof![
            Just(1.0_f32),
            select(vec![0.0, 1e-9, 0.5, 0.9, 0.95, 0.999_999_94]),
            0.0..1.0_f32
        ],
        prop_oneof![Just(0.0_f32), select(vec![1e-30, 0.05, 1.0]), 0.0..1.0_f32],
        any::<u64>(),
    )
        .prop_map(|(temperature, top_k, top_p, min_p, seed)| SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            seed: Some(seed),
            ..SamplingParams::default()
        })
}

/// Checks one distribution against the reference; returns whether the reference left no choice about what is kept.
fn check(params: &SamplingParams, row: &[f32], got: &FilteredDistribution) -> bool {
    let ordered = reference::ordered(row, params.temperature);
    // The slack moves every limit the same way: inwards for the fewest, outwards for the most.
    let fewest = reference::kept(&ordered, params, -SLACK).max(1);
    let most = reference::kept(&ordered, params, SLACK);
    let count = got.entries().len();
    assert!(
        (fewest..=most).contains(&count),
        "{count} kept, not {fewest} to {most}: {params:?}"
    );
    assert!(got.entries().is_sorted_by(|a, b| a.0 < b.0));
    let expected = reference::probabilities(&ordered, count);
    for &(token, p) in got.entries() {
        let right = expected[token as usize];
        assert!(
            right > 0.0,
            "token {token} is kept in place of a better one: {params:?}"
        );
        let error = (f64::from(p) - right).abs();
        assert!(
            error <= 3e-5 * right + 1e-37,
            "token {token}: {p}, not {right}: {params:?}"
        );
    }
    fewest == most
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6000))]

    #[test]
    fn the_filters_keep_what_the_definitions_keep(params in params(), row in logits()) {
        let mut sampler = sampler(&params, row.len(), &[]);
        match sampler.distribution(&mut row.clone()) {
            Err(error) => {
                prop_assert_eq!(error, SampleError::NoCandidate);
                prop_assert!(row.iter().all(|&logit| logit == f32::NEG_INFINITY));
            }
            Ok(distribution) => {
                check(&params, &row, &distribution);
                let sampled = sampler.sample(&mut row.clone()).unwrap();
                prop_assert!(distribution.probability(sampled.token) > 0.0);
            }
        }
    }

    #[test]
    fn penalties_and_biases_come_before_the_filters(
        row in prop::collection::vec((-40..40).prop_map(|n| n as f32 / 8.0), 8),
        prompt in prop::collection::vec(0..8_u32, 0..6),
        generated in prop::collection::vec(0..8_u32, 0..12),
        bias in prop::collection::vec((0..8_u32, -100.0..100.0_f32), 0..4),
        repetition_penalty in select(vec![0.5_f32, 1.0, 1.1, 2.0]),
        presence_penalty in select(vec![-2.0_f32, 0.0, 0.3]),
        frequency_penalty in select(vec![-0.7_f32, 0.0, 1.5]),
        filters in params(),
        greedy in any::<bool>(),
    ) {
        let params = SamplingParams {
            logit_bias: bias,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            temperature: if greedy { 0.0 } else { filters.temperature },
            ..filters
        };
        let mut sampler = sampler(&params, row.len(), &prompt);
        for &token in &generated {
            sampler.accept(token);
        }
        let edited = reference::edited(&params, &row, &prompt, &generated);
        let distribution = sampler.distribution(&mut row.clone()).unwrap();
        if greedy {
            let best = reference::ordered(&edited, 1.0)[0].0;
            prop_assert_eq!(&distribution, &FilteredDistribution::certain(best));
            prop_assert_eq!(sampler.sample(&mut row.clone()).unwrap().token, best);
        } else {
            check(&params, &edited, &distribution);
        }
    }
}

#[test]
fn a_large_vocabulary_keeps_what_the_definitions_keep() {
    let cases = [
        (1.0, 0, 0.95, 0.0),
        (0.7, 40, 0.9, 0.02),
        (0.7, 100_000, 1.0, 0.0),
        (1.0, 200_000, 0.8, 0.0),
        (100.0, 0, 0.99, 0.0),
        (2.0, 0, 1.0, 0.05),
        (1e-6, 0, 0.5, 0.5),
        (1.0, 0, 1e-9, 0.0),
        (1.0, 0, 1.0, 0.0),
    ];
    let mut decided = 0;
    for (salt, &(temperature, top_k, top_p, min_p)) in cases.iter().enumerate() {
        let params = SamplingParams {
            temperature,
            top_k,
            top_p,
            min_p,
            ..SamplingParams::default()
        };
        let row = row(LARGE_VOCAB, salt as u64);
        let got = sampler(&params, LARGE_VOCAB, &[])
            .distribution(&mut row.clone())
            .unwrap();
        decided += usize::from(check(&params, &row, &got));
    }
    assert!(
        decided >= 6,
        "the reference was undecided in {} cases",
        cases.len() - decided
    );
}

//! Repeatability, edge values, errors, log-probabilities, memory.

use super::*;

fn seeded(seed: u64) -> SamplingParams {
    SamplingParams {
        seed: Some(seed),
        ..SamplingParams::default()
    }
}

fn tokens(params: &SamplingParams, vocab: usize, count: u64) -> Vec<u32> {
    let mut sampler = sampler(params, vocab, &[1, 2, 3]);
    (0..count)
        .map(|step| sampler.sample(&mut row(vocab, step)).unwrap().token)
        .collect()
}

#[test]
fn a_seed_gives_these_tokens_on_every_platform() {
    let filtered = SamplingParams {
        temperature: 0.8,
        top_k: 50,
        top_p: 0.92,
        min_p: 0.01,
        repetition_penalty: 1.1,
        frequency_penalty: 0.3,
        ..seeded(42)
    };
    let nucleus = SamplingParams {
        temperature: 1.3,
        top_p: 0.9,
        ..seeded(42)
    };
    assert_eq!(
        tokens(&seeded(42), 49_152, 8),
        [15396, 19537, 22540, 23621, 42234, 3241, 24742, 14643]
    );
    assert_eq!(
        tokens(&filtered, 49_152, 8),
        [11221, 20299, 19191, 25075, 42234, 5201, 25565, 14827]
    );
    assert_eq!(
        tokens(&nucleus, 49_152, 8),
        [16002, 15339, 23441, 21242, 42039, 3241, 24679, 14643]
    );
}

#[test]
fn a_seed_repeats_and_another_seed_differs() {
    assert_eq!(tokens(&seeded(1), 500, 64), tokens(&seeded(1), 500, 64));
    assert_ne!(tokens(&seeded(1), 500, 64), tokens(&seeded(2), 500, 64));
}

#[test]
fn the_seed_that_the_system_gave_can_be_read_and_used_again() {
    let mut first = sampler(&SamplingParams::default(), 500, &[]);
    let mut again = sampler(&seeded(first.seed()), 500, &[]);
    for step in 0..64 {
        let (a, b) = (
            first.sample(&mut row(500, step)),
            again.sample(&mut row(500, step)),
        );
        assert_eq!(a, b);
    }
    assert_eq!(sampler(&seeded(u64::MAX), 5, &[]).seed(), u64::MAX);
}

#[test]
fn a_sample_is_a_draw_from_the_distribution() {
    let filters = [
        seeded(5),
        SamplingParams {
            top_k: 30,
            top_p: 0.8,
            min_p: 0.01,
            ..seeded(5)
        },
    ];
    for params in filters {
        let mut sampling = sampler(&params, 2000, &[]);
        let mut drawing = sampling.clone();
        for step in 0..500 {
            let distribution = drawing.distribution(&mut row(2000, step)).unwrap();
            let sampled = sampling.sample(&mut row(2000, step)).unwrap();
            assert_eq!(drawing.draw(&distribution), Some(sampled.token));
        }
    }
}

#[test]
fn greedy_takes_the_lowest_of_equal_tokens_and_uses_no_randomness() {
    let mut greedy = sampler(
        &SamplingParams {
            seed: Some(1),
            ..SamplingParams::greedy()
        },
        4,
        &[],
    );
    let choice = |sampler: &mut Sampler, row: [f32; 4]| sampler.sample(&mut row.clone()).unwrap();
    assert_eq!(choice(&mut greedy, [1.0, 3.0, 3.0, 2.0]).token, 1);
    assert_eq!(choice(&mut greedy, [-0.0, 0.0, -1.0, 0.0]).token, 0);
    assert_eq!(
        choice(&mut greedy, [f32::NEG_INFINITY, f32::MIN, f32::MIN, -1e38]).token,
        3
    );
    assert_eq!(greedy.uniform(), sampler(&seeded(1), 4, &[]).uniform());
}

#[test]
fn infinite_logits_rule_tokens_out_or_in() {
    let (low, high) = (f32::NEG_INFINITY, f32::INFINITY);
    let mut sampler = sampler(&seeded(3), 4, &[]);
    assert_eq!(
        sampler
            .distribution(&mut [low, 0.0, low, 0.0])
            .unwrap()
            .entries(),
        [(1, 0.5), (3, 0.5)]
    );
    assert_eq!(
        sampler
            .distribution(&mut [high, 0.0, high, 1e30])
            .unwrap()
            .entries(),
        [(0, 0.5), (2, 0.5)]
    );
    for _ in 0..200 {
        assert_eq!(sampler.sample(&mut [low, low, 7.0, low]).unwrap().token, 2);
    }
}

#[test]
fn bad_rows_are_errors_and_leave_the_sampler_as_it_was() {
    for params in [
        SamplingParams::greedy(),
        SamplingParams {
            top_k: 2,
            ..seeded(8)
        },
    ] {
        let params = SamplingParams {
            frequency_penalty: 1.0,
            seed: Some(8),
            ..params
        };
        let mut used = sampler(&params, 3, &[]);
        let error = used.sample(&mut [1.0, f32::NAN, f32::NAN]).unwrap_err();
        assert_eq!(error, SampleError::NotANumber { token: 1 });
        assert!(error.to_string().starts_with("the model produced NaN"));
        assert_eq!(
            used.sample(&mut [f32::NEG_INFINITY; 3]),
            Err(SampleError::NoCandidate)
        );
        let length = SampleError::WrongLength {
            expected: 3,
            found: 2,
        };
        assert_eq!(used.sample(&mut [1.0, 2.0]), Err(length.clone()));
        assert_eq!(used.distribution(&mut []), Err(length_of(0)));
        let mut fresh = sampler(&params, 3, &[]);
        for _ in 0..20 {
            let row = [1.0, 1.5, 1.2];
            assert_eq!(
                used.sample(&mut row.clone()),
                fresh.sample(&mut row.clone())
            );
        }
    }
}

fn length_of(found: usize) -> SampleError {
    SampleError::WrongLength { expected: 3, found }
}

#[test]
fn invalid_parameters_make_no_sampler() {
    let params = SamplingParams {
        min_p: 2.0,
        ..SamplingParams::default()
    };
    assert_eq!(Sampler::new(params, 3, &[]).unwrap_err().name, "min_p");
    assert_eq!(
        Sampler::new(SamplingParams::default(), 0, &[])
            .unwrap_err()
            .name,
        "vocab"
    );
}

#[test]
fn sampled_and_accepted_tokens_both_enter_the_history() {
    let params = SamplingParams {
        presence_penalty: 1.0,
        ..SamplingParams::greedy()
    };
    let mut sampler = sampler(&params, 3, &[2]);
    let next = |sampler: &mut Sampler| sampler.sample(&mut [1.0, 0.5, 0.2]).unwrap().token;
    assert_eq!(next(&mut sampler), 0);
    assert_eq!(next(&mut sampler), 1);
    assert_eq!(
        next(&mut sampler),
        2,
        "the prompt's token 2 carries no presence penalty"
    );
    sampler.accept(1);
    assert_eq!(next(&mut sampler), 0);
}

#[test]
fn logprobs_are_those_of_the_model_before_bias_penalty_temperature_and_filters() {
    let row = [2.0_f32, 1.0, 0.0, f32::NEG_INFINITY, 1.0];
    let params = SamplingParams {
        logit_bias: vec![(2, 100.0), (0, -5.0)],
        repetition_penalty: 1.5,
        temperature: 0.3,
        top_k: 1,
        logprobs: Some(4),
        ..SamplingParams::default()
    };
    let mut sampler = sampler(&params, row.len(), &[0, 2]);
    let mut left = row;
    let Sampled { token, logprobs } = sampler.sample(&mut left).unwrap();
    let logprobs = logprobs.unwrap();
    let log_sum = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
    let near = |got: f32, logit: f64| (f64::from(got) - (logit - log_sum)).abs() < 1e-6;
    assert_eq!(token, 2);
    assert!(near(logprobs.logprob, 0.0), "{logprobs:?}");
    let ids: Vec<u32> = logprobs.top.iter().map(|entry| entry.0).collect();
    assert_eq!(ids, [0, 1, 4, 2]);
    for &(token, logprob) in &logprobs.top {
        assert!(near(logprob, f64::from(row[token as usize])));
    }
    // A token that something else chose, at the same row.
    assert!(near(sampler.token_logprobs(&left, 0).unwrap().logprob, 2.0));
    assert_eq!(
        sampler.token_logprobs(&left, 3).unwrap().logprob,
        f32::NEG_INFINITY
    );
    assert_eq!(sampler.token_logprobs(&left, 5), None);
}

#[test]
fn logprobs_come_as_asked() {
    let top = |wanted| {
        let params = SamplingParams {
            logprobs: wanted,
            ..SamplingParams::greedy()
        };
        let sampled = sampler(&params, 300, &[]).sample(&mut row(300, 4)).unwrap();
        sampled.logprobs.map(|logprobs| logprobs.top.len())
    };
    assert_eq!(
        [top(None), top(Some(0)), top(Some(20))],
        [None, Some(0), Some(20)]
    );
    // Only two tokens are possible.
    let params = SamplingParams {
        logprobs: Some(5),
        ..SamplingParams::greedy()
    };
    let mut masked = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
    let logprobs = sampler(&params, 4, &[])
        .sample(&mut masked)
        .unwrap()
        .logprobs
        .unwrap();
    let half = 0.5_f32.ln();
    assert_eq!(logprobs.top, [(1, half), (3, half)]);
}

#[test]
fn speculative_rows_see_the_tokens_accepted_before_them() {
    let params = SamplingParams {
        presence_penalty: 2.0,
        ..SamplingParams::greedy()
    };
    let mut sampler = sampler(&params, 3, &[]);
    let row = [1.0, 0.5, 0.2];
    let mut distribution = FilteredDistribution::default();
    let mut chosen = Vec::new();
    for _ in 0..3 {
        sampler
            .distribution_into(&mut row.clone(), &mut distribution)
            .unwrap();
        let token = distribution.entries()[0].0;
        sampler.accept(token);
        chosen.push(token);
    }
    assert_eq!(chosen, [0, 1, 2]);
}

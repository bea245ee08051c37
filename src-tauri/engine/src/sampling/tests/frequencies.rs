//! Chi-square tests: tokens come as often as the reference says. Seeds are fixed, so a test passes always or never.

use super::*;

/// Pearson's statistic, and the value that it exceeds once in a million (Wilson and Hilferty's approximation). Tokens expected fewer
/// than five times are counted together.
fn chi_square(counts: &[u32], probabilities: &[f64]) -> (f64, f64) {
    let draws: f64 = counts.iter().map(|&n| f64::from(n)).sum();
    let (mut statistic, mut bins) = (0.0, 0.0);
    let (mut rare_seen, mut rare_expected) = (0.0, 0.0);
    let mut add = |seen: f64, expected: f64| {
        statistic += (seen - expected).powi(2) / expected;
        bins += 1.0;
    };
    for (&count, &p) in counts.iter().zip(probabilities) {
        assert!(
            p > 0.0 || count == 0,
            "a token with probability 0 was drawn"
        );
        let expected = p * draws;
        if expected < 5.0 {
            rare_seen += f64::from(count);
            rare_expected += expected;
        } else {
            add(f64::from(count), expected);
        }
    }
    if rare_expected >= 1.0 {
        add(rare_seen, rare_expected);
    }
    let freedom: f64 = bins - 1.0;
    let spread = 2.0 / (9.0 * freedom);
    (
        statistic,
        freedom * (1.0 - spread + 4.753 * spread.sqrt()).powi(3),
    )
}

fn assert_fits(counts: &[u32], probabilities: &[f64], what: &str) {
    let (statistic, limit) = chi_square(counts, probabilities);
    assert!(
        statistic < limit,
        "{what}: {statistic:.1}, more than {limit:.1}"
    );
}

fn expected(params: &SamplingParams, row: &[f32]) -> Vec<f64> {
    let ordered = reference::ordered(row, params.temperature);
    reference::probabilities(&ordered, reference::kept(&ordered, params, 0.0))
}

fn with(temperature: f32, top_k: usize, top_p: f32, min_p: f32) -> SamplingParams {
    SamplingParams {
        temperature,
        top_k,
        top_p,
        min_p,
        seed: Some(20_240_607),
        ..SamplingParams::default()
    }
}

#[test]
fn every_combination_of_filters_gives_its_frequencies() {
    let row = row(60, 5);
    for temperature in [0.3, 1.0, 2.5] {
        for top_k in [0, 12] {
            for top_p in [1.0, 0.83] {
                for min_p in [0.0, 0.07] {
                    let params = with(temperature, top_k, top_p, min_p);
                    let mut sampler = sampler(&params, row.len(), &[]);
                    let mut counts = vec![0; row.len()];
                    for _ in 0..20_000 {
                        counts[sampler.sample(&mut row.clone()).unwrap().token as usize] += 1;
                    }
                    assert_fits(&counts, &expected(&params, &row), &format!("{params:?}"));
                }
            }
        }
    }
}

#[test]
fn the_test_sees_a_slightly_wrong_temperature() {
    let row = row(60, 5);
    let mut sampler = sampler(&with(1.0, 0, 1.0, 0.0), row.len(), &[]);
    let mut counts = vec![0; row.len()];
    for _ in 0..20_000 {
        counts[sampler.sample(&mut row.clone()).unwrap().token as usize] += 1;
    }
    let (statistic, limit) = chi_square(&counts, &expected(&with(1.1, 0, 1.0, 0.0), &row));
    assert!(statistic > limit);
}

#[test]
fn different_seeds_are_independent_and_penalties_shift_the_frequencies() {
    let row = row(30, 9);
    let (prompt, generated) = ([3, 4, 4, 20], [7, 7, 7, 4, 11]);
    let mut params = SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.2,
        logit_bias: vec![(2, 3.5), (5, -100.0)],
        ..with(0.9, 20, 0.97, 0.0)
    };
    let edited = reference::edited(&params, &row, &prompt, &generated);
    let mut counts = vec![0; row.len()];
    for seed in 0..20_000 {
        params.seed = Some(seed);
        let mut sampler = sampler(&params, row.len(), &prompt);
        for token in generated {
            sampler.accept(token);
        }
        counts[sampler.sample(&mut row.clone()).unwrap().token as usize] += 1;
    }
    assert_fits(&counts, &expected(&params, &edited), "penalties");
}

#[test]
fn a_large_vocabulary_gives_its_frequencies() {
    let row = row(LARGE_VOCAB, 17);
    // Without filters (token order) and with top-p; tokens in 64 groups that each mix frequent and rare ones.
    for params in [with(0.8, 0, 1.0, 0.0), with(0.8, 0, 0.9, 0.0)] {
        let mut probabilities = vec![0.0; 64];
        for (token, p) in expected(&params, &row).into_iter().enumerate() {
            probabilities[token / 31 % 64] += p;
        }
        let mut sampler = sampler(&params, LARGE_VOCAB, &[]);
        let mut counts = vec![0; 64];
        let mut scratch = row.clone();
        for _ in 0..800 {
            scratch.copy_from_slice(&row);
            counts[sampler.sample(&mut scratch).unwrap().token as usize / 31 % 64] += 1;
        }
        assert_fits(&counts, &probabilities, &format!("{params:?}"));
    }
}

/// Leviathan et al.'s theorem: accepting drafts from `q` by the ratio test, and drawing the residual after a refusal, gives exactly `p`.
#[test]
fn speculative_acceptance_gives_the_target_distribution() {
    let (target_row, draft_row) = (row(24, 31), row(24, 32));
    let target_params = with(0.9, 15, 0.95, 0.01);
    let drafts = [
        with(1.2, 0, 1.0, 0.0),
        with(0.7, 8, 1.0, 0.0),
        SamplingParams::greedy(),
    ];
    for draft_params in drafts {
        let mut target = sampler(&target_params, 24, &[]);
        let mut draft = sampler(
            &SamplingParams {
                seed: Some(99),
                ..draft_params
            },
            24,
            &[],
        );
        let q = draft.distribution(&mut draft_row.clone()).unwrap();
        let p = target.distribution(&mut target_row.clone()).unwrap();
        let mut residual = p.clone();
        residual.subtract(&q);
        let (mut counts, mut accepted) = (vec![0; 24], 0);
        for _ in 0..20_000 {
            let drafted = draft.draw(&q).unwrap();
            let token = if target.uniform() * q.probability(drafted) < p.probability(drafted) {
                accepted += 1;
                drafted
            } else {
                target.draw(&residual).unwrap()
            };
            counts[token as usize] += 1;
        }
        assert!(accepted < 20_000, "the refusal is not tested");
        assert_fits(
            &counts,
            &expected(&target_params, &target_row),
            "speculative",
        );
    }
}

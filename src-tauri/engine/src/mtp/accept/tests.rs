//! Verified runs against plain decoding: token for token when greedy, as a joint distribution when not.

use std::collections::HashMap;

use super::*;
use crate::sampling::SamplingParams;

const VOCAB: usize = 12;
const START: u32 = 3;

/// A model whose next token depends on the last one: a table of logits.
struct Table {
    rows: Vec<Vec<f32>>,
}

impl Table {
    /// A repeatable table with logits in steps of 1/16 from -`spread` to `spread`: ties are common.
    fn new(vocab: usize, salt: u64, spread: f32) -> Self {
        let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut value = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let unit = (state >> 40) as f32 / (1_u64 << 24) as f32;
            ((unit * 2.0 - 1.0) * spread * 16.0).round() / 16.0
        };
        let row = |value: &mut dyn FnMut() -> f32| (0..vocab).map(|_| value()).collect();
        Self {
            rows: (0..vocab).map(|_| row(&mut value)).collect(),
        }
    }

    /// A draft for `self`: its logits mixed with others'.
    fn draft(&self, other: &Self, share: f32) -> Self {
        let mix = |(a, b): (&Vec<f32>, &Vec<f32>)| {
            let both = a.iter().zip(b);
            both.map(|(a, b)| a * (1.0 - share) + b * share).collect()
        };
        Self {
            rows: self.rows.iter().zip(&other.rows).map(mix).collect(),
        }
    }

    fn row(&self, last: u32) -> Vec<f32> {
        self.rows[last as usize].clone()
    }

    fn row_over(&self, last: u32, tokens: Option<&[u32]>) -> Vec<f32> {
        let row = self.row(last);
        match tokens {
            Some(tokens) => tokens.iter().map(|&token| row[token as usize]).collect(),
            None => row,
        }
    }
}

fn sampler(params: &SamplingParams, vocab: usize, prompt: &[u32]) -> Sampler {
    Sampler::new(params.clone(), vocab, prompt).unwrap()
}

fn seeded(seed: u64, temperature: f32) -> SamplingParams {
    SamplingParams {
        temperature,
        seed: Some(seed),
        ..SamplingParams::default()
    }
}

/// One cycle of `depth` chained drafts after `last`.
fn cycle(
    sampler: &mut Sampler,
    drafts: &mut Drafts,
    model: &Table,
    draft: &Table,
    vocabulary: Option<&[u32]>,
    last: u32,
    depth: usize,
) -> Verdict {
    drafts.clear(sampler);
    let mut at = last;
    for _ in 0..depth {
        let mut row = draft.row_over(at, vocabulary);
        at = drafts.propose(sampler, vocabulary, &mut row).unwrap();
    }
    let mut logits = model.row(last);
    for &token in drafts.tokens() {
        logits.extend(model.row(token));
    }
    verify(sampler, drafts, &mut logits, usize::MAX, |_| true).unwrap()
}

/// The next two tokens' joint distribution under plain sampling, exactly.
fn joint(params: &SamplingParams, model: &Table, prompt: &[u32]) -> HashMap<(u32, u32), f64> {
    let mut start = sampler(params, VOCAB, prompt);
    let first = start.distribution(&mut model.row(START)).unwrap();
    let mut joint = HashMap::new();
    for &(a, p) in first.entries() {
        let mut after = start.clone();
        after.accept(a);
        let second = after.distribution(&mut model.row(a)).unwrap();
        for &(b, conditional) in second.entries() {
            joint.insert((a, b), f64::from(p) * f64::from(conditional));
        }
    }
    joint
}

/// Pearson's statistic in standard deviations from its mean (Wilson and Hilferty's cube-root transform). Cells expecting fewer
/// than five are one cell. An observation where nothing is expected is infinitely far off.
fn deviation(expected: &HashMap<(u32, u32), f64>, observed: &HashMap<(u32, u32), u32>) -> f64 {
    if observed.keys().any(|cell| !expected.contains_key(cell)) {
        return f64::INFINITY;
    }
    let count: f64 = observed.values().map(|&n| f64::from(n)).sum();
    let (mut rare, mut rare_seen, mut cells, mut statistic) = (0.0, 0.0, 0.0, 0.0);
    for (cell, p) in expected {
        let expected = p * count;
        let seen = f64::from(observed.get(cell).copied().unwrap_or(0));
        if expected < 5.0 {
            rare += expected;
            rare_seen += seen;
        } else {
            statistic += (seen - expected).powi(2) / expected;
            cells += 1.0;
        }
    }
    if rare > 0.0 {
        statistic += (rare_seen - rare).powi(2) / rare.max(1.0);
        cells += 1.0;
    }
    let freedom = f64::max(cells - 1.0, 1.0);
    let spread = 2.0 / (9.0 * freedom);
    ((statistic / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

const SAMPLES: u64 = 20_000;
/// One-sided p of about 3e-5; the seeds are fixed, so a pass stays a pass.
const FAR: f64 = 4.0;

/// Next two tokens by cycles of `depth` drafts, over fixed seeds.
fn speculated(
    params: &SamplingParams,
    tables: (&Table, &Table),
    vocabulary: Option<&[u32]>,
    prompt: &[u32],
    depth: usize,
) -> (HashMap<(u32, u32), u32>, f64) {
    let mut seen = HashMap::new();
    let mut drafts = Drafts::default();
    let (mut drafted, mut accepted) = (0, 0);
    for seed in 0..SAMPLES {
        let params = SamplingParams {
            seed: Some(seed),
            ..params.clone()
        };
        let mut sampler = sampler(&params, VOCAB, prompt);
        let mut tokens = Vec::new();
        while tokens.len() < 2 {
            let last = tokens.last().copied().unwrap_or(START);
            let (model, draft) = tables;
            let verdict = cycle(
                &mut sampler,
                &mut drafts,
                model,
                draft,
                vocabulary,
                last,
                depth,
            );
            drafted += depth;
            accepted += verdict.accepted;
            tokens.extend(verdict.tokens.iter().map(|sampled| sampled.token));
        }
        *seen.entry((tokens[0], tokens[1])).or_insert(0) += 1;
    }
    (seen, accepted as f64 / drafted as f64)
}

#[test]
fn the_next_two_tokens_are_distributed_as_without_drafts() {
    let model = Table::new(VOCAB, 1, 2.0);
    let draft = model.draft(&Table::new(VOCAB, 2, 2.0), 0.4);
    let prompt = [1, 3, 3, 7];
    let filters = [
        seeded(0, 1.0),
        seeded(0, 0.6),
        SamplingParams {
            top_k: 5,
            ..seeded(0, 1.2)
        },
        SamplingParams {
            top_p: 0.8,
            ..seeded(0, 1.0)
        },
        SamplingParams {
            min_p: 0.15,
            ..seeded(0, 1.0)
        },
        SamplingParams {
            top_k: 8,
            top_p: 0.9,
            min_p: 0.02,
            repetition_penalty: 1.3,
            presence_penalty: 0.7,
            frequency_penalty: 0.9,
            logit_bias: vec![(2, 1.5), (5, -100.0)],
            ..seeded(0, 0.9)
        },
    ];
    // Tokens that the draft can never propose, among them likely ones; and one where it proposes a single token.
    let subsets: [Option<&[u32]>; 3] = [None, Some(&[0, 2, 3, 5, 8, 11]), Some(&[4])];
    for (place, params) in filters.iter().enumerate() {
        let expected = joint(params, &model, &prompt);
        for subset in subsets {
            for depth in [1, 3] {
                let (seen, acceptance) =
                    speculated(params, (&model, &draft), subset, &prompt, depth);
                let far = deviation(&expected, &seen);
                assert!(
                    far < FAR,
                    "filter {place}, drafts over {subset:?}, depth {depth}: {far:.1} standard deviations"
                );
                // Both outcomes must have been tried; a single token is seldom right.
                let least = if subset == Some(&[4]) { 0.0 } else { 0.1 };
                assert!((least..0.99).contains(&acceptance), "{acceptance}");
            }
        }
    }
}

#[test]
fn drafts_chosen_without_a_draw_leave_the_distribution_alone() {
    let model = Table::new(VOCAB, 5, 2.0);
    let params = seeded(0, 1.0);
    let expected = joint(&params, &model, &[]);
    let mut seen = HashMap::new();
    for seed in 0..SAMPLES {
        let mut sampler = sampler(&seeded(seed, 1.0), VOCAB, &[]);
        let mut drafts = Drafts::default();
        drafts.push_certain((START + 2) % VOCAB as u32);
        let mut logits = model.row(START);
        logits.extend(model.row(drafts.tokens()[0]));
        let verdict = verify(&mut sampler, &drafts, &mut logits, 2, |_| true).unwrap();
        let first = verdict.tokens[0].token;
        let second = match verdict.tokens.get(1) {
            Some(sampled) => sampled.token,
            None => sampler.sample(&mut model.row(first)).unwrap().token,
        };
        *seen.entry((first, second)).or_insert(0) += 1;
    }
    assert!(deviation(&expected, &seen) < FAR);
}

#[test]
fn the_chi_square_sees_a_wrong_rule() {
    // Drafts that are always taken, and refusals that draw from `p` instead of the residual.
    let model = Table::new(VOCAB, 1, 2.0);
    let draft = model.draft(&Table::new(VOCAB, 2, 2.0), 0.4);
    let params = seeded(0, 1.0);
    let expected = joint(&params, &model, &[]);
    for rule in ["always taken", "no residual"] {
        let mut seen = HashMap::new();
        for seed in 0..SAMPLES {
            let mut sampler = sampler(&seeded(seed, 1.0), VOCAB, &[]);
            let mut q = FilteredDistribution::default();
            let mut first = sampler.draft(None, &mut draft.row(START), &mut q).unwrap();
            if rule == "no residual" {
                let p = sampler.distribution(&mut model.row(START)).unwrap();
                if sampler.uniform() * q.probability(first) >= p.probability(first) {
                    first = sampler.draw(&p).unwrap();
                }
            }
            sampler.accept(first);
            let second = sampler.sample(&mut model.row(first)).unwrap().token;
            *seen.entry((first, second)).or_insert(0) += 1;
        }
        assert!(deviation(&expected, &seen) > 2.0 * FAR, "{rule}");
    }
}

#[test]
fn greedy_runs_are_plain_decoding_token_for_token() {
    const LENGTH: usize = 120;
    let penalties = [
        SamplingParams::greedy(),
        SamplingParams {
            logprobs: Some(3),
            ..SamplingParams::greedy()
        },
        SamplingParams {
            repetition_penalty: 1.15,
            presence_penalty: 0.4,
            frequency_penalty: 0.1,
            logit_bias: vec![(0, 0.5), (9, -3.0)],
            logprobs: Some(2),
            ..SamplingParams::greedy()
        },
    ];
    let vocab = 40;
    let mut all_accepted = 0;
    let subset: Vec<u32> = (0..vocab as u32).filter(|token| token % 3 != 1).collect();
    for salt in 0..12 {
        let model = Table::new(vocab, salt + 1, 2.0);
        let draft = model.draft(&Table::new(vocab, salt + 100, 2.0), 0.3);
        for params in &penalties {
            let prompt = [2, 5, 5, 30];
            let mut plain = sampler(params, vocab, &prompt);
            let mut expected: Vec<Sampled> = Vec::new();
            while expected.len() < LENGTH + 9 {
                let last = expected.last().map_or(START, |sampled| sampled.token);
                expected.push(plain.sample(&mut model.row(last)).unwrap());
            }
            for (vocabulary, depth) in [(None, 1), (None, 3), (Some(&*subset), 8)] {
                let mut sampler = sampler(params, vocab, &prompt);
                let (mut drafts, mut accepted) = (Drafts::default(), 0);
                let mut got: Vec<Sampled> = Vec::new();
                while got.len() < LENGTH {
                    let last = got.last().map_or(START, |sampled| sampled.token);
                    let verdict = cycle(
                        &mut sampler,
                        &mut drafts,
                        &model,
                        &draft,
                        vocabulary,
                        last,
                        depth,
                    );
                    accepted += verdict.accepted;
                    got.extend(verdict.tokens);
                }
                assert_eq!(got, expected[..got.len()], "table {salt}, depth {depth}");
                all_accepted += accepted;
            }
        }
    }
    assert!(all_accepted > LENGTH, "{all_accepted}");
}

#[test]
fn argmax_rows_from_the_device_give_the_same_run() {
    let model = Table::new(VOCAB, 8, 2.0);
    let params = SamplingParams::greedy();
    let mut by_rows = sampler(&params, VOCAB, &[]);
    let mut by_argmax = by_rows.clone();
    assert!(by_argmax.takes_argmax());
    let best = |last: u32| {
        let mut sampler = sampler(&SamplingParams::greedy(), VOCAB, &[]);
        sampler.sample(&mut model.row(last)).unwrap().token
    };
    let second = best(best(START));
    let mut drafts = Drafts::default();
    drafts.push_certain(best(START));
    drafts.push_certain(second);
    drafts.push_certain((best(second) + 1) % VOCAB as u32);
    let inputs = [&[START], drafts.tokens()].concat();
    let mut logits: Vec<f32> = inputs.iter().flat_map(|&last| model.row(last)).collect();
    let argmax: Vec<u32> = inputs.iter().map(|&last| best(last)).collect();
    for most in [1, 2, 3, 4, 9] {
        let rows = verify(&mut by_rows, &drafts, &mut logits, most, |_| true).unwrap();
        let device = verify_argmax(&mut by_argmax, &drafts, &argmax, most, |_| true).unwrap();
        assert_eq!(rows, device);
        assert_eq!(rows.tokens.len(), most.min(3));
        assert_eq!(rows.accepted, most.min(2));
        assert_eq!((rows.refused, rows.was_cut(3)), (most > 2, most <= 2));
    }
    assert!(verify_argmax(&mut by_argmax, &drafts, &argmax[1..], 9, |_| true).is_err());
}

#[test]
fn only_argmax_choices_can_skip_the_rows() {
    let takes = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::greedy();
        change(&mut params);
        sampler(&params, VOCAB, &[1]).takes_argmax()
    };
    assert!(takes(|params| params.top_k = 5));
    assert!(!takes(|params| params.temperature = 0.1));
    assert!(!takes(|params| params.logprobs = Some(0)));
    assert!(!takes(|params| params.logit_bias = vec![(1, 1.0)]));
    assert!(!takes(|params| params.repetition_penalty = 1.1));
    assert!(!takes(|params| params.presence_penalty = 0.1));
    assert!(!takes(|params| params.frequency_penalty = -0.1));
}

#[test]
fn a_run_ends_where_it_is_told_to_and_records_no_more() {
    let model = Table::new(VOCAB, 8, 2.0);
    for temperature in [0.0, 0.02] {
        let params = SamplingParams {
            frequency_penalty: 0.01,
            ..seeded(4, temperature)
        };
        let mut plain = sampler(&params, VOCAB, &[]);
        let mut tokens = vec![START];
        for _ in 0..4 {
            let last = tokens[tokens.len() - 1];
            tokens.push(plain.sample(&mut model.row(last)).unwrap().token);
        }
        let mut drafts = Drafts::default();
        for &token in &tokens[1..4] {
            drafts.push_certain(token);
        }
        let logits: Vec<f32> = tokens[..4].iter().flat_map(|&t| model.row(t)).collect();
        for stop in 1..=4 {
            let mut sampler = sampler(&params, VOCAB, &[]);
            let mut seen = 0;
            let verdict = verify(&mut sampler, &drafts, &mut logits.clone(), 10, |_| {
                seen += 1;
                seen < stop
            })
            .unwrap();
            let got: Vec<u32> = verdict.tokens.iter().map(|s| s.token).collect();
            assert_eq!(got, tokens[1..=stop]);
            assert_eq!(verdict.accepted, stop.min(3));
            assert!(!verdict.refused);
            assert_eq!(verdict.was_cut(3), stop < 3);
            // The next row sees exactly these tokens.
            let mut same = self::sampler(&params, VOCAB, &[]);
            got.iter().for_each(|&token| same.accept(token));
            assert_eq!(
                sampler.distribution(&mut model.row(0)),
                same.distribution(&mut model.row(0))
            );
        }
    }
}

#[test]
fn a_bad_row_ends_the_run_before_it() {
    let model = Table::new(VOCAB, 8, 2.0);
    for temperature in [0.0, 1.0] {
        let mut sampler = sampler(&seeded(1, temperature), VOCAB, &[]);
        let row = model.row(START);
        let likely = self::sampler(&SamplingParams::greedy(), VOCAB, &[])
            .sample(&mut row.clone())
            .unwrap()
            .token;
        let mut certain = vec![f32::NEG_INFINITY; VOCAB];
        certain[likely as usize] = 1.0;
        let mut drafts = Drafts::default();
        drafts.push_certain(likely);
        let nan = vec![f32::NAN; VOCAB];
        let mut logits = [certain.clone(), nan.clone()].concat();
        let verdict = verify(&mut sampler, &drafts, &mut logits, 9, |_| true).unwrap();
        assert_eq!((verdict.tokens.len(), verdict.accepted), (1, 1));
        let mut logits = [nan, certain].concat();
        let error = verify(&mut sampler, &drafts, &mut logits, 9, |_| true).unwrap_err();
        assert_eq!(error, SampleError::NotANumber { token: 0 });
        let error = verify(&mut sampler, &drafts, &mut logits[1..], 9, |_| true).unwrap_err();
        assert_eq!(
            error,
            SampleError::WrongLength {
                expected: 2 * VOCAB,
                found: 2 * VOCAB - 1
            }
        );
    }
}

#[test]
fn a_draft_that_its_distribution_excludes_is_no_evidence() {
    let model = Table::new(VOCAB, 9, 2.0);
    let params = seeded(0, 1.0);
    let expected = joint(&params, &model, &[]);
    let mut seen = HashMap::new();
    for seed in 0..SAMPLES {
        let mut sampler = sampler(&seeded(seed, 1.0), VOCAB, &[]);
        let mut drafts = Drafts::default();
        drafts.push(6, FilteredDistribution::certain(7));
        let mut logits = model.row(START);
        logits.extend(model.row(6));
        let verdict = verify(&mut sampler, &drafts, &mut logits, 2, |_| true).unwrap();
        let first = verdict.tokens[0].token;
        let second = match verdict.tokens.get(1) {
            Some(sampled) => sampled.token,
            None => sampler.sample(&mut model.row(first)).unwrap().token,
        };
        *seen.entry((first, second)).or_insert(0) += 1;
    }
    assert!(deviation(&expected, &seen) < FAR);
}

#[test]
fn drafts_see_the_drafts_before_them_and_then_leave_the_history() {
    let params = SamplingParams {
        frequency_penalty: 2.0,
        ..SamplingParams::greedy()
    };
    let mut sampler = sampler(&params, 3, &[]);
    let mut drafts = Drafts::default();
    let row = [5.0, 4.0, 0.0];
    let mut propose =
        |sampler: &mut Sampler| drafts.propose(sampler, None, &mut row.clone()).unwrap();
    // 5 4 -> 3 4 -> 3 2 -> 1 2: one that forgot nothing would go on with token 1.
    let drafted: Vec<u32> = (0..3).map(|_| propose(&mut sampler)).collect();
    assert_eq!(drafted, [0, 1, 0]);
    drafts.clear(&mut sampler);
    assert!(drafts.is_empty());
    assert_eq!(drafts.propose(&mut sampler, None, &mut row.clone()), Ok(0));
    assert_eq!(sampler.sample(&mut row.clone()).unwrap().token, 0);
}

#[test]
fn drafts_over_a_part_of_the_vocabulary_carry_its_ids() {
    let ids = [2, 7, 9];
    let mut q = FilteredDistribution::default();
    for top_p in [1.0, 0.99] {
        let params = SamplingParams {
            top_p,
            logit_bias: vec![(7, 3.0), (3, 50.0)],
            ..seeded(1, 1.0)
        };
        let mut sampler = sampler(&params, VOCAB, &[]);
        let token = sampler
            .draft(Some(&ids), &mut [1.0, -2.0, f32::NEG_INFINITY], &mut q)
            .unwrap();
        assert_eq!(q.entries(), [(2, 0.5), (7, 0.5)]);
        assert!(q.probability(token) > 0.0);
        let mut short = [0.0; 2];
        assert_eq!(
            sampler.draft(Some(&ids), &mut short, &mut q),
            Err(SampleError::WrongLength {
                expected: 3,
                found: 2
            })
        );
        assert_eq!(
            sampler.draft(Some(&ids), &mut [0.0, f32::NAN, 0.0], &mut q),
            Err(SampleError::NotANumber { token: 7 })
        );
    }
}

//! MTP decoding: the same answers as without, faster.
//!
//! `HEADSTART_LONG_TESTS=1` runs the full sets (50 prompts, 400 tokens, every depth).

use std::sync::Arc;

use headstart_engine::{
    request::{FinishReason, GenerationRequest, MtpSettings},
    sampling::SamplingParams,
    scheduler::{Engine, ModelInfo, ModelSpec},
    specprefill::SpecPrefillSettings,
};
use headstart_tests::{
    engine::{Answer, ask, engine, greedy, spec, wait},
    locate::{bundled, shared, starter},
};

const QUESTIONS: [&str; 10] = [
    "What is the capital of France?",
    "Write a short story about a lighthouse keeper.",
    "List five healthy breakfast ideas.",
    "Write a Python function that reverses a string.",
    "Why is the sky blue?",
    "Write a poem about autumn leaves.",
    "Name ten animals that live in the ocean.",
    "Explain how bread is made, step by step.",
    "qzx 7 vlor blim? 93 tkk - ooo pfft, wub nng 4 4 1 zzq",
    "Describe a walk along a river in winter.",
];

fn long() -> bool {
    std::env::var_os("HEADSTART_LONG_TESTS").is_some()
}

struct Lab {
    engine: Engine,
    model: ModelSpec,
    info: Arc<ModelInfo>,
}

impl Lab {
    fn new(model: ModelSpec, prefix_cache_bytes: usize) -> Self {
        let engine = engine(prefix_cache_bytes);
        let info = engine.load_blocking(model.clone()).unwrap();
        Self {
            engine,
            model,
            info,
        }
    }

    fn nano() -> Self {
        Self::new(spec(&bundled("nano")), 0)
    }

    fn prompt(&self, text: &str) -> Vec<u32> {
        let text = format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
        self.info.tokenizer.encode(&text, false).unwrap()
    }

    fn request(&self, text: &str, tokens: usize, mtp: MtpSettings) -> GenerationRequest {
        GenerationRequest {
            mtp,
            ..greedy(&self.model, &self.prompt(text), tokens)
        }
    }

    fn ask(&self, text: &str, tokens: usize, mtp: MtpSettings) -> Answer {
        ask(&self.engine, self.request(text, tokens, mtp))
    }
}

fn off() -> MtpSettings {
    MtpSettings::default()
}

fn adaptive() -> MtpSettings {
    MtpSettings {
        enabled: true,
        ..off()
    }
}

fn depth(depth: usize) -> MtpSettings {
    MtpSettings {
        fixed_depth: Some(depth),
        ..adaptive()
    }
}

/// Fields of the report agree with each other and with the answer.
fn check_report(answer: &Answer) {
    let report = &answer.usage.mtp;
    assert!(report.accepted <= report.drafted, "{report:?}");
    let cycles: usize = report.depth_histogram.iter().skip(1).sum();
    assert_eq!(cycles, report.cycles, "{report:?}");
    let drafted: usize = report
        .depth_histogram
        .iter()
        .enumerate()
        .map(|(depth, cycles)| depth * cycles)
        .sum();
    assert_eq!(drafted, report.drafted, "{report:?}");
    // The prompt's own pass gives the first token; the last cycle may give more than the answer takes.
    let plain = report.depth_histogram.first().copied().unwrap_or(0);
    let given = 1 + plain + report.cycles + report.accepted;
    assert!(
        given >= answer.usage.completion_tokens && given < answer.usage.completion_tokens + 9,
        "{given} {answer:?}"
    );
}

fn same_answers(lab: &Lab, questions: &[String], tokens: usize, ways: &[MtpSettings]) {
    let mut applied = 0;
    for question in questions {
        let plain = lab.ask(question, tokens, off());
        assert_eq!(plain.usage.mtp.reason, Some("disabled"));
        for way in ways {
            let drafted = lab.ask(question, tokens, *way);
            assert_eq!(drafted.ids(), plain.ids(), "{question} {way:?}");
            assert_eq!(drafted.text, plain.text);
            check_report(&drafted);
            applied += usize::from(drafted.usage.mtp.applied);
        }
    }
    assert!(applied * 2 > questions.len() * ways.len(), "{applied}");
}

#[test]
fn greedy_answers_are_the_same_at_every_depth() {
    let whole = MtpSettings {
        draft_vocabulary: false,
        ..depth(2)
    };
    let mut ways: Vec<MtpSettings> = if long() {
        (1..=8).map(depth).collect()
    } else {
        [1, 3, 8].map(depth).to_vec()
    };
    ways.extend([adaptive(), whole]);
    let (count, tokens) = if long() { (50, 400) } else { (5, 90) };
    let questions: Vec<String> = (0..count)
        .map(|i| match i / QUESTIONS.len() {
            0 => QUESTIONS[i].to_string(),
            round => format!("{} Answer in way {round}.", QUESTIONS[i % QUESTIONS.len()]),
        })
        .collect();
    same_answers(&Lab::nano(), &questions, tokens, &ways);
    // The same model unquantized: dense products.
    if let Some(path) = shared("models/nano") {
        let questions = &questions[..if long() { 50 } else { 2 }];
        same_answers(&Lab::new(spec(&path), 0), questions, tokens.min(120), &ways);
    }
}

#[test]
fn limits_and_stops_fall_inside_of_cycles() {
    let lab = Lab::nano();
    for question in &QUESTIONS[1..4] {
        let plain = lab.ask(question, 60, off());
        for tokens in 1..=20 {
            let cut = lab.ask(question, tokens, depth(4));
            assert_eq!(cut.ids(), plain.ids()[..tokens.min(plain.tokens.len())]);
            assert_eq!(cut.reason, FinishReason::Length);
            assert_eq!(cut.usage.completion_tokens, tokens);
        }
        // Every few bytes of the answer as a stop string; every token as a stop token.
        for at in (8..plain.text.len().saturating_sub(12)).step_by(11) {
            let Some(stop) = plain.text.get(at..at + 5) else {
                continue;
            };
            let stopped = |mtp| {
                ask(
                    &lab.engine,
                    GenerationRequest {
                        stop_strings: vec![stop.into()],
                        ..lab.request(question, 60, mtp)
                    },
                )
            };
            let (expected, found) = (stopped(off()), stopped(depth(3)));
            assert_eq!(found.text, expected.text);
            assert_eq!(found.reason, expected.reason);
            assert_eq!(
                found.usage.completion_tokens,
                expected.usage.completion_tokens
            );
        }
        for id in plain.ids().into_iter().skip(3).step_by(7) {
            let stopped = |mtp| {
                ask(
                    &lab.engine,
                    GenerationRequest {
                        stop_ids: vec![id],
                        ..lab.request(question, 60, mtp)
                    },
                )
            };
            let (expected, found) = (stopped(off()), stopped(depth(4)));
            assert_eq!((found.text, found.reason), (expected.text, expected.reason));
        }
    }
}

#[test]
fn penalties_biases_and_logprobs_are_those_of_plain_decoding() {
    let lab = Lab::nano();
    let sampling = SamplingParams {
        repetition_penalty: 1.15,
        presence_penalty: 0.4,
        frequency_penalty: 0.2,
        logit_bias: vec![(260, 1.5), (30, -100.0)],
        logprobs: Some(3),
        ..SamplingParams::greedy()
    };
    for question in &QUESTIONS[..3] {
        let answer = |mtp| {
            let request = lab.request(question, 80, mtp);
            ask(
                &lab.engine,
                GenerationRequest {
                    sampling: sampling.clone(),
                    ..request
                },
            )
        };
        let (plain, drafted) = (answer(off()), answer(depth(3)));
        assert_eq!(plain.tokens, drafted.tokens, "{question}");
        assert!(plain.tokens.iter().all(|token| token.logprobs.is_some()));
    }
}

#[test]
fn requests_side_by_side_answer_as_alone() {
    let lab = Lab::nano();
    let ways = [off(), depth(2), adaptive(), depth(5)];
    let alone: Vec<Answer> = QUESTIONS[..4]
        .iter()
        .map(|question| lab.ask(question, 80, off()))
        .collect();
    let together: Vec<_> = QUESTIONS[..4]
        .iter()
        .zip(ways)
        .map(|(question, way)| lab.engine.submit(lab.request(question, 80, way)).unwrap())
        .collect();
    for (alone, together) in alone.iter().zip(together) {
        assert_eq!(wait(together).ids(), alone.ids());
    }
}

#[test]
fn speculation_goes_with_sparse_prefills_and_cached_blocks() {
    // Answers that cross block boundaries, on a model whose states can be kept there only.
    let cached = Lab::new(spec(&bundled("nano")), 1 << 28);
    let fresh = Lab::nano();
    let story = "Write a very long story about a lighthouse keeper and the sea. ".repeat(12);
    let tokens = 300;
    let plain = fresh.ask(&story, tokens, off());
    let first = cached.ask(&story, tokens, depth(3));
    assert_eq!(first.ids(), plain.ids());
    let again = cached.ask(&story, tokens, depth(2));
    assert_eq!(again.ids(), plain.ids());
    // The conversation goes on: what the answer left in the cache is right.
    let mut next = cached.prompt(&story);
    next.extend(plain.ids());
    next.extend(cached.prompt("And then?"));
    let follow = |lab: &Lab, mtp| {
        ask(
            &lab.engine,
            GenerationRequest {
                mtp,
                ..greedy(&lab.model, &next, 60)
            },
        )
    };
    let (expected, found) = (follow(&fresh, off()), follow(&cached, depth(4)));
    assert!(found.usage.cached_tokens >= 256, "{:?}", found.usage);
    assert_eq!(found.ids(), expected.ids());

    let sparse = SpecPrefillSettings {
        enabled: true,
        threshold: 300,
        draft: Some(spec(&bundled("nano-draft"))),
        reuse_sessions: false,
        dense_recovery: false,
        ..SpecPrefillSettings::default()
    };
    let text = format!("{} What is the story about?", story.repeat(4));
    let answer = |mtp| {
        ask(
            &fresh.engine,
            GenerationRequest {
                specprefill: sparse.clone(),
                ..fresh.request(&text, 80, mtp)
            },
        )
    };
    let (plain, drafted) = (answer(off()), answer(depth(3)));
    assert!(drafted.usage.specprefill.applied && drafted.usage.mtp.applied);
    assert_eq!(plain.ids(), drafted.ids());
}

#[test]
fn models_without_a_head_say_so() {
    let Some(path) = starter() else { return };
    let lab = Lab::new(spec(&path), 0);
    let answer = lab.ask(QUESTIONS[0], 5, adaptive());
    assert_eq!(answer.usage.mtp.reason, Some("no_mtp_head"));
    assert_eq!(answer.ids(), lab.ask(QUESTIONS[0], 5, off()).ids());
}

#[test]
fn a_declared_head_without_weights_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let nano = bundled("nano-draft");
    for file in std::fs::read_dir(&nano).unwrap() {
        let file = file.unwrap().path();
        std::fs::copy(&file, folder.path().join(file.file_name().unwrap())).unwrap();
    }
    let config = folder.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let declared = text.replace(
        "\"mtp_num_hidden_layers\": 0",
        "\"mtp_num_hidden_layers\": 1",
    );
    assert_ne!(text, declared);
    std::fs::write(&config, declared).unwrap();
    for (path, reason) in [
        (nano, "no_mtp_head"),
        (folder.path().into(), "weights_missing"),
    ] {
        let lab = Lab::new(spec(&path), 0);
        let answer = lab.ask(QUESTIONS[0], 10, adaptive());
        assert_eq!(
            (answer.usage.mtp.applied, answer.usage.mtp.reason),
            (false, Some(reason))
        );
    }
}

#[test]
fn a_vanished_client_frees_the_engine() {
    let lab = Lab::nano();
    let plain = lab.ask(QUESTIONS[1], 40, off());
    for _ in 0..3 {
        let mut events = lab
            .engine
            .submit(lab.request(QUESTIONS[1], 4000, depth(4)))
            .unwrap();
        for _ in 0..10 {
            events.next_blocking();
        }
        drop(events);
        assert_eq!(lab.ask(QUESTIONS[1], 40, depth(2)).ids(), plain.ids());
    }
    assert!(lab.engine.status().running <= 1);
}

/// The joint distribution of the next two tokens is the one without drafts (chi-square of two samples, fixed seeds).
#[test]
fn sampled_answers_have_the_same_distribution() {
    let lab = Lab::nano();
    let prompt = lab.prompt("Name a colour.");
    let samples: u64 = if long() { 20_000 } else { 500 };
    let draw = |mtp: MtpSettings, seeds: std::ops::Range<u64>| {
        let mut counts = std::collections::BTreeMap::<Vec<u32>, f64>::new();
        for seed in seeds {
            let sampling = SamplingParams {
                temperature: 1.0,
                top_k: 4,
                seed: Some(seed),
                ..SamplingParams::greedy()
            };
            let answer = ask(
                &lab.engine,
                GenerationRequest {
                    mtp,
                    sampling,
                    show_special_tokens: true,
                    ..greedy(&lab.model, &prompt, 3)
                },
            );
            // The first token is the prompt's own; the next two come from a cycle.
            *counts.entry(answer.ids()).or_default() += 1.0;
        }
        counts
    };
    let plain = draw(off(), 0..samples);
    for (way, seeds) in [
        (depth(1), samples..2 * samples),
        (depth(2), 2 * samples..3 * samples),
    ] {
        let drafted = draw(way, seeds);
        let mut keys: Vec<_> = plain.keys().chain(drafted.keys()).collect();
        keys.sort();
        keys.dedup();
        let (mut chi, mut cells, mut rare) = (0.0, 0, (0.0, 0.0));
        for key in keys {
            let (a, b) = (
                plain.get(key).copied().unwrap_or(0.0),
                drafted.get(key).copied().unwrap_or(0.0),
            );
            if a + b < 10.0 {
                rare = (rare.0 + a, rare.1 + b);
                continue;
            }
            chi += (a - b) * (a - b) / (a + b);
            cells += 1;
        }
        if rare.0 + rare.1 >= 10.0 {
            chi += (rare.0 - rare.1) * (rare.0 - rare.1) / (rare.0 + rare.1);
            cells += 1;
        }
        // Mean of the statistic: the degrees of freedom; five standard deviations above it is out of the question by chance.
        let freedom = f64::from(cells - 1);
        println!("{way:?}: chi-square {chi:.1} with {freedom} degrees of freedom");
        assert!(
            chi < freedom + 5.0 * (2.0 * freedom).sqrt(),
            "{chi} {freedom}"
        );
    }
}

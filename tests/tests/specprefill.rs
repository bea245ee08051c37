//! SpecPrefill and the prefix cache through the engine, with the bundled pair.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use headstart_engine::{
    request::{GenerationRequest, StaticPrefix},
    scheduler::{Engine, ModelInfo, ModelSpec},
    specprefill::{Scorer, SkipReason, SpecPrefillSettings},
};
use headstart_tests::{
    engine::{Answer, ask, engine, greedy, spec, wait},
    locate::bundled,
    models::{Models, TINY},
    server::Home,
};

/// Prose that names nothing a question could mean.
const FILLER: [&str; 12] = [
    "A file that is open in one program can usually be read by another, but not always changed. ",
    "Rivers are wider in the plains because the water is slower there and drops what it carries. ",
    "When the buffer is full, the oldest entries are written to disk and the space is used again. ",
    "Most of the heat in a house is lost through the roof, so that is where insulation pays first. ",
    "A good summary says what was decided and why, and leaves out who spoke first. ",
    "Old maps often show coasts more exactly than the land behind them, since sailors drew them. ",
    "Wool keeps warm even when it is damp, which is why fishermen liked it. ",
    "Large tables should be split by date, because most questions are about the last few weeks. ",
    "In winter the lake freezes from the edges, and the middle stays open for the birds. ",
    "Paper made from cotton lasts for centuries, and paper made from wood turns brittle in decades. ",
    "Names should say what a thing is for, and comments should say why it is done this way. ",
    "The tide comes in faster than a person can walk in some of the flat bays. ",
];

fn prose(sentences: usize, offset: usize) -> String {
    (0..sentences)
        .map(|i| FILLER[(i * 5 + i / 12 + offset) % 12])
        .collect()
}

struct Lab {
    engine: Engine,
    model: ModelSpec,
    info: Arc<ModelInfo>,
}

impl Lab {
    fn new(prefix_cache_bytes: usize) -> Self {
        let engine = engine(prefix_cache_bytes);
        let model = spec(&bundled("nano"));
        let info = engine.load_blocking(model.clone()).unwrap();
        Self {
            engine,
            model,
            info,
        }
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.info.tokenizer.encode(text, false).unwrap()
    }

    fn chat(&self, text: &str) -> Vec<u32> {
        self.encode(&format!(
            "<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        ))
    }

    fn request(&self, tokens: &[u32], specprefill: &SpecPrefillSettings) -> GenerationRequest {
        GenerationRequest {
            stop_ids: self.info.tokenizer.stop_ids().to_vec(),
            specprefill: specprefill.clone(),
            ..greedy(&self.model, tokens, 24)
        }
    }

    fn ask(&self, tokens: &[u32], specprefill: &SpecPrefillSettings) -> Answer {
        ask(&self.engine, self.request(tokens, specprefill))
    }
}

fn dense() -> SpecPrefillSettings {
    SpecPrefillSettings::default()
}

fn sparse() -> SpecPrefillSettings {
    SpecPrefillSettings {
        enabled: true,
        threshold: 1000,
        draft: Some(spec(&bundled("nano-draft"))),
        reuse_sessions: false,
        dense_recovery: false,
        ..dense()
    }
}

/// A fact at some depth of a long text: (prompt, what the answer must hold).
fn fact(lab: &Lab, case: usize, sentences: usize) -> (Vec<u32>, String) {
    let code = (10_007 + 7_919 * case).to_string();
    let depth = sentences * (case % 7 + 1) / 9;
    let text = format!(
        "{}The access code of the red vault is {code}. {}\n\nWhat is the access code of the red vault?",
        prose(depth, case),
        prose(sentences - depth, case + 3)
    );
    (lab.chat(&text), code)
}

#[test]
fn the_reply_says_what_was_done() {
    let lab = Lab::new(0);
    for case in 0..3 {
        let (prompt, _) = fact(&lab, case, if case % 2 == 0 { 110 } else { 200 });
        let whole = lab.ask(&prompt, &dense());
        let part = lab.ask(&prompt, &sparse());
        let report = &part.usage.specprefill;
        assert!(report.applied && report.reason.is_none(), "{report:?}");
        assert_eq!(report.scorer, Some(Scorer::Draft));
        assert_eq!(report.scored_tokens, prompt.len());
        assert_eq!(report.prompt_tokens, prompt.len());
        let share = report.kept_tokens as f64 / prompt.len() as f64;
        assert!((0.18..0.24).contains(&share), "{share}");
        assert_eq!(part.usage.computed_tokens, report.kept_tokens);
        assert!(report.scoring > Duration::ZERO && report.sparse_prefill > Duration::ZERO);
        assert!(part.usage.time_to_first_token >= report.scoring + report.sparse_prefill);
        assert_eq!(whole.usage.specprefill.reason, Some(SkipReason::Disabled));
    }
}

/// What the target needs for its answer is among the tokens that the draft kept.
#[test]
fn facts_survive() {
    let home = Home::new();
    let models = bundled("");
    let folder = models.parent().unwrap().display().to_string();
    let output = home.run(&[
        "--model-dir",
        &folder,
        "bench",
        "headstart/nano",
        "--specprefill",
        "--draft",
        "headstart/nano-draft",
        "--prompt",
        "2000,3000",
        "--cases",
        "10",
        "--json",
    ]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let sum = |key: &str| {
        rows.iter()
            .map(|row| row[key].as_u64().unwrap())
            .sum::<u64>()
    };
    let (dense, sparse, top) = (
        sum("found_dense"),
        sum("found_sparse"),
        sum("top_1_agreement"),
    );
    println!("facts found: dense {dense}, sparse {sparse} of 20; the same first token: {top}");
    assert!(dense >= 17 && sparse + 3 >= dense && top >= 17);
    for row in &rows {
        assert_eq!(row["not_applied"], serde_json::json!({}));
        let kept = row["kept_tokens"].as_f64().unwrap() / row["scored_tokens"].as_f64().unwrap();
        assert!((0.18..0.22).contains(&kept), "{kept}");
    }
}

#[test]
fn rankings_are_repeatable_and_ratio_one_is_dense() {
    let lab = Lab::new(0);
    let (prompt, _) = fact(&lab, 2, 110);
    let (first, second) = (lab.ask(&prompt, &sparse()), lab.ask(&prompt, &sparse()));
    assert_eq!(first.ids(), second.ids());
    assert_eq!(
        first.usage.specprefill.kept_tokens,
        second.usage.specprefill.kept_tokens
    );
    let all = SpecPrefillSettings {
        keep_ratio: 1.0,
        ..sparse()
    };
    let (all, whole) = (lab.ask(&prompt, &all), lab.ask(&prompt, &dense()));
    assert_eq!(all.ids(), whole.ids());
    assert_eq!(all.usage.specprefill.reason, Some(SkipReason::KeepsAll));
}

#[test]
fn sparse_and_dense_requests_side_by_side_answer_as_alone() {
    let lab = Lab::new(0);
    let prompts: Vec<_> = (0..4).map(|case| fact(&lab, case, 100).0).collect();
    let ways = [sparse(), dense(), sparse(), dense()];
    let alone: Vec<_> = prompts
        .iter()
        .zip(&ways)
        .map(|(prompt, way)| lab.ask(prompt, way).ids())
        .collect();
    let together: Vec<_> = prompts
        .iter()
        .zip(&ways)
        .map(|(prompt, way)| lab.engine.submit(lab.request(prompt, way)).unwrap())
        .collect();
    for (alone, together) in alone.into_iter().zip(together) {
        assert_eq!(wait(together).ids(), alone);
    }
}

#[test]
fn cached_prefixes_change_nothing_but_the_time() {
    let lab = Lab::new(1 << 28);
    let fresh = Lab::new(0);
    let (prompt, _) = fact(&lab, 1, 60);
    let expected = fresh.ask(&prompt, &dense()).ids();
    let first = lab.ask(&prompt, &dense());
    assert_eq!(
        (first.usage.cached_tokens, first.ids()),
        (0, expected.clone())
    );
    let second = lab.ask(&prompt, &dense());
    // A hybrid resumes at the newest block boundary before the last token.
    assert_eq!(second.usage.cached_tokens, (prompt.len() - 1) / 256 * 256);
    assert_eq!(second.ids(), expected);
    assert_eq!(
        second.usage.computed_tokens,
        prompt.len() - second.usage.cached_tokens
    );
    // A fork shares the beginning only.
    let mut fork = prompt[..700].to_vec();
    fork.extend(lab.chat("What is the access code of the red vault?"));
    let forked = lab.ask(&fork, &dense());
    assert!(forked.usage.cached_tokens <= 700);
    assert_eq!(forked.ids(), fresh.ask(&fork, &dense()).ids());
    assert!(matches!(unload(&lab), Ok(true)));
    assert_eq!(lab.ask(&prompt, &dense()).usage.cached_tokens, 0);
}

/// Unloads the model and waits for it.
fn unload(lab: &Lab) -> Result<bool, headstart_engine::error::EngineError> {
    let mut future = Box::pin(lab.engine.unload(&lab.model.key));
    let waker = std::task::Waker::noop();
    let mut context = std::task::Context::from_waker(waker);
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        if let std::task::Poll::Ready(outcome) = future.as_mut().poll(&mut context) {
            return outcome;
        }
        assert!(Instant::now() < until, "the model was not unloaded");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_static_prefix_is_read_whole_and_found_again() {
    let lab = Lab::new(1 << 28);
    let system = format!(
        "<|im_start|>system\nThe secret word is crimson. {}<|im_end|>\n<|im_start|>user\n",
        prose(20, 0)
    );
    let system = lab.encode(&system);
    let ask = |case: usize| {
        let (turn, _) = fact(&lab, case, 110);
        let prompt = [system.clone(), turn[3..].to_vec()].concat();
        let request = GenerationRequest {
            static_prefix: StaticPrefix {
                tokens: system.len(),
                reason: None,
            },
            ..lab.request(&prompt, &sparse())
        };
        (prompt.len(), wait(lab.engine.submit(request).unwrap()))
    };
    let (length, first) = ask(1);
    let report = &first.usage.specprefill;
    assert!(report.applied);
    assert_eq!(report.static_prefix_tokens, system.len());
    assert_eq!(report.scored_tokens, length - system.len());
    assert_eq!(
        first.usage.computed_tokens,
        system.len() + report.kept_tokens
    );
    // Another conversation with the same system text: restored exactly, though it ends inside a block.
    assert_ne!(system.len() % 256, 0);
    let (length, second) = ask(2);
    assert_eq!(second.usage.cached_tokens, system.len());
    assert_eq!(
        second.usage.specprefill.scored_tokens,
        length - system.len()
    );
    assert_eq!(
        second.usage.computed_tokens,
        second.usage.specprefill.kept_tokens
    );
}

#[test]
fn a_conversation_goes_on_with_its_sparse_cache() {
    let lab = Lab::new(1 << 28);
    let sessions = SpecPrefillSettings {
        reuse_sessions: true,
        ..sparse()
    };
    let (prompt, code) = fact(&lab, 3, 150);
    let first = lab.ask(&prompt, &sessions);
    let mut next = prompt.clone();
    next.extend(first.ids());
    next.extend(lab.encode(
        "<|im_end|>\n<|im_start|>user\nWhat is the access code of the red vault?<|im_end|>\n<|im_start|>assistant\n",
    ));
    let second = lab.ask(&next, &sessions);
    let report = &second.usage.specprefill;
    assert!(report.applied && report.session_reused, "{report:?}");
    assert!(second.usage.computed_tokens < 100, "{:?}", second.usage);
    assert!(second.text.contains(&code), "{}", second.text);
    // Another beginning is another conversation.
    let mut other = next.clone();
    other[10] += 1;
    lab.ask(&prompt, &sessions);
    assert!(!lab.ask(&other, &sessions).usage.specprefill.session_reused);
    // Switched off.
    lab.ask(&prompt, &sparse());
    assert!(!lab.ask(&next, &sparse()).usage.specprefill.session_reused);
}

#[test]
fn idle_time_makes_the_next_turn_dense() {
    let lab = Lab::new(1 << 28);
    let recovering = SpecPrefillSettings {
        dense_recovery: true,
        ..sparse()
    };
    let (prompt, _) = fact(&lab, 4, 110);
    let first = lab.ask(&prompt, &recovering);
    assert!(first.usage.specprefill.applied);
    let whole = (prompt.len() + first.tokens.len()) / 256 * 256;
    let mut next = prompt.clone();
    next.extend(first.ids());
    next.extend(lab.chat("And why?"));
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let second = lab.ask(&next, &recovering);
        if second.usage.cached_tokens + 256 >= whole {
            assert_eq!(
                second.usage.specprefill.reason,
                Some(SkipReason::BelowThreshold)
            );
            assert_eq!(second.ids(), Lab::new(0).ask(&next, &dense()).ids());
            break;
        }
        assert!(Instant::now() < until, "{:?}", second.usage);
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn the_self_scorer_needs_no_draft() {
    let lab = Lab::new(0);
    let own = SpecPrefillSettings {
        scorer: Scorer::Own,
        draft: None,
        ..sparse()
    };
    let (prompt, _) = fact(&lab, 5, 110);
    let answer = lab.ask(&prompt, &own);
    let report = &answer.usage.specprefill;
    assert!(report.applied, "{report:?}");
    assert_eq!(report.scorer, Some(Scorer::Own));
    assert_eq!(report.draft_model, None);
    assert_eq!(answer.usage.computed_tokens, report.kept_tokens);
}

#[test]
fn a_useless_draft_is_named() {
    let lab = Lab::new(0);
    let models = Models::new();
    let (prompt, _) = fact(&lab, 1, 110);
    let whole = lab.ask(&prompt, &dense()).ids();
    let missing = models.path().join("no/such");
    for (draft, reason) in [
        (Some(models.path_of(TINY)), SkipReason::TokenizerMismatch),
        (Some(missing), SkipReason::DraftLoadFailed),
        (None, SkipReason::NoDraftModel),
    ] {
        let settings = SpecPrefillSettings {
            draft: draft.map(|path| spec(&path)),
            ..sparse()
        };
        let answer = lab.ask(&prompt, &settings);
        assert_eq!(
            answer.usage.specprefill.reason,
            Some(reason),
            "{:?}",
            answer.usage.specprefill
        );
        assert_eq!(answer.ids(), whole);
    }
}

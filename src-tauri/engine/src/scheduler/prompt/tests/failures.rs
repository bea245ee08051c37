//! Law 5: a failure costs speed, never the answer.

use super::{
    probe::{FAULTS, Fault, Probe},
    *,
};

const BUDGET: usize = 1 << 30;
const STATIC_PREFIX: usize = 40;

struct Case {
    prompt: Vec<u32>,
    settings: SpecPrefillSettings,
    dense: Read,
    chunk: usize,
}

impl Case {
    fn request(&self, settings: SpecPrefillSettings) -> GenerationRequest {
        with_static_prefix(request(&self.prompt, settings), STATIC_PREFIX)
    }

    fn models<'a>(&self, target: &'a dyn Model, draft: &'a dyn Model) -> Models<'a> {
        Models {
            target,
            draft,
            chunk: self.chunk,
        }
    }

    fn new(target: &dyn Model, draft: &dyn Model, settings: SpecPrefillSettings) -> Self {
        let prompt = tokens(1, 700);
        let chunk = 96;
        let dense = with_static_prefix(
            request(&prompt, SpecPrefillSettings::default()),
            STATIC_PREFIX,
        );
        let models = Models {
            target,
            draft,
            chunk,
        };
        let dense = read(models, &mut Stores::new(0), &dense);
        Self {
            prompt,
            settings,
            dense,
            chunk,
        }
    }

    /// Reads the prompt with failing models: it must end as if it had been read densely, and leave nothing behind.
    fn check(&self, target: &dyn Model, draft: &dyn Model, reason: SkipReason, what: &str) {
        let mut stores = Stores::new(BUDGET);
        let request = self.request(self.settings.clone());
        let failed = read(self.models(target, draft), &mut stores, &request);
        let report = failed.run.report();
        assert_eq!(
            (report.applied, report.reason),
            (false, Some(reason)),
            "{what}"
        );
        assert_eq!(report.kept_tokens, 0, "{what}");
        assert_eq!(
            report.scored_tokens,
            match reason {
                SkipReason::ScoringFailed => 0,
                _ => self.prompt.len() - STATIC_PREFIX,
            },
            "{what}"
        );
        let worst = difference(&failed.logits, &self.dense.logits);
        assert!(worst < 1e-5, "{what}: {worst}");
        assert_eq!(failed.cache.is_dense(), Ok(true), "{what}");
        assert_eq!(
            failed.cache.positions(),
            self.dense.cache.positions(),
            "{what}"
        );
        assert_eq!(stores.sessions.bytes(), 0, "{what}");
        // The next request, dense, is served from what this one left.
        let dense = self.request(SpecPrefillSettings::default());
        let again = read(self.models(target, draft), &mut stores, &dense);
        assert!(again.run.cached_tokens() >= 512, "{what}");
        let worst = difference(&again.logits, &self.dense.logits);
        assert!(worst < 1e-5, "{what}, again: {worst}");
    }
}

/// Passes of an undisturbed sparse prefill: of the target and of the draft.
fn passes(case: &Case, target: &dyn Model, draft: &dyn Model) -> (usize, usize) {
    let (target, draft) = (Probe::new(target), Probe::new(draft));
    let request = case.request(case.settings.clone());
    let run = read(
        case.models(&target, &draft),
        &mut Stores::new(BUDGET),
        &request,
    );
    assert!(run.run.report().applied);
    (target.count(), draft.count())
}

#[test]
fn a_failing_draft_costs_only_time() {
    for (name, draft) in [
        ("llama-tiny", "llama-tiny"),
        ("qwen35-dense-tiny", "qwen35-dense-tiny"),
    ] {
        let (target, draft) = (tiny(name), tiny(draft));
        let case = Case::new(target.as_ref(), draft.as_ref(), sparse());
        let (_, count) = passes(&case, target.as_ref(), draft.as_ref());
        // The window's chunks and the look-ahead.
        assert!(count >= 7 + 8, "{count}");
        for at in 0..count {
            for fault in FAULTS {
                let failing = Probe::failing(draft.as_ref(), at, fault);
                let what = format!("{name}: {fault:?} in the draft's pass {at}");
                case.check(target.as_ref(), &failing, SkipReason::ScoringFailed, &what);
            }
        }
    }
}

#[test]
fn a_failing_sparse_prefill_costs_only_time() {
    for name in ["llama-tiny", "qwen35-dense-tiny"] {
        let (target, draft) = (tiny(name), tiny("llama-tiny"));
        let case = Case::new(target.as_ref(), draft.as_ref(), sparse());
        let (count, _) = passes(&case, target.as_ref(), draft.as_ref());
        assert!(count >= 3, "{count}");
        // Pass 0 reads the static prefix.
        for at in 1..count {
            for fault in FAULTS {
                let failing = Probe::failing(target.as_ref(), at, fault);
                let what = format!("{name}: {fault:?} in the target's pass {at}");
                case.check(
                    &failing,
                    draft.as_ref(),
                    SkipReason::SparsePrefillFailed,
                    &what,
                );
            }
        }
    }
}

#[test]
fn a_failing_self_scorer_costs_only_time() {
    let target = tiny("llama-tiny");
    let case = Case::new(target.as_ref(), target.as_ref(), own());
    let (count, _) = passes(&case, target.as_ref(), target.as_ref());
    // Pass 0 reads the static prefix; the window takes seven chunks, cut before the tail and before the margin besides.
    let scoring = 1..1 + 660usize.div_ceil(96) + 2;
    assert!(count > scoring.end, "{count}");
    for at in 1..count {
        for fault in FAULTS {
            let failing = Probe::failing(target.as_ref(), at, fault);
            let reason = match scoring.contains(&at) {
                true => SkipReason::ScoringFailed,
                false => SkipReason::SparsePrefillFailed,
            };
            let what = format!("{fault:?} in the target's pass {at}");
            case.check(&failing, target.as_ref(), reason, &what);
        }
    }
}

/// A dense pass that fails is the request's own failure.
#[test]
fn a_failing_dense_pass_fails_the_request() {
    let target = tiny("llama-tiny");
    let failing = Probe::failing(target.as_ref(), 0, Fault::Error);
    let request = request(&tokens(1, 300), SpecPrefillSettings::default());
    let mut stores = Stores::new(BUDGET);
    let mut cache = failing.new_cache();
    let info = info(&failing);
    let mut run = PromptRun::start(&request, &info, &mut cache, &mut stores, || READY);
    let mut resources = Resources {
        model: &failing,
        draft: None,
        stores: &mut stores,
        chunk: 96,
        contended: false,
    };
    assert!(
        run.step(&request, &mut cache, &mut resources, &mut None)
            .is_err()
    );
    assert_eq!((cache.token_count(), stores.prefix.blocks()), (Ok(0), 0));
}

/// The draft went away between planning and ranking: another request has put another one in its place.
#[test]
fn a_missing_draft_costs_only_time() {
    let target = tiny("llama-tiny");
    let request = request(&tokens(1, 700), sparse());
    let mut stores = Stores::new(BUDGET);
    let mut cache = target.new_cache();
    let info = info(target.as_ref());
    let mut run = PromptRun::start(&request, &info, &mut cache, &mut stores, || READY);
    let logits = loop {
        let mut resources = Resources {
            model: target.as_ref(),
            draft: None,
            stores: &mut stores,
            chunk: 96,
            contended: false,
        };
        if let Progress::Ready(logits) = run
            .step(&request, &mut cache, &mut resources, &mut None)
            .unwrap()
        {
            break logits;
        }
    };
    assert_eq!(run.report().reason, Some(SkipReason::ScoringFailed));
    let models = Models {
        target: target.as_ref(),
        draft: target.as_ref(),
        chunk: 96,
    };
    let dense = read(
        models,
        &mut Stores::new(0),
        &GenerationRequest {
            specprefill: SpecPrefillSettings::default(),
            ..request
        },
    );
    assert_eq!(difference(&logits, &dense.logits), 0.0);
}

/// A hybrid whose attention comes late cannot rank by itself.
#[test]
fn a_model_without_early_attention_is_read_whole() {
    let target = tiny("qwen35-dense-tiny");
    let models = Models {
        target: target.as_ref(),
        draft: target.as_ref(),
        chunk: 96,
    };
    let run = read(
        models,
        &mut Stores::new(0),
        &request(&tokens(1, 700), own()),
    );
    let report = run.run.report();
    assert_eq!(report.reason, Some(SkipReason::NoAttention));
    assert!(!report.applied);
}

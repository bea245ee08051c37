//! The positions that models are given.

use super::{
    probe::{Pass, Probe},
    toy::{MARKED, Toy},
    *,
};

const BUDGET: usize = 1 << 30;

fn positions(passes: &[Pass]) -> Vec<u32> {
    passes
        .iter()
        .flat_map(|pass| pass.positions.clone())
        .collect()
}

/// Every pass was given the prompt's own tokens at their own places.
fn assert_true(passes: &[Pass], tokens: &[u32]) {
    for pass in passes {
        for (token, position) in pass.tokens.iter().zip(&pass.positions) {
            assert_eq!(*token, tokens[*position as usize], "at {position}");
        }
    }
}

/// What a sparse prompt of 3,000 tokens after `cached` tokens gives its target: the kept tokens at selected + offset, the static prefix
/// whole, the marked tokens among them; and the answer's tokens from the prompt's true end on.
fn run(hybrid: bool, cached: usize, scorer: &SpecPrefillSettings) {
    let (toy, draft) = (Toy::new(hybrid), Toy::new(false));
    let target = Probe::new(&toy);
    let draft = Probe::new(&draft);
    let models = Models {
        target: &target,
        draft: &draft,
        chunk: 512,
    };
    let mut stores = Stores::new(BUDGET);
    let history = tokens(1, cached);
    if cached > 0 {
        // One more token, so that the last block boundary is in the middle.
        let mut first = history.clone();
        first.push(20);
        read(
            models,
            &mut stores,
            &request(&first, SpecPrefillSettings::default()),
        );
        target.take();
    }
    let mut prompt = history;
    prompt.extend(tokens(2, 3000));
    for at in [500, 777, 1900] {
        prompt[cached + at] = MARKED;
    }
    let static_prefix = cached + 40;
    let answer = answer(
        models,
        &mut stores,
        with_static_prefix(request(&prompt, scorer.clone()), static_prefix),
    );
    let report = &answer.usage.specprefill;
    assert!(report.applied, "{report:?}");
    assert_eq!((report.cached_tokens, report.scored_tokens), (cached, 2960));
    // A fifth of 93 chunks; the last one holds 16 tokens.
    assert_eq!(report.kept_tokens, 19 * 32 - 16);
    let passes = target.take();
    let total = prompt.len() as u32;
    let given = positions(&passes);
    let mut all = prompt.clone();
    all.extend(&answer.tokens);
    // With the self scorer the first layer reads the window, in order, before the kept tokens are read.
    let (ranked, given): (Vec<u32>, Vec<u32>) = match scorer.scorer {
        Scorer::Draft => (Vec::new(), given),
        Scorer::Own => {
            let (first, rest) = given.split_at(3000);
            (first[40..].to_vec(), [&first[..40], rest].concat())
        }
    };
    assert_true(&passes, &all);
    if scorer.scorer == Scorer::Own {
        assert_eq!(ranked, (static_prefix as u32..total).collect::<Vec<_>>());
    } else {
        // The draft's prompt begins where its window does.
        let passes = draft.take();
        assert_eq!(positions(&passes), (0..2960 + 8).collect::<Vec<_>>());
        assert_true(&passes[..6], &prompt[static_prefix..]);
    }
    let (prefix, rest) = given.split_at(40);
    assert_eq!(
        prefix,
        (cached as u32..static_prefix as u32).collect::<Vec<_>>()
    );
    let (kept, decoded) = rest.split_at(report.kept_tokens);
    assert!(kept.is_sorted_by(|a, b| a < b));
    for chunk in kept.chunks(32) {
        // Whole chunks of the window, counted from the end of the static prefix.
        assert_eq!((chunk[0] - static_prefix as u32) % 32, 0);
        assert!(chunk.windows(2).all(|pair| pair[1] == pair[0] + 1));
    }
    for at in [500, 777, 1900] {
        assert!(kept.contains(&((cached + at) as u32)), "{at}");
    }
    assert_eq!(kept.last(), Some(&(total - 1)));
    assert_eq!(decoded, (total..total + 5).collect::<Vec<_>>());
    assert_eq!(answer.tokens.len(), 6);
}

#[test]
fn kept_tokens_keep_their_positions() {
    for hybrid in [false, true] {
        run(hybrid, 0, &sparse());
    }
}

#[test]
fn kept_tokens_keep_their_positions_after_a_cached_prefix() {
    for hybrid in [false, true] {
        run(hybrid, 12_288, &sparse());
    }
}

#[test]
fn the_self_scorer_keeps_positions_too() {
    for cached in [0, 12_288] {
        for hybrid in [false, true] {
            run(hybrid, cached, &own());
        }
    }
}

/// What the sparse cache holds, and so the logits, are those of one pass over the kept tokens at explicit positions.
#[test]
fn a_sparse_cache_equals_a_pass_with_explicit_positions() {
    for name in [
        "llama-tiny",
        "llama3-scaled-tiny",
        "qwen3-tiny",
        "qwen35-dense-tiny",
        "qwen35-moe-tiny",
        "qwen35-vl-tiny",
    ] {
        let (model, draft) = (tiny(name), tiny("llama-tiny"));
        let target = Probe::new(model.as_ref());
        let models = Models {
            target: &target,
            draft: draft.as_ref(),
            chunk: 64,
        };
        let prompt = tokens(3, 900);
        let mut request = with_static_prefix(request(&prompt, sparse()), 40);
        request.max_tokens = Some(12);
        let answer = answer(models, &mut Stores::new(BUDGET), request);
        assert!(answer.usage.specprefill.applied, "{name}");
        let mut kept = positions(&target.take());
        let decoded = kept.split_off(kept.len() - 11);
        assert_eq!(decoded, (900..911).collect::<Vec<_>>(), "{name}");
        let selected: Vec<u32> = kept.iter().map(|index| prompt[*index as usize]).collect();
        let mut cache = model.new_cache();
        let explicit = Positions::selected(kept).unwrap();
        let mut logits = forward(model.as_ref(), &selected, &explicit, &mut cache);
        let mut expected = Vec::new();
        for position in 900..912 {
            let token = (0..logits.len())
                .max_by(|a, b| logits[*a].total_cmp(&logits[*b]).then(b.cmp(a)))
                .unwrap() as u32;
            expected.push(token);
            let next = Positions::contiguous(position, 1);
            logits = forward(model.as_ref(), &[token], &next, &mut cache);
        }
        assert_eq!(answer.tokens, expected, "{name}");
    }
}

fn forward(
    model: &dyn Model,
    tokens: &[u32],
    positions: &Positions,
    cache: &mut SequenceCache,
) -> Vec<f32> {
    let input = ForwardInput::new(tokens, positions, LogitRows::Last);
    let logits = model.forward(input, cache).unwrap().logits().unwrap();
    logits.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn sliding_layers_get_their_last_window_whole() {
    let toy = Toy {
        hybrid: false,
        window: Some(1000),
    };
    let draft = Toy::new(false);
    let target = Probe::new(&toy);
    let models = Models {
        target: &target,
        draft: &draft,
        chunk: 512,
    };
    let prompt = tokens(4, 4000);
    read(
        models,
        &mut Stores::new(BUDGET),
        &request(&prompt, sparse()),
    );
    let given = positions(&target.take());
    assert_eq!(
        given[given.len() - 1000..],
        (3000..4000).collect::<Vec<_>>()
    );
    assert!(given.len() > 1000 && given.len() < 2000);
}

/// The next turn goes on from the sparse cache at the true positions; with another history it does not.
#[test]
fn a_session_goes_on_at_true_positions() {
    for (hybrid, scorer) in [
        (false, sparse()),
        (true, sparse()),
        (false, own()),
        (true, own()),
    ] {
        let (toy, draft) = (Toy::new(hybrid), Toy::new(false));
        let target = Probe::new(&toy);
        let models = Models {
            target: &target,
            draft: &draft,
            chunk: 128,
        };
        let mut stores = Stores::new(BUDGET);
        let prompt = tokens(5, 1500);
        let first = answer(models, &mut stores, request(&prompt, scorer.clone()));
        assert!(first.usage.specprefill.applied);
        let held = stores.sessions.bytes();
        assert!(held > 0);
        target.take();
        // The template writes the answer's beginning otherwise: the prompt's last three tokens are other ones.
        let mut next = prompt[..1497].to_vec();
        next.extend(tokens(6, 180));
        // Another history first: it takes nothing.
        let mut changed = next.clone();
        changed[1200] += 1;
        let off = SpecPrefillSettings {
            reuse_sessions: false,
            ..scorer.clone()
        };
        for other in [request(&changed, scorer.clone()), request(&next, off)] {
            let other = answer(models, &mut stores, other);
            assert!(!other.usage.specprefill.session_reused);
            assert!(other.usage.specprefill.applied);
        }
        target.take();
        let second = answer(models, &mut stores, request(&next, scorer.clone()));
        let report = &second.usage.specprefill;
        assert!(report.session_reused && report.applied, "{report:?}");
        assert_eq!(report.reason, None);
        // Recurrent layers can go back only to where their states were kept.
        let resumed = if hybrid { 1484 } else { 1497 };
        assert_eq!(second.usage.cached_tokens, resumed, "hybrid: {hybrid}");
        assert_eq!(second.usage.computed_tokens, next.len() - resumed);
        let given = positions(&target.take());
        let end = next.len() + 5;
        assert_eq!(given, (resumed as u32..end as u32).collect::<Vec<_>>());
    }
}

/// What a session goes on from is what the kept tokens and the new turn alone would give.
#[test]
fn a_session_holds_the_kept_tokens_and_the_new_turn() {
    for (name, scorer) in [
        ("llama-tiny", sparse()),
        ("qwen35-dense-tiny", sparse()),
        ("llama-tiny", own()),
    ] {
        let (model, draft) = (tiny(name), tiny("llama-tiny"));
        let target = Probe::new(model.as_ref());
        let models = Models {
            target: &target,
            draft: draft.as_ref(),
            chunk: 128,
        };
        let mut stores = Stores::new(BUDGET);
        let prompt = tokens(5, 900);
        let kept = {
            let first = answer(models, &mut stores, request(&prompt, scorer.clone()));
            let passes = positions(&target.take());
            let decoded = 5;
            let kept = first.usage.specprefill.kept_tokens;
            passes[passes.len() - decoded - kept..passes.len() - decoded].to_vec()
        };
        let mut next = prompt[..890].to_vec();
        next.extend(tokens(6, 100));
        let second = read(models, &mut stores, &request(&next, scorer.clone()));
        assert!(second.run.report().session_reused, "{name}");
        let places: Vec<u32> = kept
            .into_iter()
            .filter(|place| *place < 890)
            .chain(890..990)
            .collect();
        assert_eq!(second.cache.positions().as_slice(), places, "{name}");
        if scorer.scorer == Scorer::Draft {
            let selected: Vec<u32> = places.iter().map(|place| next[*place as usize]).collect();
            let explicit = Positions::selected(places).unwrap();
            let mut cache = model.new_cache();
            let expected = forward(model.as_ref(), &selected, &explicit, &mut cache);
            let difference = difference(&second.logits, &expected);
            assert!(difference < 1e-4, "{name}: {difference}");
        }
    }
}

/// The self scorer's first layers have read the whole window; a session taken up before the prompt's last tokens must not have seen these.
#[test]
fn a_session_of_the_self_scorer_forgets_the_old_end() {
    let (nano, draft) = (bundled("nano"), Toy::new(false));
    let models = Models {
        target: nano.as_ref(),
        draft: &draft,
        chunk: 128,
    };
    let continued = |old_end: u64| {
        let mut stores = Stores::new(BUDGET);
        let mut prompt = tokens(7, 600);
        prompt.truncate(590);
        prompt.extend(tokens(old_end, 10));
        let mut first = request(&prompt, own());
        // Every token is kept but for the budget's sake: the old end must not choose.
        first.protected_tail = 500;
        first.max_tokens = Some(1);
        let first = answer(models, &mut stores, first);
        assert!(first.usage.specprefill.applied);
        let mut next = prompt[..588].to_vec();
        next.extend(tokens(9, 40));
        let second = read(models, &mut stores, &request(&next, own()));
        assert!(second.run.report().session_reused);
        assert_eq!(second.run.cached_tokens(), 584);
        (second.logits, second.cache.positions().clone())
    };
    let (a, b) = (continued(10), continued(11));
    assert_eq!(a.1, b.1);
    assert_eq!(difference(&a.0, &b.0), 0.0);
}

/// Idle time: the prompt is read whole, and the next turn finds it.
#[test]
fn recovery_fills_the_prefix_cache() {
    for name in ["llama-tiny", "qwen35-dense-tiny"] {
        let (model, draft) = (tiny(name), tiny("llama-tiny"));
        let models = Models {
            target: model.as_ref(),
            draft: draft.as_ref(),
            chunk: 128,
        };
        let mut stores = Stores::new(BUDGET);
        let prompt = tokens(5, 900);
        let first = answer(models, &mut stores, request(&prompt, sparse()));
        assert_eq!(stores.prefix.blocks(), 0, "sparse blocks are nobody's");
        let mut recovery = first.recovery.unwrap();
        let mut steps = 0;
        while !recovery.step(model.as_ref(), &mut stores).unwrap() {
            steps += 1;
        }
        assert_eq!((steps, stores.prefix.blocks()), (2, 3), "{name}");
        let mut next = prompt.clone();
        next.extend(tokens(6, 100));
        let dense = request(&next, SpecPrefillSettings::default());
        let second = read(models, &mut stores, &dense);
        assert_eq!(second.run.cached_tokens(), 768, "{name}");
        let fresh = read(models, &mut Stores::new(0), &dense);
        let difference = difference(&second.logits, &fresh.logits);
        assert!(difference < 1e-4, "{name}: {difference}");
        // Off by the setting.
        let off = SpecPrefillSettings {
            dense_recovery: false,
            ..sparse()
        };
        let off = answer(models, &mut Stores::new(BUDGET), request(&prompt, off));
        assert!(off.recovery.is_none());
    }
}

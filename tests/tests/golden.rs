//! The model families against transformers, on tiny random models.

use candle_core::{DType, Device, Tensor};
use headstart_engine::{
    checkpoint::{Checkpoint, LoadOptions},
    models::{ForwardInput, LogitRows, Model},
    positions::Positions,
};
use headstart_tests::{
    golden::{Golden, max_difference},
    locate::fixtures,
};

const MODELS: [&str; 6] = [
    "llama-tiny",
    "llama3-scaled-tiny",
    "qwen3-tiny",
    "qwen35-dense-tiny",
    "qwen35-moe-tiny",
    "qwen35-vl-tiny",
];
const TOLERANCE: f32 = 1e-4;

fn load(name: &str) -> (Box<dyn Model>, Golden) {
    let folder = fixtures().join(name);
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    let model = Checkpoint::open(&folder)
        .unwrap()
        .load(&Device::Cpu, &options)
        .unwrap();
    (model, Golden::read(&folder.join("golden.safetensors")))
}

fn forward(
    model: &dyn Model,
    cache: &mut headstart_engine::cache::SequenceCache,
    tokens: &[u32],
    positions: &Positions,
) -> Tensor {
    let input = ForwardInput {
        tokens,
        positions,
        logits: LogitRows::All,
        hidden: false,
        queries: false,
        replayable: false,
    };
    model.forward(input, cache).unwrap().logits().unwrap()
}

fn argmax(row: &Tensor) -> u32 {
    row.argmax(0).unwrap().to_scalar::<u32>().unwrap()
}

#[test]
fn full_forward_equals_transformers() {
    for name in MODELS {
        let (model, golden) = load(name);
        for length in [1, 5, 70, 150] {
            let ids = golden.ids(&format!("ids_{length}"));
            let logits = forward(
                model.as_ref(),
                &mut model.new_cache(),
                &ids,
                &Positions::contiguous(0, length),
            );
            let difference = max_difference(&logits, golden.tensor(&format!("logits_{length}")));
            println!("{name}, {length} tokens: {difference:e}");
            assert!(
                difference < TOLERANCE,
                "{name}, {length} tokens: {difference}"
            );
        }
    }
}

#[test]
fn chunked_prefill_and_decode_equal_the_full_forward() {
    for name in MODELS {
        let (model, golden) = load(name);
        let expected = golden.tensor("logits_150");
        let ids = golden.ids("ids_150");
        for chunks in [
            vec![150],
            vec![64, 64, 22],
            vec![1, 99, 3, 47],
            vec![100, 1, 1, 1, 40, 1, 6],
        ] {
            let mut cache = model.new_cache();
            let mut start = 0;
            for chunk in chunks {
                let positions = Positions::contiguous(start as u32, chunk);
                let logits = forward(
                    model.as_ref(),
                    &mut cache,
                    &ids[start..start + chunk],
                    &positions,
                );
                let difference =
                    max_difference(&logits, &expected.narrow(0, start, chunk).unwrap());
                assert!(
                    difference < TOLERANCE,
                    "{name}, {chunk} tokens at {start}: {difference}"
                );
                start += chunk;
            }
            assert_eq!(cache.token_count(), Ok(150));
        }
    }
}

#[test]
fn greedy_decoding_equals_transformers() {
    for name in MODELS {
        let (model, golden) = load(name);
        let prompt = golden.ids("greedy_prompt");
        let expected = golden.ids("greedy_tokens");
        let mut cache = model.new_cache();
        let (first, second) = prompt.split_at(17);
        forward(
            model.as_ref(),
            &mut cache,
            first,
            &Positions::contiguous(0, first.len()),
        );
        let logits = forward(
            model.as_ref(),
            &mut cache,
            second,
            &Positions::contiguous(first.len() as u32, second.len()),
        );
        let mut row = logits.get(second.len() - 1).unwrap();
        for (step, token) in expected.iter().enumerate() {
            assert_eq!(argmax(&row), *token, "{name}, step {step}");
            let positions = Positions::contiguous((prompt.len() + step) as u32, 1);
            row = forward(model.as_ref(), &mut cache, &[*token], &positions)
                .get(0)
                .unwrap();
            // The golden row of a step is the one after its token.
            let difference =
                max_difference(&row, &golden.tensor("greedy_logits").get(step).unwrap());
            assert!(difference < TOLERANCE, "{name}, step {step}: {difference}");
        }
    }
}

/// 30 of 120 tokens at their own positions, then decoding at 120, 121, ...
#[test]
fn sparse_prefill_keeps_true_positions() {
    for name in MODELS {
        let (model, golden) = load(name);
        let ids = golden.ids("sparse_full_ids");
        let selected = golden.ids("sparse_selected");
        let tokens: Vec<u32> = selected.iter().map(|i| ids[*i as usize]).collect();
        let mut cache = model.new_cache();
        let logits = forward(
            model.as_ref(),
            &mut cache,
            &tokens,
            &Positions::selected(selected).unwrap(),
        );
        let difference = max_difference(&logits, golden.tensor("sparse_logits"));
        assert!(difference < TOLERANCE, "{name}: {difference}");
        for (step, token) in golden.ids("sparse_tokens").into_iter().enumerate() {
            let positions = Positions::contiguous(120 + step as u32, 1);
            let row = forward(model.as_ref(), &mut cache, &[token], &positions);
            let expected = golden
                .tensor("sparse_step_logits")
                .narrow(0, step, 1)
                .unwrap();
            let difference = max_difference(&row, &expected);
            assert!(difference < TOLERANCE, "{name}, step {step}: {difference}");
        }
        assert_eq!(cache.token_count(), Ok(36));
        assert_eq!(cache.next_position(), 126);
    }
}

#[test]
fn restoring_a_snapshot_equals_never_having_stopped() {
    for name in MODELS {
        let (model, golden) = load(name);
        let ids = golden.ids("ids_150");
        let mut cache = model.new_cache();
        forward(
            model.as_ref(),
            &mut cache,
            &ids[..80],
            &Positions::contiguous(0, 80),
        );
        let snapshot = cache.snapshot().unwrap();
        let rest = Positions::contiguous(80, 70);
        let straight = forward(model.as_ref(), &mut cache, &ids[80..], &rest);
        // Something else runs in between, in this cache and, restored, in another one.
        cache.clear();
        forward(
            model.as_ref(),
            &mut cache,
            &ids[..50],
            &Positions::contiguous(0, 50),
        );
        for mut cache in [cache, model.new_cache()] {
            cache.restore(&snapshot).unwrap();
            let again = forward(model.as_ref(), &mut cache, &ids[80..], &rest);
            assert_eq!(max_difference(&again, &straight), 0.0, "{name}");
        }
    }
}

#[test]
fn low_precision_stays_low() {
    for name in MODELS {
        for dtype in [DType::BF16, DType::F16] {
            let options = LoadOptions {
                dtype: Some(dtype),
                ..LoadOptions::default()
            };
            let model = Checkpoint::open(&fixtures().join(name))
                .unwrap()
                .load(&Device::Cpu, &options)
                .unwrap();
            let golden = Golden::read(&fixtures().join(name).join("golden.safetensors"));
            let mut cache = model.new_cache();
            // A cache of the model's dtype refuses wider keys and values, so a widened path fails here.
            let positions = Positions::selected(golden.ids("sparse_selected")).unwrap();
            let tokens: Vec<u32> = golden.ids("sparse_full_ids")[..30].to_vec();
            forward(model.as_ref(), &mut cache, &tokens, &positions);
            assert_eq!(
                cache.bytes(),
                model.cache_bytes_per_token() * 256 + model.state_bytes()
            );
            let ids = golden.ids("ids_70");
            let logits = forward(
                model.as_ref(),
                &mut model.new_cache(),
                &ids,
                &Positions::contiguous(0, 70),
            );
            let error = relative_rms(&logits, golden.tensor("logits_70"));
            assert!(error < 0.1, "{name} in {dtype:?}: {error}");
        }
    }
}

/// Root mean square of the difference over that of the expected values.
fn relative_rms(found: &Tensor, expected: &Tensor) -> f32 {
    let mean_square = |tensor: &Tensor| {
        tensor
            .sqr()
            .unwrap()
            .mean_all()
            .unwrap()
            .to_scalar::<f32>()
            .unwrap()
    };
    (mean_square(&(found - expected).unwrap()) / mean_square(expected)).sqrt()
}

#[test]
fn wrong_input_is_refused_and_leaves_the_cache_alone() {
    let (model, golden) = load("llama-tiny");
    let ids = golden.ids("ids_5");
    let mut cache = model.new_cache();
    forward(
        model.as_ref(),
        &mut cache,
        &ids,
        &Positions::contiguous(0, 5),
    );
    let mut refuse = |tokens: &[u32], positions: Positions| {
        let input = ForwardInput {
            tokens,
            positions: &positions,
            logits: LogitRows::Last,
            hidden: false,
            queries: false,
            replayable: false,
        };
        assert!(model.forward(input, &mut cache).is_err());
        assert_eq!((cache.token_count(), cache.next_position()), (Ok(5), 5));
    };
    refuse(&[], Positions::contiguous(5, 0));
    refuse(&[1], Positions::contiguous(5, 2));
    refuse(&[320], Positions::contiguous(5, 1));
    refuse(&[1], Positions::contiguous(4, 1));
}

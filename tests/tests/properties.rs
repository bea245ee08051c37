//! What holds for every family wherever a prompt is cut and whenever a cache is put aside, on tiny models in f32.

use std::{collections::HashMap, path::Path};

use candle_core::{DType, Device, Tensor};
use fastrand::Rng;
use headstart_engine::{
    cache::SequenceCache,
    checkpoint::{Checkpoint, LoadOptions},
    models::{ForwardInput, LogitRows, Model},
    positions::Positions,
};
use headstart_tests::locate::fixtures;
use serde_json::{Value, json};

const CASES: usize = 20;
const VOCABULARY: u32 = 320;
/// Of the largest logit.
const TOLERANCE: f32 = 1e-3;

fn load(folder: &Path) -> Box<dyn Model> {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    Checkpoint::open(folder)
        .unwrap()
        .load(&Device::Cpu, &options)
        .unwrap()
}

fn random(rng: &mut Rng, shape: &[usize]) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|_| rng.f32() - 0.5)
        .collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Another family's model made of a fixture's weights.
fn derived(
    base: &str,
    change: impl FnOnce(&mut Value, &mut HashMap<String, Tensor>, &mut Rng),
) -> Box<dyn Model> {
    let source = fixtures().join(base);
    let text = std::fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let mut tensors =
        candle_core::safetensors::load(source.join("model.safetensors"), &Device::Cpu).unwrap();
    change(&mut config, &mut tensors, &mut Rng::with_seed(3));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    load(folder.path())
}

/// Qwen2 is a Llama with biases on queries, keys and values.
fn qwen2() -> Box<dyn Model> {
    derived("llama-tiny", |config, tensors, rng| {
        config["model_type"] = json!("qwen2");
        for layer in 0..3 {
            for (name, size) in [("q", 64), ("k", 32), ("v", 32)] {
                tensors.insert(
                    format!("model.layers.{layer}.self_attn.{name}_proj.bias"),
                    random(rng, &[size]),
                );
            }
        }
    })
}

/// Qwen3-MoE is a Qwen3 with experts for an MLP.
fn qwen3_moe() -> Box<dyn Model> {
    const EXPERTS: usize = 4;
    derived("qwen3-tiny", |config, tensors, rng| {
        config["model_type"] = json!("qwen3_moe");
        config["num_experts"] = json!(EXPERTS);
        config["num_experts_per_tok"] = json!(2);
        config["moe_intermediate_size"] = json!(32);
        config["norm_topk_prob"] = json!(true);
        tensors.retain(|name, _| !name.contains(".mlp."));
        for layer in 0..3 {
            let prefix = format!("model.layers.{layer}.mlp");
            tensors.insert(format!("{prefix}.gate.weight"), random(rng, &[EXPERTS, 64]));
            for expert in 0..EXPERTS {
                for (name, shape) in [
                    ("gate_proj", [32, 64]),
                    ("up_proj", [32, 64]),
                    ("down_proj", [64, 32]),
                ] {
                    tensors.insert(
                        format!("{prefix}.experts.{expert}.{name}.weight"),
                        random(rng, &shape),
                    );
                }
            }
        }
    })
}

fn families() -> Vec<(&'static str, Box<dyn Model>)> {
    let mut families: Vec<(&'static str, Box<dyn Model>)> = [
        "llama-tiny",
        "llama3-scaled-tiny",
        "qwen3-tiny",
        "qwen35-dense-tiny",
        "qwen35-moe-tiny",
        "qwen35-vl-tiny",
    ]
    .into_iter()
    .map(|name| (name, load(&fixtures().join(name))))
    .collect();
    families.push(("qwen2", qwen2()));
    families.push(("qwen3_moe", qwen3_moe()));
    families
}

fn prompt(rng: &mut Rng) -> Vec<u32> {
    let length = rng.usize(2..160);
    (0..length).map(|_| rng.u32(0..VOCABULARY)).collect()
}

/// Lengths that sum to `total`, short ones as often as long ones.
fn split(rng: &mut Rng, total: usize) -> Vec<usize> {
    let mut left = total;
    let mut lengths = Vec::new();
    while left > 0 {
        let limit = 1usize << rng.u32(0..8);
        let length = rng.usize(1..=limit).min(left);
        lengths.push(length);
        left -= length;
    }
    lengths
}

/// Runs `tokens` piece by piece after what `cache` holds; the last token's logits.
fn run(model: &dyn Model, cache: &mut SequenceCache, tokens: &[u32], lengths: &[usize]) -> Tensor {
    let mut rest = tokens;
    let mut last = None;
    for length in lengths {
        let (piece, after) = rest.split_at(*length);
        let positions = Positions::contiguous(cache.next_position(), piece.len());
        let input = ForwardInput::new(piece, &positions, LogitRows::Last);
        last = model.forward(input, cache).unwrap().logits;
        rest = after;
    }
    assert!(rest.is_empty());
    last.unwrap()
}

fn largest(tensor: &Tensor) -> f32 {
    let largest = tensor.abs().unwrap().max_all().unwrap();
    largest.to_scalar::<f32>().unwrap()
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &Tensor, case: &str) {
    let relative = largest(&(found - expected).unwrap()) / largest(expected);
    // Not a number is not close.
    assert!(relative <= TOLERANCE, "{case}: {relative}");
}

#[test]
fn any_split_of_a_prompt_gives_the_same_last_logits() {
    for (name, model) in families() {
        let mut rng = Rng::with_seed(17);
        for case in 0..CASES {
            let tokens = prompt(&mut rng);
            let whole = run(
                model.as_ref(),
                &mut model.new_cache(),
                &tokens,
                &[tokens.len()],
            );
            let lengths = split(&mut rng, tokens.len());
            let cut = run(model.as_ref(), &mut model.new_cache(), &tokens, &lengths);
            assert_close(&cut, &whole, &format!("{name}, case {case}, {lengths:?}"));
        }
    }
}

#[test]
fn going_on_from_a_snapshot_equals_never_having_stopped() {
    for (name, model) in families() {
        let mut rng = Rng::with_seed(29);
        for case in 0..CASES {
            let tokens = prompt(&mut rng);
            let place = rng.usize(1..tokens.len());
            let (before, after) = tokens.split_at(place);
            let (first, second) = (split(&mut rng, before.len()), split(&mut rng, after.len()));
            let case = format!("{name}, case {case}, {first:?} then {second:?}");
            let lengths = [first.clone(), second.clone()].concat();
            let straight = run(model.as_ref(), &mut model.new_cache(), &tokens, &lengths);

            let mut cache = model.new_cache();
            run(model.as_ref(), &mut cache, before, &first);
            let snapshot = cache.snapshot().unwrap();
            assert_eq!(snapshot.token_count(), place);
            // Something else happens to the cache that the snapshot was taken of.
            let other = prompt(&mut rng);
            let other_lengths = split(&mut rng, other.len());
            run(model.as_ref(), &mut cache, &other, &other_lengths);
            for mut cache in [cache, model.new_cache()] {
                cache.restore(&snapshot).unwrap();
                assert_eq!(cache.token_count(), Ok(place), "{case}");
                let again = run(model.as_ref(), &mut cache, after, &second);
                assert_eq!(largest(&(&again - &straight).unwrap()), 0.0, "{case}");
                assert_eq!(cache.token_count(), Ok(tokens.len()), "{case}");
            }
        }
    }
}

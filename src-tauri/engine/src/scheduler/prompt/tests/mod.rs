//! Prompts on their way into the cache: positions, failures, and what is left behind.

mod failures;
mod positions;
mod probe;
mod toy;

use std::{path::Path, sync::Arc, time::Duration};

use candle_core::{DType, Device};
use tokio::sync::mpsc;

use super::*;
use crate::{
    checkpoint::{Checkpoint, LoadOptions},
    request::{GenerationEvent, StaticPrefix, Usage},
    sampling::SamplingParams,
    scheduler::{
        loaded::ModelSpec,
        recovery::Recovery,
        sequence::{Phase, Sequence},
    },
    specprefill::SpecPrefillSettings,
    tokenizer::Tokenizer,
};

fn repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// A tiny model of random weights.
fn tiny(name: &str) -> Box<dyn Model> {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    Checkpoint::open(&repository("tests/fixtures").join(name))
        .unwrap()
        .load(&Device::Cpu, &options)
        .unwrap()
}

/// A model that comes with the app.
fn bundled(name: &str) -> Box<dyn Model> {
    Checkpoint::open(&repository("models/headstart").join(name))
        .unwrap()
        .load(&Device::Cpu, &LoadOptions::default())
        .unwrap()
}

fn spec(key: &str) -> ModelSpec {
    ModelSpec {
        key: key.into(),
        path: key.into(),
        options: LoadOptions::default(),
    }
}

/// What the scheduler knows of a model. The tokenizer is a real one, though none of these models has any.
fn info(model: &dyn Model) -> Arc<ModelInfo> {
    static TOKENIZER: std::sync::OnceLock<Arc<Tokenizer>> = std::sync::OnceLock::new();
    let tokenizer = TOKENIZER.get_or_init(|| {
        let folder = repository("models/headstart/nano-draft");
        Arc::new(Tokenizer::from_model_dir(&folder).unwrap())
    });
    Arc::new(ModelInfo {
        key: "target".into(),
        architecture: "test".into(),
        tokenizer: tokenizer.clone(),
        longest_token_bytes: 128,
        vocab_size: model.vocab_size(),
        context_length: model.context_length(),
        weight_bytes: 0,
        cache_bytes_per_token: model.cache_bytes_per_token(),
        load_time: Duration::ZERO,
    })
}

/// Repeatable tokens, never 0 and never the toy's marked one.
fn tokens(seed: u64, len: usize) -> Vec<u32> {
    use rand::{Rng, SeedableRng};
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| random.random_range(17..60)).collect()
}

fn request(prompt: &[u32], specprefill: SpecPrefillSettings) -> GenerationRequest {
    GenerationRequest {
        specprefill,
        max_tokens: Some(6),
        show_special_tokens: true,
        ..GenerationRequest::new(spec("target"), prompt.to_vec(), SamplingParams::greedy())
    }
}

fn with_static_prefix(request: GenerationRequest, tokens: usize) -> GenerationRequest {
    GenerationRequest {
        static_prefix: StaticPrefix {
            tokens,
            reason: None,
        },
        ..request
    }
}

fn sparse() -> SpecPrefillSettings {
    SpecPrefillSettings {
        enabled: true,
        threshold: 200,
        draft: Some(spec("draft")),
        ..SpecPrefillSettings::default()
    }
}

fn own() -> SpecPrefillSettings {
    SpecPrefillSettings {
        scorer: Scorer::Own,
        draft: None,
        ..sparse()
    }
}

const READY: DraftState = DraftState::Ready {
    context_length: 1 << 20,
};

/// The models of a run, and the tokens of one step.
#[derive(Clone, Copy)]
struct Models<'a> {
    target: &'a dyn Model,
    draft: &'a dyn Model,
    chunk: usize,
}

/// A prompt that is in its cache.
struct Read {
    logits: Vec<f32>,
    run: PromptRun,
    cache: SequenceCache,
}

/// Reads a prompt as the scheduler does.
fn read(models: Models<'_>, stores: &mut Stores, request: &GenerationRequest) -> Read {
    let info = info(models.target);
    let mut cache = models.target.new_cache();
    let mut run = PromptRun::start(request, &info, &mut cache, stores, || READY);
    loop {
        let mut resources = Resources {
            model: models.target,
            draft: Some(models.draft),
            stores,
            chunk: models.chunk,
            contended: false,
        };
        if let Progress::Ready(logits) = run
            .step(request, &mut cache, &mut resources, &mut None)
            .unwrap()
        {
            return Read { logits, run, cache };
        }
    }
}

/// A whole answer.
struct Answer {
    tokens: Vec<u32>,
    usage: Usage,
    recovery: Option<Recovery>,
}

/// Answers a request as the scheduler does, and lets it leave behind what it leaves behind.
fn answer(models: Models<'_>, stores: &mut Stores, request: GenerationRequest) -> Answer {
    let (events, mut stream) = mpsc::unbounded_channel();
    let info = info(models.target);
    let mut sequence = Sequence::new(request, events, info, models.target).unwrap();
    sequence.plan(stores, || READY);
    while sequence.phase() != Phase::Done {
        sequence
            .step(&mut Resources {
                model: models.target,
                draft: Some(models.draft),
                stores,
                chunk: models.chunk,
                contended: false,
            })
            .unwrap();
    }
    let recovery = sequence.leave(stores);
    let (mut tokens, mut finished) = (Vec::new(), None);
    while let Ok(event) = stream.try_recv() {
        match event {
            GenerationEvent::Text { tokens: new, .. } => {
                tokens.extend(new.into_iter().map(|token| token.id))
            }
            GenerationEvent::Finished { usage, .. } => finished = Some(usage),
            GenerationEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    Answer {
        tokens,
        usage: *finished.unwrap(),
        recovery,
    }
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

//! The engine without a server: requests as token ids, answers as token ids.

use std::path::Path;

use headstart_engine::{
    checkpoint::LoadOptions,
    request::{
        FinishReason, GeneratedToken, GenerationEvent, GenerationRequest, GenerationStream, Usage,
    },
    sampling::SamplingParams,
    scheduler::{Engine, EngineOptions, ModelSpec},
};

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// The text.
    pub text: String,
    /// The tokens that were shown.
    pub tokens: Vec<GeneratedToken>,
    /// Why it ended.
    pub reason: FinishReason,
    /// Counts and times.
    pub usage: Usage,
}

impl Answer {
    /// Ids of the shown tokens.
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}

/// An engine on the CPU.
pub fn engine(prefix_cache_bytes: usize) -> Engine {
    Engine::start(EngineOptions {
        prefix_cache_bytes,
        ..EngineOptions::default()
    })
    .unwrap()
}

/// A model by its folder or file.
pub fn spec(path: &Path) -> ModelSpec {
    ModelSpec {
        key: path.display().to_string(),
        path: path.to_path_buf(),
        options: LoadOptions::default(),
    }
}

/// A greedy request.
pub fn greedy(model: &ModelSpec, tokens: &[u32], max_tokens: usize) -> GenerationRequest {
    GenerationRequest {
        max_tokens: Some(max_tokens),
        ..GenerationRequest::new(model.clone(), tokens.to_vec(), SamplingParams::greedy())
    }
}

/// The answer to one request.
pub fn ask(engine: &Engine, request: GenerationRequest) -> Answer {
    wait(engine.submit(request).unwrap())
}

/// The answer to a request that was submitted.
pub fn wait(mut events: GenerationStream) -> Answer {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    while let Some(event) = events.next_blocking() {
        match event {
            GenerationEvent::Text {
                text: piece,
                tokens: more,
            } => {
                text.push_str(&piece);
                tokens.extend(more);
            }
            GenerationEvent::Finished { reason, usage } => {
                return Answer {
                    text,
                    tokens,
                    reason,
                    usage: *usage,
                };
            }
            GenerationEvent::Failed(error) => panic!("{error}"),
            _ => {}
        }
    }
    panic!("the engine stopped in the middle of an answer")
}

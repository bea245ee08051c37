//! What every handler needs: the engine, the library, the settings, and the models' templates.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use axum::http::HeaderValue;
use headstart_engine::{
    checkpoint::{Checkpoint, LoadOptions},
    device::device_name,
    scheduler::{Engine, ModelInfo, ModelSpec},
};
use tokio::sync::Semaphore;

use crate::{
    api::ApiError,
    conversation::template_of,
    defaults::SamplingDefaults,
    library::{Library, ModelEntry},
    prompt::{ChatTemplate, PromptError, RenderRequest},
    settings::Settings,
};

type CachedTemplate = (SystemTime, Option<Arc<ChatTemplate>>);

struct Inner {
    engine: Engine,
    library: Arc<Library>,
    settings: Settings,
    /// Compiled templates by model path, kept while the model's time stamp stands.
    templates: Mutex<HashMap<PathBuf, CachedTemplate>>,
    /// Turns for tokenizing, which is heavy work for long prompts.
    tokenizing: Arc<Semaphore>,
}

/// Prompts that are tokenized at once.
const TOKENIZING_AT_ONCE: usize = 2;

/// Shared by all handlers; cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Inner>);

impl AppState {
    /// Joins the parts.
    pub fn new(engine: Engine, library: Library, settings: Settings) -> Self {
        Self(Arc::new(Inner {
            engine,
            library: Arc::new(library),
            settings,
            templates: Mutex::default(),
            tokenizing: Arc::new(Semaphore::new(TOKENIZING_AT_ONCE)),
        }))
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.0.engine
    }

    /// The model folders.
    pub fn library(&self) -> &Arc<Library> {
        &self.0.library
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.0.settings
    }

    /// Where models are computed.
    pub fn device_name(&self) -> &'static str {
        device_name(&self.0.engine.options().device)
    }

    /// True when the settings allow web pages of this origin.
    pub fn origin_allowed(&self, origin: &HeaderValue) -> bool {
        self.0.settings.allowed_origins.iter().any(|allowed| {
            allowed == "*" || allowed.trim_end_matches('/').as_bytes() == origin.as_bytes()
        })
    }

    /// Finds a usable model by name.
    ///
    /// # Errors
    /// 404 listing what there is, or with the reason why the model cannot be used.
    pub async fn find_model(&self, name: &str) -> Result<ModelEntry, ApiError> {
        let library = self.0.library.clone();
        let name = name.to_string();
        tokio::task::spawn_blocking(move || library.find(&name))
            .await
            .map_err(|_| ApiError::internal("The model folders could not be read."))?
            .map_err(ApiError::from)
    }

    /// What the engine needs to load the model.
    pub fn model_spec(&self, entry: &ModelEntry) -> ModelSpec {
        ModelSpec {
            key: entry.id.clone(),
            path: entry.path.clone(),
            options: LoadOptions::default(),
        }
    }

    /// Loads the model, or finds it loaded.
    ///
    /// # Errors
    /// 500 with the reason when it cannot be loaded.
    pub async fn load(&self, entry: &ModelEntry) -> Result<Arc<ModelInfo>, ApiError> {
        Ok(self.0.engine.load(self.model_spec(entry)).await?)
    }

    /// The sampling that the model's maker recommends, else ours.
    pub fn sampling_defaults(&self, entry: &ModelEntry) -> SamplingDefaults {
        SamplingDefaults::of_model(&entry.path)
    }

    /// Renders a conversation with the model's own template.
    ///
    /// # Errors
    /// 400 when the model has no template or the template refuses the conversation, with its own message.
    pub async fn render_chat(
        &self,
        entry: &ModelEntry,
        request: RenderRequest,
    ) -> Result<String, ApiError> {
        let state = self.clone();
        let entry = entry.clone();
        // Templates are programs: a slow one must not hold up other connections.
        tokio::task::spawn_blocking(move || {
            let template = state.template(&entry)?.ok_or_else(|| {
                ApiError::bad_field(
                    "model",
                    format!(
                        "The model {} has no chat template, so it cannot answer conversations. Use /v1/completions.",
                        entry.id
                    ),
                )
            })?;
            template.render(&request).map_err(ApiError::from)
        })
        .await
        .map_err(|_| ApiError::internal("The chat template could not be rendered; the log has the details."))?
    }

    fn template(&self, entry: &ModelEntry) -> Result<Option<Arc<ChatTemplate>>, PromptError> {
        let known = self
            .0
            .templates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&entry.path)
            .filter(|(modified, _)| *modified == entry.modified)
            .map(|(_, template)| template.clone());
        if let Some(template) = known {
            return Ok(template);
        }
        let template = match Checkpoint::open(&entry.path) {
            Ok(checkpoint) => template_of(&checkpoint)?.map(Arc::new),
            Err(error) => {
                return Err(PromptError::InvalidFile {
                    path: entry.path.clone(),
                    what: error.to_string(),
                });
            }
        };
        self.0
            .templates
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(entry.path.clone(), (entry.modified, template.clone()));
        Ok(template)
    }

    /// Token ids of a text; `add_special_tokens` adds the model's beginning-of-text token where it wants one.
    ///
    /// # Errors
    /// 400 when the text cannot fit the context whatever its tokens are, or the tokenizer refuses it.
    pub async fn tokenize(
        &self,
        model: &Arc<ModelInfo>,
        text: String,
        add_special_tokens: bool,
    ) -> Result<Vec<u32>, ApiError> {
        // Tokenizing cannot be interrupted: a text that is far too long is refused before it takes seconds and gigabytes.
        let at_least = text.len() / model.longest_token_bytes;
        if at_least > model.context_length {
            return Err(ApiError::bad_request(format!(
                "The prompt has at least {at_least} tokens, but this model's context holds {}. \
                 Shorten the conversation or choose a model with a larger context.",
                model.context_length
            ))
            .with_code("context_length_exceeded"));
        }
        // The turn goes along with the work, which goes on when the client is gone.
        let turn = self
            .0
            .tokenizing
            .clone()
            .acquire_owned()
            .await
            .map_err(|_| ApiError::internal("The server is stopping."))?;
        let tokenizer = model.tokenizer.clone();
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            tokenizer.encode(&text, add_special_tokens)
        })
        .await
        .map_err(|_| ApiError::internal("The tokenizer failed; the log has the details."))?
        .map_err(|error| {
            ApiError::bad_request(format!("The prompt could not be tokenized: {error}."))
        })
    }
}

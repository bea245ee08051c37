//! What every handler needs: the engine, the library, the settings, and the models' templates.

use std::{
    collections::{HashMap, HashSet},
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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{
    api::ApiError,
    conversation::template_of,
    defaults::SamplingDefaults,
    library::{Library, ModelEntry},
    prompt::{ChatTemplate, NoStaticPrefix, PreparedPrompt, PromptError, RenderRequest},
    settings::{RequestSettings, Resolved, Settings},
};

type CachedTemplate = (SystemTime, Option<Arc<ChatTemplate>>);

struct Inner {
    engine: Engine,
    library: Arc<Library>,
    settings: Settings,
    /// Compiled templates by model path, kept while the model's time stamp stands.
    templates: Mutex<HashMap<PathBuf, CachedTemplate>>,
    /// What the log was told about the settings; once is enough.
    warned: Mutex<HashSet<String>>,
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
            warned: Mutex::default(),
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

    /// What a request to this model is answered with: its own fields, then the model's settings, then the defaults.
    ///
    /// # Errors
    /// 400 naming the field that is out of its range or names an unusable draft.
    pub async fn resolve(
        &self,
        entry: &ModelEntry,
        request: RequestSettings,
    ) -> Result<Resolved, ApiError> {
        let state = self.clone();
        let id = entry.id.clone();
        // A draft is looked for in the model folders.
        let resolved = tokio::task::spawn_blocking(move || {
            let find = |name: &str| {
                let found = state.library().find(name);
                found
                    .map(|entry| state.model_spec(&entry))
                    .map_err(|error| error.to_string())
            };
            state.settings().resolve(&id, &request, find)
        })
        .await
        .map_err(|_| {
            ApiError::internal("The settings could not be applied; the log has the details.")
        })?
        .map_err(|error| ApiError::bad_field(error.field, error.message))?;
        if let Some(warning) = &resolved.warning
            && self
                .0
                .warned
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(warning.clone())
        {
            tracing::warn!("{warning}");
        }
        Ok(resolved)
    }

    /// Renders a conversation with the model's own template.
    ///
    /// # Errors
    /// 400 when the model has no template or the template refuses the conversation, with its own message.
    pub async fn render_chat(
        &self,
        entry: &ModelEntry,
        request: Arc<RenderRequest>,
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
        let turn = self.tokenizing_turn().await?;
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

    async fn tokenizing_turn(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let turns = self.0.tokenizing.clone();
        turns
            .acquire_owned()
            .await
            .map_err(|_| ApiError::internal("The server is stopping."))
    }

    /// Finds what SpecPrefill must not touch in the prompt `tokens` of the conversation `request`, where it may want to.
    ///
    /// # Errors
    /// 500 when the work panics.
    pub async fn prepare_chat(
        &self,
        entry: &ModelEntry,
        model: &Arc<ModelInfo>,
        request: Arc<RenderRequest>,
        tokens: Vec<u32>,
        settings: &Resolved,
    ) -> Result<PreparedPrompt, ApiError> {
        if let Some(reason) = PreparedPrompt::not_needed(&tokens, &settings.specprefill) {
            return Ok(PreparedPrompt::without_boundaries(tokens, reason));
        }
        let turn = self.tokenizing_turn().await?;
        let (state, entry, model) = (self.clone(), entry.clone(), model.clone());
        let protect = settings.protect_last_messages;
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            match state.template(&entry) {
                Ok(Some(template)) => PreparedPrompt::of_conversation(
                    tokens,
                    &request,
                    &template,
                    &model.tokenizer,
                    protect,
                ),
                // The prompt was rendered a moment ago; the model's files may have changed since.
                _ => PreparedPrompt::without_boundaries(tokens, NoStaticPrefix::NoTemplate),
            }
        })
        .await
        .map_err(|_| {
            ApiError::internal("The prompt could not be prepared; the log has the details.")
        })
    }
}

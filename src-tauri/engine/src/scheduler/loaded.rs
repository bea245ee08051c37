//! The models that the engine thread holds.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use candle_core::Device;

use super::draft::Draft;
use crate::{
    checkpoint::{Checkpoint, LoadOptions},
    error::{EngineError, ModelError},
    models::Model,
    mtp::{DraftHead, DraftHeads, MtpHead, controller::ModelMemory},
    specprefill::DraftState,
    tokenizer::Tokenizer,
};

/// Which model a request wants: its name and where it lies.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelSpec {
    /// Unique name.
    pub key: String,
    /// Folder or file.
    pub path: PathBuf,
    /// How to place it.
    pub options: LoadOptions,
}

/// What is known of a loaded model, shared with the other threads.
#[derive(Debug)]
pub struct ModelInfo {
    /// Unique name.
    pub key: String,
    /// `model_type` or `general.architecture`.
    pub architecture: String,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The most bytes of text that one token stands for.
    pub longest_token_bytes: usize,
    /// Width of the logits.
    pub vocab_size: usize,
    /// The most tokens a sequence may have.
    pub context_length: usize,
    /// Bytes of the weights on the device.
    pub weight_bytes: usize,
    /// Bytes that each cached token takes.
    pub cache_bytes_per_token: usize,
    /// How long loading took.
    pub load_time: Duration,
}

/// What the requests of one model hand on to each other about MTP.
#[derive(Debug, Default)]
pub(super) struct MtpShared {
    /// What the last request learned of depths and times.
    pub(super) memory: Option<ModelMemory>,
    /// Which part of the vocabulary is drafted from; `None` until it is first wanted.
    pub(super) heads: Option<DraftHeads>,
    /// Where token counts are kept.
    folder: Option<PathBuf>,
}

impl MtpShared {
    /// The rows of the output head that a request drafts with.
    pub(super) fn draft_head(
        &mut self,
        head: &MtpHead,
        info: &ModelInfo,
        prompt: &[u32],
    ) -> Result<DraftHead, EngineError> {
        let heads = self.heads.get_or_insert_with(|| {
            let file = self.folder.as_ref().map(|folder| {
                let fingerprint = info.tokenizer.fingerprint();
                let name = format!("token-counts-{fingerprint:016x}.bin");
                (folder.join(name), fingerprint)
            });
            let always = info.tokenizer.stop_ids().to_vec();
            DraftHeads::new(info.vocab_size, always, file)
        });
        heads.for_request(head, prompt)
    }
}

/// A model on the device.
#[derive(Debug)]
pub(super) struct LoadedModel {
    pub(super) model: Box<dyn Model>,
    pub(super) mtp: MtpShared,
    pub(super) info: Arc<ModelInfo>,
    draft: Option<Draft>,
    last_used: Instant,
}

impl LoadedModel {
    /// Its draft model `spec`, if that is loaded and usable. Another request may have put another one in its place.
    pub(super) fn draft(&self, spec: &ModelSpec) -> Option<&dyn Model> {
        self.draft.as_ref().filter(|draft| draft.is(spec))?.model()
    }

    /// What is known of the draft model `spec`, which is loaded first if it is not the one that is there.
    pub(super) fn ensure_draft(&mut self, spec: &ModelSpec, device: &Device) -> DraftState {
        if self.draft.as_ref().is_none_or(|draft| !draft.is(spec)) {
            // The old one goes before the new one comes: both together may not fit.
            self.draft = None;
            self.draft = Some(Draft::load(spec, &self.info.tokenizer, device));
        }
        self.draft
            .as_ref()
            .map_or(DraftState::Missing, Draft::state)
    }
}

/// All loaded models, at most `limit` unless more are in use at once.
#[derive(Debug)]
pub(super) struct LoadedModels {
    device: Device,
    limit: usize,
    state_folder: Option<PathBuf>,
    models: HashMap<String, LoadedModel>,
}

impl LoadedModels {
    pub(super) fn new(device: Device, limit: usize, state_folder: Option<PathBuf>) -> Self {
        Self {
            device,
            limit,
            state_folder,
            models: HashMap::new(),
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&LoadedModel> {
        self.models.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut LoadedModel> {
        self.models.get_mut(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &String> {
        self.models.keys()
    }

    pub(super) fn remove(&mut self, key: &str) -> bool {
        self.models.remove(key).is_some()
    }

    /// Returns the loaded model, loading it first if needed; then the least recently used models that are not `in_use` make room.
    pub(super) fn ensure(
        &mut self,
        spec: &ModelSpec,
        in_use: impl Fn(&str) -> bool,
    ) -> Result<Arc<ModelInfo>, EngineError> {
        if let Some(loaded) = self.models.get_mut(&spec.key) {
            loaded.last_used = Instant::now();
            return Ok(loaded.info.clone());
        }
        while self.models.len() >= self.limit {
            let idle = self
                .models
                .iter()
                .filter(|(key, _)| !in_use(key))
                .min_by_key(|(_, loaded)| loaded.last_used)
                .map(|(key, _)| key.clone());
            let Some(key) = idle else { break };
            tracing::info!(model = key, "unloading the least recently used model");
            self.models.remove(&key);
        }
        let mut loaded =
            load(spec, &self.device).map_err(|error| EngineError::Load(error.to_string()))?;
        loaded.mtp.folder.clone_from(&self.state_folder);
        let info = loaded.info.clone();
        self.models.insert(spec.key.clone(), loaded);
        Ok(info)
    }
}

/// Reads a model's files.
pub(super) fn load(spec: &ModelSpec, device: &Device) -> Result<LoadedModel, ModelError> {
    let started = Instant::now();
    let checkpoint = Checkpoint::open(&spec.path)?;
    let architecture = checkpoint.summary()?.architecture;
    let tokenizer = checkpoint.tokenizer()?;
    let model = checkpoint.load(device, &spec.options)?;
    if tokenizer.vocab_size() > model.vocab_size() {
        // Ids past the embedding would fail in the middle of a request; padded embeddings (the other way round) are common.
        tracing::warn!(
            model = spec.key,
            tokenizer = tokenizer.vocab_size(),
            embedding = model.vocab_size(),
            "the tokenizer has more entries than the model's embedding"
        );
    }
    let info = Arc::new(ModelInfo {
        key: spec.key.clone(),
        architecture,
        longest_token_bytes: tokenizer.longest_token_bytes(),
        tokenizer: Arc::new(tokenizer),
        vocab_size: model.vocab_size(),
        context_length: model.context_length(),
        weight_bytes: model.weight_bytes(),
        cache_bytes_per_token: model.cache_bytes_per_token(),
        load_time: started.elapsed(),
    });
    tracing::info!(
        model = spec.key,
        seconds = info.load_time.as_secs_f64(),
        mebibytes = info.weight_bytes >> 20,
        "model loaded"
    );
    Ok(LoadedModel {
        model,
        info,
        draft: None,
        mtp: MtpShared::default(),
        last_used: Instant::now(),
    })
}

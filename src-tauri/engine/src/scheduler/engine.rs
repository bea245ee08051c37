//! The handle to the engine thread.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc as std_mpsc,
    },
    thread::JoinHandle,
};

use candle_core::Device;
use tokio::sync::{mpsc, oneshot};

use super::{
    loaded::{ModelInfo, ModelSpec},
    worker::Worker,
};
use crate::{
    error::EngineError,
    request::{GenerationEvent, GenerationRequest, GenerationStream},
};

/// Limits of the engine.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Where tensors live.
    pub device: Device,
    /// Prompt tokens of one prefill step.
    pub prefill_chunk: usize,
    /// Requests that run at once; more wait.
    pub max_running: usize,
    /// Requests that wait at most; more are refused as [`EngineError::Busy`].
    pub max_waiting: usize,
    /// Models held at once, unless more are in use.
    pub max_loaded_models: usize,
    /// Bytes for the beginnings of earlier prompts, those of draft models included; 0 keeps none.
    pub prefix_cache_bytes: usize,
    /// A folder for what is learned from the user's traffic and helps later runs; `None` keeps nothing. It must exist.
    pub state_folder: Option<PathBuf>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            device: Device::Cpu,
            prefill_chunk: 512,
            max_running: 8,
            max_waiting: 64,
            max_loaded_models: 2,
            prefix_cache_bytes: 1 << 30,
            state_folder: None,
        }
    }
}

/// The state of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelState {
    /// Its weights are being read.
    Loading,
    /// It can answer at once.
    Loaded,
}

/// What the engine is doing.
#[derive(Debug, Clone, Default)]
pub struct EngineStatus {
    /// Models that are loading or loaded.
    pub models: BTreeMap<String, ModelState>,
    /// Requests being answered.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
}

/// What other threads send to the engine thread.
#[derive(Debug)]
pub(super) enum Command {
    Generate {
        request: Box<GenerationRequest>,
        events: mpsc::UnboundedSender<GenerationEvent>,
    },
    Load {
        spec: ModelSpec,
        reply: oneshot::Sender<Result<Arc<ModelInfo>, EngineError>>,
    },
    Unload {
        key: String,
        reply: oneshot::Sender<bool>,
    },
    Stop,
}

/// What the engine thread tells all others without being asked.
#[derive(Debug, Default)]
pub(super) struct Shared {
    models: Mutex<BTreeMap<String, ModelState>>,
    pub(super) running: AtomicUsize,
    pub(super) waiting: AtomicUsize,
    /// Smoothed duration of a request, in milliseconds, for `Retry-After`.
    pub(super) typical_millis: AtomicU64,
}

impl Shared {
    pub(super) fn set_model(&self, key: &str, state: Option<ModelState>) {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        match state {
            Some(state) => models.insert(key.to_string(), state),
            None => models.remove(key),
        };
    }

    pub(super) fn set_loaded<'a>(&self, keys: impl Iterator<Item = &'a String>) {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        *models = keys.map(|key| (key.clone(), ModelState::Loaded)).collect();
    }
}

/// The engine: a thread, its queue and its models. Dropping the last handle stops the thread after its present step.
#[derive(Debug)]
pub struct Engine {
    commands: std_mpsc::Sender<Command>,
    shared: Arc<Shared>,
    options: EngineOptions,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts the engine thread.
    ///
    /// # Errors
    /// When the system refuses to start a thread.
    pub fn start(options: EngineOptions) -> std::io::Result<Self> {
        let (commands, inbox) = std_mpsc::channel();
        let shared = Arc::new(Shared::default());
        let worker = Worker::new(inbox, shared.clone(), options.clone());
        let thread = std::thread::Builder::new()
            .name("headstart-engine".into())
            .spawn(move || worker.run())?;
        Ok(Self {
            commands,
            shared,
            options,
            thread: Some(thread),
        })
    }

    /// The limits that it was started with.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// What it is doing.
    pub fn status(&self) -> EngineStatus {
        EngineStatus {
            models: self
                .shared
                .models
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            running: self.shared.running.load(Ordering::Relaxed),
            waiting: self.shared.waiting.load(Ordering::Relaxed),
        }
    }

    /// Loads a model, or finds it loaded.
    ///
    /// # Errors
    /// When it cannot be loaded or the engine has stopped.
    pub async fn load(&self, spec: ModelSpec) -> Result<Arc<ModelInfo>, EngineError> {
        self.send_load(spec)?
            .await
            .unwrap_or(Err(EngineError::Stopped))
    }

    /// As [`Engine::load`], for threads outside any async runtime.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn load_blocking(&self, spec: ModelSpec) -> Result<Arc<ModelInfo>, EngineError> {
        self.send_load(spec)?
            .blocking_recv()
            .unwrap_or(Err(EngineError::Stopped))
    }

    fn send_load(
        &self,
        spec: ModelSpec,
    ) -> Result<oneshot::Receiver<Result<Arc<ModelInfo>, EngineError>>, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(Command::Load { spec, reply })
            .map_err(|_| EngineError::Stopped)?;
        Ok(answer)
    }

    /// Unloads a model; requests that use it finish first. Returns whether it was loaded.
    ///
    /// # Errors
    /// When the engine has stopped.
    pub async fn unload(&self, key: &str) -> Result<bool, EngineError> {
        let (reply, answer) = oneshot::channel();
        self.commands
            .send(Command::Unload {
                key: key.to_string(),
                reply,
            })
            .map_err(|_| EngineError::Stopped)?;
        answer.await.map_err(|_| EngineError::Stopped)
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`EngineError::Busy`] when the queue is full, [`EngineError::InvalidRequest`] for an empty prompt.
    pub fn submit(&self, request: GenerationRequest) -> Result<GenerationStream, EngineError> {
        if request.prompt_tokens.is_empty() {
            return Err(EngineError::InvalidRequest("The prompt is empty.".into()));
        }
        let limit = self.options.max_waiting;
        let counted =
            self.shared
                .waiting
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |waiting| {
                    (waiting < limit).then_some(waiting + 1)
                });
        if let Err(waiting) = counted {
            let typical = self.shared.typical_millis.load(Ordering::Relaxed).max(1000);
            let seconds =
                typical * (waiting as u64 + 1) / (self.options.max_running.max(1) as u64 * 1000);
            return Err(EngineError::Busy {
                waiting,
                retry_after_seconds: seconds.clamp(1, 60),
            });
        }
        let (events, stream) = mpsc::unbounded_channel();
        let command = Command::Generate {
            request: Box::new(request),
            events,
        };
        if self.commands.send(command).is_err() {
            self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(EngineError::Stopped);
        }
        Ok(GenerationStream::new(stream))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The thread may be gone already; then there is nobody to tell.
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the engine thread had panicked");
        }
    }
}

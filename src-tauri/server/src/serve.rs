//! Starting and stopping the server: used by the command line and by the app alike.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use headstart_engine::{
    device::DeviceChoice,
    scheduler::{Engine, EngineOptions},
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use crate::{api, library::Library, paths, settings::Settings, state::AppState};

/// What to start.
#[derive(Debug, Clone, Default)]
pub struct ServeOptions {
    /// The settings.
    pub settings: Settings,
    /// Model folders that are looked through before those of the settings and the app's own.
    pub model_dirs: Vec<PathBuf>,
}

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Listening beyond this machine needs a key.
    #[error(
        "refusing to listen on {0} without a key: everyone in the network could use this machine's models. Set api_key in the settings or HEADSTART_API_KEY, or listen on 127.0.0.1."
    )]
    KeyNeeded(IpAddr),
    /// The address cannot be taken.
    #[error(
        "cannot listen on {address}: {source}. Another program may use this port; choose another with --port, or 0 for any free one."
    )]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The device cannot be used.
    #[error("{0}")]
    Device(String),
    /// The engine thread could not be started.
    #[error("cannot start the engine: {0}")]
    Engine(std::io::Error),
}

/// A server that answers until it is shut down.
#[derive(Debug)]
pub struct RunningServer {
    /// Where it listens.
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<std::io::Result<()>>,
}

impl RunningServer {
    /// The dashboard's address.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops listening, cancels what is being answered, and waits until the engine thread is gone.
    pub async fn shutdown(mut self) {
        if let Some(stop) = self.stop.take() {
            // The task may have ended by itself.
            let _ = stop.send(());
        }
        self.wait().await;
    }

    /// Waits until the server ends by itself.
    pub async fn wait(&mut self) {
        match (&mut self.task).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the server ended"),
            Err(error) => tracing::error!(%error, "the server's task failed"),
        }
    }
}

/// The model folders in their order: those given, those of the settings, the app's own.
pub fn model_folders(options: &ServeOptions) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = Vec::new();
    let all = options
        .model_dirs
        .iter()
        .chain(&options.settings.model_dirs)
        .cloned()
        .chain(paths::models_dir());
    for folder in all {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// Starts the engine and the server on the current tokio runtime.
///
/// # Errors
/// When the address is not allowed or taken, or the device cannot be used.
pub async fn start(options: ServeOptions) -> Result<RunningServer, ServeError> {
    let folders = model_folders(&options);
    let settings = options.settings;
    if !settings.host.is_loopback() && settings.api_key.as_deref().is_none_or(str::is_empty) {
        return Err(ServeError::KeyNeeded(settings.host));
    }
    let device: DeviceChoice = settings.device.parse().map_err(ServeError::Device)?;
    let device = device.open().map_err(ServeError::Device)?;
    let address = SocketAddr::new(settings.host, settings.port);
    let listener = TcpListener::bind(address)
        .await
        .map_err(|source| ServeError::Bind { address, source })?;
    let address = listener
        .local_addr()
        .map_err(|source| ServeError::Bind { address, source })?;
    let engine = Engine::start(EngineOptions {
        device,
        max_running: settings.max_running.max(1),
        max_waiting: settings.max_waiting,
        max_loaded_models: settings.max_loaded_models,
        prefix_cache_bytes: settings.prefix_cache_mib << 20,
        state_folder: paths::state_dir(),
        ..EngineOptions::default()
    })
    .map_err(ServeError::Engine)?;
    let router = api::router(AppState::new(engine, Library::new(folders), settings));
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(async move {
        let serving = axum::serve(listener, router).into_future();
        tokio::select! {
            result = serving => result,
            // Open streams would hold a graceful shutdown up for as long as a model talks: they are cut.
            _ = stopped => Ok(()),
        }
    });
    Ok(RunningServer {
        address,
        stop: Some(stop),
        task,
    })
}

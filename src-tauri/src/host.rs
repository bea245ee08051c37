//! The server inside the app: started and stopped on Tauri's own tokio runtime, its state kept for the menu.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use headstart_server::{
    paths,
    serve::{self, RunningServer, ServeOptions},
    settings::Settings,
};

use crate::menu::ServerState;

/// How long open requests may take to end when the app quits.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// Starts a server with the settings as they are in the file now, so that a mistake in them can be mended while the app
/// runs.
async fn start_server() -> Result<RunningServer, Box<dyn std::error::Error + Send + Sync>> {
    let settings = match paths::settings_file() {
        Some(path) => Settings::read(&path)?,
        None => Settings::default(),
    };
    Ok(serve::start(ServeOptions {
        settings,
        model_dirs: Vec::new(),
    })
    .await?)
}

/// Owns the running server. All methods may be called from any thread.
pub struct Host {
    on_change: Box<dyn Fn(&ServerState) + Send + Sync>,
    inner: Mutex<Inner>,
}

struct Inner {
    state: ServerState,
    server: Option<RunningServer>,
}

impl Host {
    /// A host that has not started its server yet. `on_change` is told every new state, outside any lock.
    pub fn new(on_change: impl Fn(&ServerState) + Send + Sync + 'static) -> Self {
        let inner = Inner {
            state: ServerState::Stopped,
            server: None,
        };
        Self {
            on_change: Box::new(on_change),
            inner: Mutex::new(inner),
        }
    }

    /// What the server is doing.
    pub fn state(&self) -> ServerState {
        self.lock().state.clone()
    }

    /// Starts a server that is down. Does nothing while one is up or changing.
    pub async fn start(&self) {
        {
            let mut inner = self.lock();
            if !matches!(inner.state, ServerState::Stopped | ServerState::Failed(_)) {
                return;
            }
            inner.state = ServerState::Starting;
        }
        (self.on_change)(&ServerState::Starting);
        let state = match start_server().await {
            Ok(server) => {
                let state = ServerState::Running(server.address);
                tracing::info!(address = %server.address, "serving");
                self.lock().server = Some(server);
                state
            }
            Err(error) => {
                tracing::error!(%error, "the server could not start");
                ServerState::Failed(error.to_string())
            }
        };
        self.change(state);
    }

    /// Stops a server that is up. Does nothing while it is down or changing.
    pub async fn stop(&self) {
        let server = {
            let mut inner = self.lock();
            let Some(server) = inner.server.take() else {
                return;
            };
            inner.state = ServerState::Stopping;
            server
        };
        (self.on_change)(&ServerState::Stopping);
        if tokio::time::timeout(SHUTDOWN_LIMIT, server.shutdown())
            .await
            .is_err()
        {
            tracing::warn!(
                "the server did not stop within {} s",
                SHUTDOWN_LIMIT.as_secs()
            );
        }
        self.change(ServerState::Stopped);
    }

    /// Starts or stops, whichever the state allows.
    pub async fn toggle(&self) {
        match self.state() {
            ServerState::Running(_) => self.stop().await,
            _ => self.start().await,
        }
    }

    fn change(&self, state: ServerState) {
        self.lock().state = state.clone();
        (self.on_change)(&state);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic elsewhere leaves nothing half-done here: every change is one assignment.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The app's own folders.

use std::path::PathBuf;

use directories::ProjectDirs;

fn project() -> Option<ProjectDirs> {
    ProjectDirs::from("ai", "headstart", "Headstart")
}

/// The folder that the app's own models lie in: `models` under the platform's data folder.
pub fn models_dir() -> Option<PathBuf> {
    project().map(|dirs| dirs.data_dir().join("models"))
}

/// The settings file: `settings.toml` under the platform's configuration folder.
pub fn settings_file() -> Option<PathBuf> {
    project().map(|dirs| dirs.config_dir().join("settings.toml"))
}

/// A folder for what the engine learns from the user's traffic, made if it is not there; `None` when it cannot be.
pub fn state_dir() -> Option<PathBuf> {
    let folder = project()?.data_local_dir().join("state");
    match std::fs::create_dir_all(&folder) {
        Ok(()) => Some(folder),
        Err(error) => {
            tracing::warn!(folder = %folder.display(), %error, "nothing can be kept for later runs");
            None
        }
    }
}

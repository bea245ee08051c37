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

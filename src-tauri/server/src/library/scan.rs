//! Looking through one folder: `name`, `org/name`, single `.gguf` files at either level and inside a model's folder, split GGUFs as one.

use std::{
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::modified;

/// Something that looks like a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) id: String,
    pub(super) path: PathBuf,
    pub(super) modified: SystemTime,
    /// Why it cannot be one, when that shows from the names alone.
    pub(super) problem: Option<String>,
}

/// Levels of folders below a model folder: `org/name`.
const DEPTH: usize = 2;

/// All models below `root`, in no particular order. A folder that cannot be read holds none.
pub(super) fn scan(root: &Path) -> Vec<Found> {
    let mut found = Vec::new();
    walk(root, "", DEPTH, &mut found);
    found
}

fn walk(folder: &Path, prefix: &str, depth: usize, found: &mut Vec<Found>) {
    let mut names: Vec<(String, PathBuf)> = match std::fs::read_dir(folder) {
        Ok(entries) => entries
            .flatten()
            .map(|entry| {
                (
                    entry.file_name().to_string_lossy().into_owned(),
                    entry.path(),
                )
            })
            .filter(|(name, _)| !name.starts_with('.'))
            .collect(),
        Err(error) => {
            if !prefix.is_empty() || error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(folder = %folder.display(), %error, "cannot read a model folder");
            }
            return;
        }
    };
    names.sort();
    for (name, path) in names {
        let id = if prefix.is_empty() {
            name.clone()
        } else {
            format!("{prefix}/{name}")
        };
        if path.is_dir() {
            if looks_like_a_checkpoint(&path) {
                found.push(checkpoint_folder(id, path));
            } else if depth > 0 {
                walk(&path, &id, depth - 1, found);
            }
        } else if let Some(stem) = id.strip_suffix(".gguf") {
            match shard(stem) {
                // Image encoders come as a second file beside the model.
                _ if name.to_lowercase().contains("mmproj") => {}
                Some((base, 1)) => found.push(file(base.to_string(), path)),
                Some(_) => {}
                None => found.push(file(stem.to_string(), path)),
            }
        }
    }
}

/// Base name and number of a shard `base-00001-of-00003`.
fn shard(stem: &str) -> Option<(&str, u32)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (base, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (digits(count) && digits(number)).then(|| Some((base, number.parse().ok()?)))?
}

fn looks_like_a_checkpoint(folder: &Path) -> bool {
    if folder.join("config.json").is_file() {
        return true;
    }
    let Ok(entries) = std::fs::read_dir(folder) else {
        return false;
    };
    entries.flatten().any(|entry| {
        entry
            .file_name()
            .to_string_lossy()
            .ends_with(".safetensors")
    })
}

fn checkpoint_folder(id: String, path: PathBuf) -> Found {
    let config = path.join("config.json");
    let problem = if config.is_file() {
        None
    } else {
        Some(format!(
            "{} is missing: the download is incomplete",
            config.display()
        ))
    };
    let newest = std::fs::read_dir(&path)
        .map(|entries| entries.flatten().map(|entry| modified(&entry.path())).max())
        .ok()
        .flatten()
        .unwrap_or(SystemTime::UNIX_EPOCH);
    Found {
        id,
        modified: newest.max(modified(&path)),
        path,
        problem,
    }
}

fn file(id: String, path: PathBuf) -> Found {
    Found {
        id,
        modified: modified(&path),
        path,
        problem: None,
    }
}

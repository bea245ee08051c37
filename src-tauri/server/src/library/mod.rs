//! The models on this machine: what lies in the model folders, and why something there cannot be used.

mod scan;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use headstart_engine::checkpoint::{Checkpoint, CheckpointSummary};

/// One model found in a folder.
#[derive(Debug, Clone)]
pub struct ModelEntry {
    /// Name for the API: the path below its folder, without `.gguf`.
    pub id: String,
    /// Folder or file.
    pub path: PathBuf,
    /// When it was last changed.
    pub modified: SystemTime,
    /// What it is, or why it cannot be used.
    pub status: Result<Arc<CheckpointSummary>, String>,
}

/// Why a name is not a usable model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LookupError {
    /// No such model.
    Unknown {
        /// What was asked for.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// Several models end in this name.
    Ambiguous(Vec<String>),
    /// It is there but cannot be used: the reason.
    Broken {
        /// Its full name.
        id: String,
        /// Why.
        reason: String,
    },
}

impl std::fmt::Display for LookupError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown { name, known } if known.is_empty() => {
                write!(f, "there is no model \"{name}\", nor any other")
            }
            Self::Unknown { name, known } => write!(
                f,
                "there is no model \"{name}\"; available: {}",
                known.join(", ")
            ),
            Self::Ambiguous(ids) => {
                write!(f, "several models have this name: {}", ids.join(", "))
            }
            Self::Broken { id, reason } => write!(f, "the model {id} cannot be used: {reason}"),
        }
    }
}

impl std::error::Error for LookupError {}

type Inspected = Result<Arc<CheckpointSummary>, String>;

/// The model folders and what was found in them.
#[derive(Debug, Default)]
pub struct Library {
    folders: Vec<PathBuf>,
    /// Header inspections by path, kept while the file's time stamp stands.
    inspected: Mutex<HashMap<PathBuf, (SystemTime, Inspected)>>,
}

impl Library {
    /// A library over `folders`, the first found of two equal names winning.
    pub fn new(folders: Vec<PathBuf>) -> Self {
        Self {
            folders,
            inspected: Mutex::default(),
        }
    }

    /// The folders.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Looks through the folders now. Only headers of new or changed files are read.
    pub fn entries(&self) -> Vec<ModelEntry> {
        let mut entries: Vec<ModelEntry> = Vec::new();
        for folder in &self.folders {
            for found in scan::scan(folder) {
                if entries.iter().any(|entry| entry.id == found.id) {
                    continue;
                }
                let status = match found.problem {
                    Some(problem) => Err(problem),
                    None => self.inspect(&found.path, found.modified),
                };
                entries.push(ModelEntry {
                    id: found.id,
                    path: found.path,
                    modified: found.modified,
                    status,
                });
            }
        }
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        entries
    }

    fn inspect(&self, path: &Path, modified: SystemTime) -> Inspected {
        let known = self
            .inspected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(path)
            .filter(|(at, _)| *at == modified)
            .map(|(_, status)| status.clone());
        if let Some(status) = known {
            return status;
        }
        let status = Checkpoint::open(path)
            .and_then(|checkpoint| {
                let summary = checkpoint.summary()?;
                checkpoint.require_tokenizer()?;
                Ok(summary)
            })
            .map(Arc::new)
            .map_err(|e| e.to_string());
        self.inspected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(path.to_path_buf(), (modified, status.clone()));
        status
    }

    /// Finds a usable model by its name: the whole id, or its last part where that is unique; letters' case does not matter.
    ///
    /// # Errors
    /// When there is none, several, or it cannot be used.
    pub fn find(&self, name: &str) -> Result<ModelEntry, LookupError> {
        let entries = self.entries();
        let wanted = normalized(name);
        let by = |matches: &dyn Fn(&str) -> bool| -> Vec<&ModelEntry> {
            entries
                .iter()
                .filter(|entry| matches(&normalized(&entry.id)))
                .collect()
        };
        let exact = by(&|id| id == wanted);
        let found = if exact.is_empty() {
            by(&|id| id.rsplit('/').next() == Some(wanted.as_str()))
        } else {
            exact
        };
        match found.as_slice() {
            [] => Err(LookupError::Unknown {
                name: name.to_string(),
                known: entries
                    .iter()
                    .filter(|entry| entry.status.is_ok())
                    .map(|entry| entry.id.clone())
                    .collect(),
            }),
            [entry] => match &entry.status {
                Ok(_) => Ok((*entry).clone()),
                Err(reason) => Err(LookupError::Broken {
                    id: entry.id.clone(),
                    reason: reason.clone(),
                }),
            },
            several => Err(LookupError::Ambiguous(
                several.iter().map(|entry| entry.id.clone()).collect(),
            )),
        }
    }
}

fn normalized(name: &str) -> String {
    let lower = name.trim().to_lowercase();
    lower
        .strip_suffix(".gguf")
        .map_or(lower.clone(), str::to_string)
}

/// The newest change among a path's own files.
fn modified(path: &Path) -> SystemTime {
    std::fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;

//! Errors of the engine. Every message is written for the person who runs the model: what happened, why, what to do.

use std::path::{Path, PathBuf};

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The operating system refused to read a file.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file's content contradicts its own format (truncated, corrupt, or lying about its sizes).
    #[error("{}: {message}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the key or tensor.
        message: String,
    },
    /// The file is well formed but asks for something that this engine does not implement.
    #[error("{}: {what} is not supported; supported: {supported}", path.display())]
    Unsupported {
        /// The file or folder.
        path: PathBuf,
        /// The feature, with its key and value.
        what: String,
        /// What can be used instead.
        supported: String,
    },
    /// A GGUF file is corrupt or not supported.
    #[error("{0}")]
    Gguf(#[source] Box<crate::gguf::GgufError>),
    /// The tokenizer could not be built.
    #[error("{message}")]
    Tokenizer {
        /// The file or folder that the tokenizer was read from.
        path: PathBuf,
        /// The tokenizer's own message, which names the file.
        message: String,
    },
    /// The tensor library failed, for example because memory ran out on the device.
    #[error("{}: {message}", path.display())]
    Device {
        /// The model.
        path: PathBuf,
        /// The library's message.
        message: String,
    },
}

impl ModelError {
    /// An I/O error on `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io {
            path: path.into(),
            source,
        }
    }

    /// A corrupt file.
    pub fn corrupt(path: impl Into<PathBuf>, message: impl Into<String>) -> Self {
        Self::Corrupt {
            path: path.into(),
            message: message.into(),
        }
    }

    /// An unsupported feature.
    pub fn unsupported(
        path: impl Into<PathBuf>,
        what: impl Into<String>,
        supported: impl Into<String>,
    ) -> Self {
        Self::Unsupported {
            path: path.into(),
            what: what.into(),
            supported: supported.into(),
        }
    }

    /// Wraps an error of the tensor library that occurred while `path` was being loaded.
    pub fn device(path: &Path, error: candle_core::Error) -> Self {
        Self::Device {
            path: path.to_path_buf(),
            message: short_message(&error),
        }
    }
}

/// Why a request failed. The kind decides the HTTP status on the server's side.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EngineError {
    /// The prompt does not fit in the model's context.
    #[error(
        "The prompt has {prompt_tokens} tokens, but this model's context holds {context_length}. \
         Shorten the conversation or choose a model with a larger context."
    )]
    ContextOverflow {
        /// Tokens in the prompt.
        prompt_tokens: usize,
        /// The most tokens that the sequence may have, prompt and answer together.
        context_length: usize,
    },
    /// A parameter of the request is out of its range.
    #[error("{0}")]
    InvalidRequest(String),
    /// Too many requests are waiting.
    #[error(
        "{waiting} requests are already waiting, the most this server queues. Try again in {retry_after_seconds} s."
    )]
    Busy {
        /// Requests in the queue.
        waiting: usize,
        /// A guess of when a place is free.
        retry_after_seconds: u64,
    },
    /// The model could not be loaded.
    #[error("The model could not be loaded: {0}")]
    Load(String),
    /// The model is not loaded any more.
    #[error("The model was unloaded before the request could run. Send the request again.")]
    NotLoaded,
    /// The request was cancelled by its owner.
    #[error("The request was cancelled.")]
    Cancelled,
    /// The computation failed.
    #[error("The engine failed while computing the answer: {0}")]
    Compute(String),
    /// The engine thread is gone.
    #[error("The engine has stopped. Restart Headstart.")]
    Stopped,
}

impl From<candle_core::Error> for EngineError {
    fn from(error: candle_core::Error) -> Self {
        Self::Compute(short_message(&error))
    }
}

/// candle's errors carry a backtrace in their text when one is enabled; a user's message has no use for it.
pub(crate) fn short_message(error: &candle_core::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim().to_string()
}

//! What can go wrong between a conversation and its prompt.

use std::path::PathBuf;

/// Why there is no prompt. [`Display`](std::fmt::Display) gives a sentence for the user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The model's template does not take this conversation. The client's fault in nearly all cases (HTTP 400): roles that do
    /// not alternate, a system message where the model knows none, tool arguments that are no object.
    #[error("{}", describe_template_error(message, *line, *refused))]
    Template {
        /// What the template said (`raise_exception`), or what went wrong in it.
        message: String,
        /// Line in the template, from 1, if known.
        line: Option<usize>,
        /// Whether the template itself refused, by `raise_exception`.
        refused: bool,
    },
    /// The messages do not have the form of the chat API (HTTP 400).
    #[error("{path}: {what}")]
    InvalidMessages {
        /// Which value, such as `messages[2].content`.
        path: String,
        /// What is wrong with it.
        what: String,
    },
    /// The template is not valid Jinja2 (the model's fault).
    #[error("the model's chat template cannot be used: {message} (line {line})")]
    Compile {
        /// What is wrong.
        message: String,
        /// Line in the template, from 1.
        line: usize,
    },
    /// A file of the model does not have the expected form.
    #[error("{} cannot be used: {what}", path.display())]
    InvalidFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file of the model cannot be read.
    #[error("{} cannot be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
}

impl PromptError {
    /// Whether the request is at fault (HTTP 400) rather than the model's files.
    #[must_use]
    pub fn is_client_error(&self) -> bool {
        matches!(self, Self::Template { .. } | Self::InvalidMessages { .. })
    }

    pub(super) fn invalid(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self::InvalidMessages {
            path: path.into(),
            what: what.into(),
        }
    }
}

fn describe_template_error(message: &str, line: Option<usize>, refused: bool) -> String {
    match (refused, line) {
        (true, _) => format!("the model's chat template refuses this conversation: {message}"),
        (false, Some(line)) => format!(
            "the model's chat template fails on this conversation: {message} (line {line} of the template)"
        ),
        (false, None) => format!("the model's chat template fails on this conversation: {message}"),
    }
}

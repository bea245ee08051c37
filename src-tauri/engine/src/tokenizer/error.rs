//! What can be wrong with a tokenizer.

use crate::gguf::GgufError;

/// Why a tokenizer could not be built or used, in words for the person who chose the model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The model folder has no `tokenizer.json`.
    #[error("{dir} has no tokenizer.json; {advice}")]
    Missing {
        /// The folder.
        dir: String,
        /// What to do.
        advice: &'static str,
    },
    /// A file that is damaged or contradicts itself.
    #[error("{source_name}: {problem}; download the model again")]
    Invalid {
        /// The file.
        source_name: String,
        /// What is wrong, with the token or key concerned.
        problem: String,
    },
    /// A kind of tokenizer that this engine does not have.
    #[error("{source_name}: {problem}")]
    Unsupported {
        /// The file.
        source_name: String,
        /// What was found and what is supported.
        problem: String,
    },
    /// GGUF metadata that are absent or of another type.
    #[error(transparent)]
    Metadata(#[from] GgufError),
    /// A text that the vocabulary cannot express.
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
}

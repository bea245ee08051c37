//! What can be wrong with a GGUF file.

use std::path::PathBuf;

/// Why a GGUF file could not be read, in words for the person who chose the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The operating system refused to open or map the file.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The file does not start with the GGUF magic.
    #[error("{} is not a GGUF file: {found}", path.display())]
    NotGguf {
        /// The file.
        path: PathBuf,
        /// What it looks like instead.
        found: String,
    },
    /// A version that this reader does not know.
    #[error(
        "{} has GGUF version {version}, but only versions 2 and 3 are supported; convert it again with a current tool",
        path.display()
    )]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// The version in its header.
        version: u32,
    },
    /// A file written for big-endian machines.
    #[error(
        "{} is a big-endian GGUF file, but only little-endian files are supported; download the ordinary file",
        path.display()
    )]
    BigEndian {
        /// The file.
        path: PathBuf,
    },
    /// The file ends before what its header promises.
    #[error(
        "{} is cut short or damaged: {what} needs {needed} bytes at byte {offset}, but only {remaining} are left; \
         download it again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// What was being read, with the key's or tensor's name.
        what: String,
        /// Position in the file, in bytes.
        offset: u64,
        /// Bytes that the header asks for.
        needed: u64,
        /// Bytes that the file still has.
        remaining: u64,
    },
    /// A header entry that breaks the format or exceeds what is supported.
    #[error("{}: {what}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The entry: a key, a tensor or a header field.
        what: String,
        /// What was found and what is supported.
        problem: String,
    },
    /// One file of a split model is not there.
    #[error(
        "{} is one of {count} files of a split model, and {} cannot be read: {source}; put all of them in one folder",
        path.display(), shard.display()
    )]
    MissingShard {
        /// The file that was asked for.
        path: PathBuf,
        /// The file that could not be read.
        shard: PathBuf,
        /// Number of files in the whole model.
        count: u64,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// A metadata key that the caller cannot do without is absent.
    #[error("{path}: the metadata key `{key}` ({expected}) is missing")]
    MissingKey {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// The type it should have.
        expected: &'static str,
    },
    /// A metadata key holds something other than what it should.
    #[error("{path}: the metadata key `{key}` should hold {expected}, but it holds {found}")]
    WrongType {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// The type it should have.
        expected: &'static str,
        /// The type, and where it matters the value, that it has.
        found: String,
    },
}

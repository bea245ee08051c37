//! A hardened, memory-mapped reader of GGUF model files.
//!
//! GGUF is the single-file format of the ggml projects: a header, metadata key-value pairs, tensor descriptions and an
//! aligned data section ([specification](https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)). Model files come
//! from strangers, so nothing in the header is believed: every count and length is compared with what remains of the
//! file before anything is allocated, and the byte range of every tensor is proven to lie inside the file, on the
//! file's alignment, and apart from all others before [`GgufFile::open`] returns.
//!
//! Versions 2 and 3, little-endian, one file or split into shards (`name-00001-of-00003.gguf`).
//!
//! ```no_run
//! # use headstart_engine::gguf::{GgufError, GgufFile};
//! # fn main() -> Result<(), GgufError> {
//! let file = GgufFile::open("model.gguf".as_ref())?;
//! let architecture = file.metadata().require_str("general.architecture")?;
//! for tensor in file.tensors() {
//!     println!("{architecture}: {} {:?} {}", tensor.name(), tensor.shape(), tensor.ggml_type());
//! }
//! # Ok(())
//! # }
//! ```

mod error;
mod file;
mod ggml_type;
mod layout;
mod metadata;
mod parse;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod value;

pub use error::GgufError;
pub use file::GgufFile;
pub use ggml_type::GgmlType;
pub use layout::TensorInfo;
pub use metadata::Metadata;
pub use value::{Array, Text, Value};

/// The crate-wide result of this module.
pub type Result<T> = std::result::Result<T, GgufError>;

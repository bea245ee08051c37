//! Hyper-parameters of a checkpoint, read alike from a `config.json` and from a GGUF's metadata.

mod decoder;
mod layers;
mod rope;
mod source;

pub use decoder::DecoderConfig;
pub use layers::attention_layers;
pub use rope::{RopeConfig, RopeScaling};
pub use source::{ConfigSource, Key};

//! Checkpoints as folders of safetensors: Hugging Face's layout and MLX's converted one, unquantized, in block-scaled FP8, or in MLX's
//! affine quantization.

mod affine;
mod layout;
mod shard;
mod source;

pub use affine::{AffineFormat, QuantizationConfig};
pub use source::SafetensorsSource;
pub(crate) use source::Slice;

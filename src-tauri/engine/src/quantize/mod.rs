//! Making an MLX checkpoint with affine quantization out of an unquantized safetensors folder.

mod affine;
mod plan;
mod write;

pub use affine::{QuantizedRows, quantize_rows};
pub use plan::{Keep, QuantizeOptions};
pub use write::{QuantizeReport, quantize};

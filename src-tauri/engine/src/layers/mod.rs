//! The layers that model families are built from. All take activations as `[tokens, features]` of one or more sequences' tokens:
//! there is no batch dimension, so that sequences can later be joined by rows.

mod attention;
mod linear;
mod mlp;
mod norm;
mod rotary;

pub use attention::{Attention, AttentionConfig};
pub use linear::{Embedding, Linear, PackedMatrix};
pub use mlp::GatedMlp;
pub use norm::RmsNorm;
pub use rotary::{Rotary, RotaryAngles};

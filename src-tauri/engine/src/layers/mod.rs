//! The layers that model families are built from. All take activations as `[tokens, features]` of one or more sequences' tokens:
//! there is no batch dimension, so that sequences can later be joined by rows.

mod attention;
mod gated_delta_net;
mod linear;
mod mlp;
mod moe;
mod norm;
mod rotary;

pub use attention::{Attention, AttentionConfig, HeadNorms};
pub use gated_delta_net::{GatedDeltaConfig, GatedDeltaNet};
pub use linear::{Embedding, Linear, PackedMatrix};
pub use mlp::GatedMlp;
pub use moe::{MoeConfig, SparseMoe};
pub use norm::RmsNorm;
pub use rotary::{Rotary, RotaryAngles};

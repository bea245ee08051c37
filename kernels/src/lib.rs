//! Headstart's own tensor operations, one module an operation.
//!
//! Each operation has a plain `reference` (f64 sums, written to be read), CPU kernels for several instruction sets
//! behind one run-time choice ([`CpuPath`]), and a function on candle tensors that uses those kernels on the CPU and
//! stock candle operations on every other device. Data keeps its dtype (f32, f16 or bf16); arithmetic is f32 inside.
//!
//! Wrap a whole forward pass in [`in_pool`]: every kernel then starts from a thread of the pool that it shares its
//! work with, instead of waking the pool from outside each time.

pub mod attention;
pub mod causal_conv;
mod cpu;
pub mod dense;
mod element;
pub mod gated_delta;
pub mod norm;
pub mod quantized;
pub mod rope;
mod simd;
pub mod swiglu;
mod tensor;
#[cfg(test)]
mod testing;

pub use attention::{attention, attention_importance};
pub use causal_conv::causal_conv1d_silu;
pub use cpu::{CpuPath, in_pool, with_path};
pub use dense::dense_matmul;
pub use element::Element;
pub use gated_delta::{decay_and_beta, gated_delta, gated_rms_norm, sigmoid_mul};
pub use norm::{add_rms_norm, rms_norm};
pub use quantized::{ActivationPrecision, AffineParams, GgufQuant, PackedMatrix};
pub use rope::rope;
pub use swiglu::{swiglu, swiglu_fused};

/// On the CPU, a call of up to this many rows (one token and eight drafts) gives each row, bit for bit, what a call of its own would give:
/// greedy decoding with speculation then equals decoding without.
pub const EXACT_ROWS: usize = 9;

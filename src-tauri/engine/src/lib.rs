//! Headstart's inference engine: weights, models, caches, sampling and the scheduler.
//!
//! The engine knows no HTTP and no settings. A caller opens a [`checkpoint::Checkpoint`], or lets the [`scheduler::Engine`] load it, and
//! submits [`request::GenerationRequest`]s whose events it reads from a [`request::GenerationStream`].

pub mod cache;
pub mod checkpoint;
pub mod config;
pub mod device;
pub mod error;
pub mod gguf;
pub mod layers;
pub mod models;
pub mod mtp;
pub mod positions;
pub mod quantize;
pub mod request;
pub mod sampling;
pub mod scheduler;
pub mod stop;
pub mod tokenizer;
pub mod weights;

pub use candle_core::{DType, Device};

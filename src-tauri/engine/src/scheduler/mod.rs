//! The one engine thread that owns every device object, its queue, and the handle through which all others talk to it.
//!
//! Requests are admitted in order. A running request first prefills its prompt in chunks and then decodes; the thread takes one step of
//! each in turns, so that a short request is never stuck behind a long one. A cancelled request is noticed between two steps.

mod draft;
mod engine;
mod loaded;
mod prompt;
mod recovery;
mod sequence;
mod stores;
mod worker;

pub use engine::{Engine, EngineOptions, EngineStatus, ModelState};
pub use loaded::{ModelInfo, ModelSpec};

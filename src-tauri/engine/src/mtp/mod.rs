//! Multi-token prediction: the model's own head drafts tokens, one forward pass verifies them.

pub mod accept;
pub mod controller;
pub mod draft_vocabulary;

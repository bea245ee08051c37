//! Headstart's server: the OpenAI-compatible API over the engine, the model library, settings, and the dashboard.
//!
//! The binary `headstart` and the desktop app both start it through [`serve::start`].

pub mod api;
pub mod cli;
pub mod conversation;
pub mod defaults;
pub mod library;
pub mod paths;
pub mod prompt;
pub mod serve;
pub mod settings;
pub mod state;
mod ui;

//! Helpers of the whole-system tests.

pub mod client;
pub mod engine;
pub mod golden;
pub mod locate;
pub mod models;
pub mod server;

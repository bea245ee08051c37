//! Helpers of the whole-system tests.

pub mod golden;
pub mod locate;

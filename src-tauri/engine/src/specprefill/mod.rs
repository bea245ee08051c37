//! SpecPrefill (Liu et al. 2025, <https://arxiv.org/abs/2502.02789>): a small draft model reads the new part of a long prompt and marks
//! the tokens that matter; the target model then reads only those, each at its true position.
//!
//! - [`policy`]: whether a request is prefilled sparsely, and if not, why.

pub mod policy;
pub mod select;

pub use policy::{
    DraftState, Facts, Plan, Scorer, SkipReason, SparsePlan, SpecPrefillReport,
    SpecPrefillSettings, plan,
};

/// Tokens that the draft writes after the prompt; their attention ranks the prompt's tokens.
pub const LOOK_AHEAD_STEPS: usize = 8;

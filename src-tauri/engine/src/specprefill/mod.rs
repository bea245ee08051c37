//! SpecPrefill (Liu et al. 2025, <https://arxiv.org/abs/2502.02789>): a small draft model reads the new part of a long prompt and marks
//! the tokens that matter; the target model then reads only those, each at its true position.
//!
//! - [`policy`]: whether a request is prefilled sparsely, and if not, why.
//! - [`score`]: how much each token matters, by a draft model; [`own`]: by the target's first layers.
//! - [`select`]: which tokens are kept.
//! - [`prefill`]: reading them.
//! - [`session`]: a sparse cache that a conversation's next turn goes on with.

pub mod own;
pub mod policy;
pub mod prefill;
pub mod score;
pub mod select;
pub mod session;

pub use own::{OwnScorer, OwnWork};
pub use policy::{
    DraftState, Facts, Plan, Scorer, SkipReason, SparsePlan, SpecPrefillReport,
    SpecPrefillSettings, plan,
};
pub use prefill::SparsePrefill;
pub use score::{DraftScorer, Scored};
pub use select::select;
pub use session::{ResumedSession, SparseSession, SparseSessions};

/// Tokens that the draft writes after the prompt; their attention ranks the prompt's tokens.
pub const LOOK_AHEAD_STEPS: usize = 8;

//! What outlives a request: the prefix caches and the sparse sessions.

use crate::{
    cache::{PrefixCache, PrefixRoot},
    specprefill::SparseSessions,
};

/// Sparse caches that are kept for a next turn.
const SESSIONS: usize = 4;

/// A draft's blocks are small; this part of the budget holds as many tokens as the rest does of its target.
const DRAFT_SHARE: usize = 8;

/// The stores of the engine thread.
#[derive(Debug)]
pub(super) struct Stores {
    /// What target models computed.
    pub(super) prefix: PrefixCache,
    /// What draft models computed.
    pub(super) draft_prefix: PrefixCache,
    /// Sparse caches.
    pub(super) sessions: SparseSessions,
}

impl Stores {
    /// Within `budget` bytes, which 0 switches off.
    pub(super) fn new(budget: usize) -> Self {
        let draft = budget / DRAFT_SHARE;
        Self {
            prefix: PrefixCache::new(budget - draft),
            draft_prefix: PrefixCache::new(draft),
            sessions: SparseSessions::new(SESSIONS),
        }
    }

    /// Forgets everything of a model that is no longer loaded. Its draft went with it.
    pub(super) fn forget(&mut self, model: &str) {
        self.prefix.forget(prefix_root(model));
        self.sessions.forget(model);
        self.draft_prefix.clear();
    }
}

/// Where a model's dense blocks begin.
pub(super) fn prefix_root(model: &str) -> PrefixRoot {
    PrefixRoot::new(model, "dense")
}

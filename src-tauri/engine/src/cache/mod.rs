//! The memory of one sequence: keys and values or recurrent states of every layer, and the positions that they stand for.

mod attention;
mod layer;
mod prefix;
mod recurrent;
mod sequence;

pub use attention::{AttentionCache, AttentionCacheSpec, AttentionSnapshot};
pub use layer::{LayerCache, LayerCacheSpec, LayerSnapshot};
pub use prefix::{
    BLOCK_TOKENS, PrefixCache, PrefixHit, PrefixRoot, PrefixStatistics, PrefixWriter,
};
pub use recurrent::{RecurrentCache, RecurrentPass, RecurrentState};
pub use sequence::{
    CacheError, CachedPositions, RecurrentStates, SequenceCache, SequenceMark, SequenceSnapshot,
    SharedRows,
};

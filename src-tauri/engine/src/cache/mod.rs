//! The memory of one sequence: keys and values of every layer, and the positions that they stand for.

mod attention;
mod sequence;

pub use attention::{AttentionCache, AttentionCacheSpec, AttentionSnapshot};
pub use sequence::{CacheError, CachedPositions, SequenceCache, SequenceSnapshot};

//! The memory of one sequence: keys and values or recurrent states of every layer, and the positions that they stand for.

mod attention;
mod layer;
mod recurrent;
mod sequence;

pub use attention::{AttentionCache, AttentionCacheSpec, AttentionSnapshot};
pub use layer::{LayerCache, LayerCacheSpec, LayerSnapshot};
pub use recurrent::{RecurrentCache, RecurrentPass, RecurrentState};
pub use sequence::{CacheError, CachedPositions, SequenceCache, SequenceSnapshot};

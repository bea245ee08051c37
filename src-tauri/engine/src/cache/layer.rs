//! The cache of one layer of any kind.

use super::{AttentionCache, AttentionCacheSpec, AttentionSnapshot, RecurrentCache};

/// What kind of memory a layer has.
#[derive(Debug, Clone)]
pub enum LayerCacheSpec {
    /// Keys and values of every token.
    Attention(AttentionCacheSpec),
    /// A state of fixed size.
    Recurrent,
}

/// The memory of one layer.
#[derive(Debug)]
pub enum LayerCache {
    /// Keys and values of every token.
    Attention(AttentionCache),
    /// A state of fixed size.
    Recurrent(RecurrentCache),
}

/// A copy of one layer's memory that later passes do not change.
#[derive(Debug, Clone)]
pub enum LayerSnapshot {
    /// Keys and values.
    Attention(AttentionSnapshot),
    /// A state.
    Recurrent(RecurrentCache),
}

/// Enough to undo one forward pass: a length, or the state before it.
#[derive(Debug)]
pub(super) enum LayerMark {
    Attention(usize),
    Recurrent(RecurrentCache),
}

impl LayerCache {
    /// An empty cache.
    pub fn new(spec: LayerCacheSpec) -> Self {
        match spec {
            LayerCacheSpec::Attention(spec) => Self::Attention(AttentionCache::new(spec)),
            LayerCacheSpec::Recurrent => Self::Recurrent(RecurrentCache::default()),
        }
    }

    /// The attention cache.
    ///
    /// # Errors
    /// When this layer is of another kind: model and cache do not belong together.
    pub fn attention(&mut self) -> candle_core::Result<&mut AttentionCache> {
        match self {
            Self::Attention(cache) => Ok(cache),
            Self::Recurrent(_) => {
                candle_core::bail!("an attention layer was given a recurrent cache")
            }
        }
    }

    /// The recurrent cache.
    ///
    /// # Errors
    /// When this layer is of another kind.
    pub fn recurrent(&mut self) -> candle_core::Result<&mut RecurrentCache> {
        match self {
            Self::Recurrent(cache) => Ok(cache),
            Self::Attention(_) => {
                candle_core::bail!("a recurrent layer was given an attention cache")
            }
        }
    }

    /// Tokens held; `None` for a recurrent layer, which cannot tell.
    pub fn token_count(&self) -> Option<usize> {
        match self {
            Self::Attention(cache) => Some(cache.len()),
            Self::Recurrent(_) => None,
        }
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Attention(cache) => cache.bytes(),
            Self::Recurrent(cache) => cache.bytes(),
        }
    }

    /// Makes room for `tokens` in all.
    ///
    /// # Errors
    /// When the device has no memory left.
    pub fn reserve(&mut self, tokens: usize) -> candle_core::Result<()> {
        match self {
            Self::Attention(cache) => cache.reserve(tokens),
            Self::Recurrent(_) => Ok(()),
        }
    }

    pub(super) fn mark(&self) -> LayerMark {
        match self {
            Self::Attention(cache) => LayerMark::Attention(cache.len()),
            Self::Recurrent(cache) => LayerMark::Recurrent(cache.clone()),
        }
    }

    pub(super) fn undo(&mut self, mark: LayerMark) {
        match (self, mark) {
            (Self::Attention(cache), LayerMark::Attention(len)) => cache.trim(len),
            (Self::Recurrent(cache), LayerMark::Recurrent(before)) => *cache = before,
            // A mark is made by the layer that it is given back to.
            (cache, _) => cache.clear(),
        }
    }

    /// What this layer is once only `keep` of the last pass' `rows` rows count, when that takes more than cutting off rows. The layer
    /// is not changed.
    pub(super) fn replayed(
        &self,
        keep: usize,
        rows: usize,
    ) -> Result<Option<RecurrentCache>, String> {
        match self {
            Self::Attention(_) => Ok(None),
            Self::Recurrent(cache) if cache.replayable_rows() == Some(rows) => cache
                .replayed(keep)
                .map(Some)
                .map_err(|error| crate::error::short_message(&error)),
            Self::Recurrent(_) => Err("the last pass was not to be replayable".into()),
        }
    }

    pub(super) fn clear(&mut self) {
        match self {
            Self::Attention(cache) => cache.trim(0),
            Self::Recurrent(cache) => cache.clear(),
        }
    }

    pub(super) fn snapshot(&self) -> candle_core::Result<LayerSnapshot> {
        Ok(match self {
            Self::Attention(cache) => LayerSnapshot::Attention(cache.snapshot()?),
            Self::Recurrent(cache) => LayerSnapshot::Recurrent(cache.without_replay()),
        })
    }

    pub(super) fn restore(&mut self, snapshot: &LayerSnapshot) -> candle_core::Result<()> {
        match (self, snapshot) {
            (Self::Attention(cache), LayerSnapshot::Attention(snapshot)) => cache.restore(snapshot),
            (Self::Recurrent(cache), LayerSnapshot::Recurrent(snapshot)) => {
                *cache = snapshot.clone();
                Ok(())
            }
            _ => candle_core::bail!("the snapshot's layers are of other kinds"),
        }
    }
}

impl LayerSnapshot {
    /// Bytes of the copy.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Attention(snapshot) => snapshot.bytes(),
            Self::Recurrent(state) => state.bytes(),
        }
    }
}

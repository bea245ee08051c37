//! All layers of one sequence, with the positions of the cached tokens.

mod rollback;

use super::{LayerCache, LayerCacheSpec, LayerSnapshot};
use crate::{error::short_message, positions::Positions};

/// The true positions of the cached tokens, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CachedPositions(Vec<u32>);

impl CachedPositions {
    /// As a slice.
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }
}

/// Why a cache refused an operation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// New tokens must come after the cached ones.
    #[error("position {found} cannot follow a sequence whose next position is {next}")]
    NotAscending {
        /// The first new position.
        found: u32,
        /// The sequence's next position.
        next: u32,
    },
    /// A snapshot of another model.
    #[error("a snapshot of {found} layers cannot be restored into a cache of {expected}")]
    OtherModel {
        /// Layers of the snapshot.
        found: usize,
        /// Layers of this cache.
        expected: usize,
    },
    /// The layers do not hold the same tokens; the cache must be thrown away.
    #[error(
        "the cache's layers disagree: layer {layer} holds {found} tokens instead of {expected}"
    )]
    Inconsistent {
        /// The layer.
        layer: usize,
        /// Its tokens.
        found: usize,
        /// The sequence's tokens.
        expected: usize,
    },
    /// A recurrent layer cannot forget a part of its tokens.
    #[error("a cache with recurrent layers cannot be trimmed; restore a snapshot instead")]
    NotTrimmable,
    /// A part of the last forward pass cannot be taken back.
    #[error("the last forward pass cannot be rolled back: {0}")]
    NotReplayable(String),
    /// The device failed.
    #[error("{0}")]
    Device(String),
}

impl From<candle_core::Error> for CacheError {
    fn from(error: candle_core::Error) -> Self {
        Self::Device(short_message(&error))
    }
}

/// The cache of one sequence. It knows which tokens it holds; it may hold fewer than the sequence has (after a sparse prefill), so the
/// position of the next token is kept apart and never derived from a length.
#[derive(Debug)]
pub struct SequenceCache {
    layers: Vec<LayerCache>,
    positions: CachedPositions,
    next_position: u32,
    /// Tokens of the last forward pass, while nothing else has changed the cache since.
    last_pass: usize,
}

/// A deep copy of a whole sequence: all layers or none.
#[derive(Debug, Clone)]
pub struct SequenceSnapshot {
    layers: Vec<LayerSnapshot>,
    positions: CachedPositions,
    next_position: u32,
}

impl SequenceCache {
    /// An empty cache for layers of the given shapes.
    pub fn new(specs: impl IntoIterator<Item = LayerCacheSpec>) -> Self {
        Self {
            layers: specs.into_iter().map(LayerCache::new).collect(),
            positions: CachedPositions::default(),
            next_position: 0,
            last_pass: 0,
        }
    }

    /// Tokens held, as the attention layers themselves say.
    ///
    /// # Errors
    /// When the layers disagree.
    pub fn token_count(&self) -> Result<usize, CacheError> {
        let expected = self.positions.0.len();
        for (layer, cache) in self.layers.iter().enumerate() {
            if let Some(found) = cache.token_count()
                && found != expected
            {
                return Err(CacheError::Inconsistent {
                    layer,
                    found,
                    expected,
                });
            }
        }
        Ok(expected)
    }

    /// The position that the next token takes.
    pub fn next_position(&self) -> u32 {
        self.next_position
    }

    /// How far the next position is ahead of the number of cached tokens: 0 after dense passes.
    ///
    /// # Errors
    /// When the layers disagree about the number.
    pub fn rope_delta(&self) -> Result<u32, CacheError> {
        let held = self.token_count()? as u32;
        Ok(self.next_position.saturating_sub(held))
    }

    /// Positions of the cached tokens.
    pub fn positions(&self) -> &CachedPositions {
        &self.positions
    }

    /// The memory of every layer.
    pub fn layers(&self) -> &[LayerCache] {
        &self.layers
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(LayerCache::bytes).sum()
    }

    /// Makes room for `tokens` in all.
    ///
    /// # Errors
    /// When the device has no memory left.
    pub fn reserve(&mut self, tokens: usize) -> Result<(), CacheError> {
        for layer in &mut self.layers {
            layer.reserve(tokens)?;
        }
        Ok(())
    }

    /// Runs one forward pass over this cache: `pass` gets the layers and the positions of the tokens held once the pass is done. When
    /// it fails, every layer is as before.
    ///
    /// # Errors
    /// When the positions do not follow the cached ones, or what `pass` returns.
    pub fn extend<T, E: From<CacheError>>(
        &mut self,
        positions: &Positions,
        pass: impl FnOnce(&mut [LayerCache], &CachedPositions) -> Result<T, E>,
    ) -> Result<T, E> {
        let held = self.token_count()?;
        if let Some(first) = positions.order().first()
            && *first < self.next_position
        {
            return Err(CacheError::NotAscending {
                found: *first,
                next: self.next_position,
            }
            .into());
        }
        let marks: Vec<_> = self.layers.iter().map(LayerCache::mark).collect();
        self.positions.0.extend_from_slice(positions.order());
        match pass(&mut self.layers, &self.positions) {
            Ok(value) => {
                self.next_position = positions.next().unwrap_or(self.next_position);
                self.last_pass = positions.len();
                Ok(value)
            }
            Err(error) => {
                self.positions.0.truncate(held);
                for (layer, mark) in self.layers.iter_mut().zip(marks) {
                    layer.undo(mark);
                }
                Err(error)
            }
        }
    }

    /// Keeps the first `tokens` cached tokens; the next position becomes the one after the last of them. All or nothing.
    ///
    /// # Errors
    /// When a recurrent layer would have to forget a part: its state cannot be taken apart, only restored from a snapshot.
    pub fn trim(&mut self, tokens: usize) -> Result<(), CacheError> {
        if tokens >= self.positions.0.len() {
            return Ok(());
        }
        let recurrent = |layer: &LayerCache| matches!(layer, LayerCache::Recurrent(_));
        if tokens > 0 && self.layers.iter().any(recurrent) {
            return Err(CacheError::NotTrimmable);
        }
        self.positions.0.truncate(tokens);
        self.next_position = self.positions.0.last().map_or(0, |p| p + 1);
        self.last_pass = 0;
        for layer in &mut self.layers {
            match layer {
                LayerCache::Attention(cache) => cache.trim(tokens),
                LayerCache::Recurrent(cache) => cache.clear(),
            }
        }
        Ok(())
    }

    /// A deep copy of every layer.
    ///
    /// # Errors
    /// When the layers disagree or memory ran out.
    pub fn snapshot(&self) -> Result<SequenceSnapshot, CacheError> {
        self.token_count()?;
        let layers: candle_core::Result<Vec<_>> =
            self.layers.iter().map(LayerCache::snapshot).collect();
        Ok(SequenceSnapshot {
            layers: layers?,
            positions: self.positions.clone(),
            next_position: self.next_position,
        })
    }

    /// Becomes what the snapshot holds. When that fails the cache is empty, never half restored.
    ///
    /// # Errors
    /// When the snapshot is of another model or memory ran out.
    pub fn restore(&mut self, snapshot: &SequenceSnapshot) -> Result<(), CacheError> {
        if snapshot.layers.len() != self.layers.len() {
            return Err(CacheError::OtherModel {
                found: snapshot.layers.len(),
                expected: self.layers.len(),
            });
        }
        for (layer, saved) in self.layers.iter_mut().zip(&snapshot.layers) {
            if let Err(error) = layer.restore(saved) {
                self.clear();
                return Err(error.into());
            }
        }
        self.positions = snapshot.positions.clone();
        self.next_position = snapshot.next_position;
        self.last_pass = 0;
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        for layer in &mut self.layers {
            layer.clear();
        }
        self.positions.0.clear();
        self.next_position = 0;
        self.last_pass = 0;
    }
}

impl SequenceSnapshot {
    /// Tokens held.
    pub fn token_count(&self) -> usize {
        self.positions.0.len()
    }

    /// Bytes of the copy.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(LayerSnapshot::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::{
        super::{AttentionCacheSpec, RecurrentState},
        *,
    };

    fn cache() -> SequenceCache {
        let spec = LayerCacheSpec::Attention(AttentionCacheSpec {
            num_kv_heads: 1,
            head_dim: 2,
            dtype: DType::F32,
            device: Device::Cpu,
        });
        SequenceCache::new(vec![spec; 3])
    }

    fn pass(
        cache: &mut SequenceCache,
        positions: Positions,
        fail_at: Option<usize>,
    ) -> Result<Vec<u32>, CacheError> {
        let tokens = positions.len();
        cache.extend(&positions, |layers, cached| {
            for (i, layer) in layers.iter_mut().enumerate() {
                if fail_at == Some(i) {
                    return Err(CacheError::Device("injected".into()));
                }
                let rows = Tensor::ones((1, tokens, 2), DType::F32, &Device::Cpu)?;
                layer.attention()?.append(&rows, &rows)?;
            }
            Ok(cached.as_slice().to_vec())
        })
    }

    #[test]
    fn next_position_is_the_true_one_after_a_sparse_pass() {
        let mut cache = cache();
        pass(&mut cache, Positions::contiguous(0, 2), None).unwrap();
        let cached = pass(
            &mut cache,
            Positions::selected(vec![7, 9, 119]).unwrap(),
            None,
        )
        .unwrap();
        assert_eq!(cached, [0, 1, 7, 9, 119]);
        assert_eq!(cache.token_count(), Ok(5));
        assert_eq!(cache.next_position(), 120);
        assert_eq!(
            pass(&mut cache, Positions::contiguous(5, 1), None),
            Err(CacheError::NotAscending {
                found: 5,
                next: 120
            })
        );
    }

    #[test]
    fn a_failed_pass_leaves_nothing_behind() {
        for layer in 0..3 {
            let mut cache = cache();
            pass(&mut cache, Positions::contiguous(0, 4), None).unwrap();
            assert!(pass(&mut cache, Positions::contiguous(4, 3), Some(layer)).is_err());
            assert_eq!(cache.token_count(), Ok(4));
            assert_eq!(cache.next_position(), 4);
            pass(&mut cache, Positions::contiguous(4, 1), None).unwrap();
            assert_eq!(cache.token_count(), Ok(5));
        }
    }

    #[test]
    fn trim_and_snapshot() {
        let mut cache = cache();
        pass(&mut cache, Positions::contiguous(0, 10), None).unwrap();
        let snapshot = cache.snapshot().unwrap();
        cache.trim(4).unwrap();
        assert_eq!(
            (cache.token_count().unwrap(), cache.next_position()),
            (4, 4)
        );
        cache.trim(100).unwrap();
        assert_eq!(cache.token_count(), Ok(4));
        cache.restore(&snapshot).unwrap();
        assert_eq!(
            (cache.token_count().unwrap(), cache.next_position()),
            (10, 10)
        );
        cache.trim(0).unwrap();
        assert_eq!(
            (cache.token_count().unwrap(), cache.next_position()),
            (0, 0)
        );
        let mut other = SequenceCache::new(vec![]);
        assert!(matches!(
            other.restore(&snapshot),
            Err(CacheError::OtherModel { .. })
        ));
    }

    /// One attention and one recurrent layer, the latter counting its tokens in its state.
    fn hybrid() -> SequenceCache {
        let spec = AttentionCacheSpec {
            num_kv_heads: 1,
            head_dim: 2,
            dtype: DType::F32,
            device: Device::Cpu,
        };
        SequenceCache::new([LayerCacheSpec::Attention(spec), LayerCacheSpec::Recurrent])
    }

    fn hybrid_pass(cache: &mut SequenceCache, tokens: usize, fail: bool) -> Result<(), CacheError> {
        let positions = Positions::contiguous(cache.next_position(), tokens);
        cache.extend(&positions, |layers, _| {
            let rows = Tensor::ones((1, tokens, 2), DType::F32, &Device::Cpu)?;
            layers[0].attention()?.append(&rows, &rows)?;
            let recurrent = layers[1].recurrent()?;
            let before = recurrent
                .state()
                .map_or(0.0, |state| state.delta.to_scalar::<f32>().unwrap());
            recurrent.set(RecurrentState {
                conv: Tensor::zeros((3, 1), DType::F32, &Device::Cpu)?,
                delta: Tensor::new(before + tokens as f32, &Device::Cpu)?,
            });
            if fail {
                return Err(CacheError::Device("injected".into()));
            }
            Ok(())
        })
    }

    fn counted(cache: &mut SequenceCache) -> Option<f32> {
        let state = cache.layers[1].recurrent().unwrap().state()?;
        Some(state.delta.to_scalar::<f32>().unwrap())
    }

    #[test]
    fn recurrent_states_are_restored_whole_or_not_at_all() {
        let mut cache = hybrid();
        hybrid_pass(&mut cache, 5, false).unwrap();
        assert!(hybrid_pass(&mut cache, 3, true).is_err());
        assert_eq!(
            (cache.token_count(), counted(&mut cache)),
            (Ok(5), Some(5.0))
        );
        let snapshot = cache.snapshot().unwrap();
        hybrid_pass(&mut cache, 2, false).unwrap();
        assert_eq!(cache.trim(6), Err(CacheError::NotTrimmable));
        assert_eq!(
            (cache.token_count(), counted(&mut cache)),
            (Ok(7), Some(7.0))
        );
        cache.restore(&snapshot).unwrap();
        assert_eq!(
            (cache.token_count(), counted(&mut cache)),
            (Ok(5), Some(5.0))
        );
        cache.trim(0).unwrap();
        assert_eq!((cache.token_count(), counted(&mut cache)), (Ok(0), None));
        // A snapshot of other kinds of layers is refused and leaves nothing half restored.
        let mut other = SequenceCache::new([LayerCacheSpec::Recurrent, LayerCacheSpec::Recurrent]);
        assert!(other.restore(&snapshot).is_err());
        assert_eq!(other.token_count(), Ok(0));
    }
}

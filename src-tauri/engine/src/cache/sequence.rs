//! All layers of one sequence, with the positions of the cached tokens.

mod rollback;

use candle_core::Tensor;

use super::{AttentionCache, LayerCache, LayerCacheSpec, LayerSnapshot, RecurrentCache};
use crate::{error::short_message, positions::Positions};

/// The true positions of the cached tokens, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CachedPositions(Vec<u32>);

impl CachedPositions {
    /// As a slice.
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }

    /// All but the last one.
    pub(crate) fn without_last(&self) -> Self {
        let held = self.0.len().saturating_sub(1);
        Self(self.0[..held].to_vec())
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
    /// A sparse cache must not be published: its tokens would stand for others.
    #[error("a sparse cache cannot be shared")]
    Sparse,
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

/// A place in a sequence to which its cache can go back: lengths of attention layers and states of recurrent ones. Cheap: nothing is
/// copied. It stays valid as long as the tokens before it are not forgotten.
#[derive(Debug, Clone)]
pub struct SequenceMark {
    rows: usize,
    next_position: u32,
    states: RecurrentStates,
}

impl SequenceMark {
    /// The position of the token after the mark.
    pub fn next_position(&self) -> u32 {
        self.next_position
    }
}

/// The state of every recurrent layer of a sequence after one of its tokens; `None` for layers of other kinds.
#[derive(Debug, Clone)]
pub struct RecurrentStates(Vec<Option<RecurrentCache>>);

impl RecurrentStates {
    /// The state of one layer, if it keeps one.
    pub fn layer(&self, layer: usize) -> Option<&RecurrentCache> {
        self.0.get(layer)?.as_ref()
    }

    /// Bytes of the states.
    pub fn bytes(&self) -> usize {
        self.0.iter().flatten().map(RecurrentCache::bytes).sum()
    }
}

/// Keys and values of a run of tokens in every attention layer; `None` for layers of other kinds. Never written to.
#[derive(Debug)]
pub struct SharedRows {
    layers: Vec<Option<(Tensor, Tensor)>>,
    tokens: usize,
}

impl SharedRows {
    /// Appends the rows of one layer to its cache.
    ///
    /// # Errors
    /// When the layer has no rows, or memory ran out.
    pub fn append_to(&self, layer: usize, cache: &mut AttentionCache) -> candle_core::Result<()> {
        match self.layers.get(layer) {
            Some(Some((keys, values))) => cache.append(keys, values),
            _ => candle_core::bail!("there are no keys and values for layer {layer}"),
        }
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Bytes of the copy.
    pub fn bytes(&self) -> usize {
        let bytes = |t: &Tensor| t.elem_count() * t.dtype().size_in_bytes();
        self.layers
            .iter()
            .flatten()
            .map(|(keys, values)| bytes(keys) + bytes(values))
            .sum()
    }
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

    /// True when the cache holds every token before the next position: after dense passes only.
    ///
    /// # Errors
    /// When the layers disagree about what they hold.
    pub fn is_dense(&self) -> Result<bool, CacheError> {
        Ok(self.token_count()? == self.next_position as usize)
    }

    /// True when a layer keeps a state instead of its tokens.
    pub fn has_recurrent_layers(&self) -> bool {
        self.layers
            .iter()
            .any(|layer| matches!(layer, LayerCache::Recurrent(_)))
    }

    /// The present place.
    ///
    /// # Errors
    /// When the layers disagree about what they hold.
    pub fn mark(&self) -> Result<SequenceMark, CacheError> {
        Ok(SequenceMark {
            rows: self.token_count()?,
            next_position: self.next_position,
            states: self.recurrent_states(),
        })
    }

    /// Goes back to a mark made by this cache, also after a pass that was torn off in the middle. All layers or none.
    ///
    /// # Errors
    /// When the mark lies ahead of what is held or belongs to another model.
    pub fn rewind(&mut self, mark: &SequenceMark) -> Result<(), CacheError> {
        if mark.states.0.len() != self.layers.len() {
            return Err(CacheError::OtherModel {
                found: mark.states.0.len(),
                expected: self.layers.len(),
            });
        }
        for (layer, cache) in self.layers.iter().enumerate() {
            if let Some(found) = cache.token_count()
                && found < mark.rows
            {
                return Err(CacheError::Inconsistent {
                    layer,
                    found,
                    expected: mark.rows,
                });
            }
        }
        for (layer, state) in self.layers.iter_mut().zip(&mark.states.0) {
            match (layer, state) {
                (LayerCache::Attention(cache), _) => cache.trim(mark.rows),
                (LayerCache::Recurrent(cache), Some(state)) => *cache = state.clone(),
                (LayerCache::Recurrent(cache), None) => cache.clear(),
            }
        }
        self.positions.0.truncate(mark.rows);
        self.next_position = mark.next_position;
        self.last_pass = 0;
        Ok(())
    }

    /// The states of the recurrent layers, without copying.
    pub fn recurrent_states(&self) -> RecurrentStates {
        RecurrentStates(
            self.layers
                .iter()
                .map(|layer| match layer {
                    LayerCache::Recurrent(cache) => Some(cache.clone()),
                    LayerCache::Attention(_) => None,
                })
                .collect(),
        )
    }

    /// A copy of the keys and values of some of the cached tokens.
    ///
    /// # Errors
    /// When they are not held or memory ran out.
    pub fn copy_rows(&self, rows: std::ops::Range<usize>) -> Result<SharedRows, CacheError> {
        let layers: candle_core::Result<Vec<_>> = self
            .layers
            .iter()
            .map(|layer| match layer {
                LayerCache::Attention(cache) => cache.copy_rows(rows.clone()).map(Some),
                LayerCache::Recurrent(_) => Ok(None),
            })
            .collect();
        Ok(SharedRows {
            layers: layers?,
            tokens: rows.len(),
        })
    }

    /// A copy of the keys and values of single cached tokens, by their rows.
    ///
    /// # Errors
    /// When they are not held or memory ran out.
    pub fn gather_rows(&self, rows: &[u32]) -> Result<SharedRows, CacheError> {
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            layers.push(match layer {
                LayerCache::Attention(cache) => {
                    let (keys, values) = cache.view()?;
                    let rows = Tensor::new(rows, keys.device())?;
                    Some((
                        keys.contiguous()?.index_select(&rows, 1)?,
                        values.contiguous()?.index_select(&rows, 1)?,
                    ))
                }
                LayerCache::Recurrent(_) => None,
            });
        }
        Ok(SharedRows {
            layers,
            tokens: rows.len(),
        })
    }

    /// A cache of the first `layers` layers with a copy of what they hold.
    ///
    /// # Errors
    /// When the layers disagree about what they hold, or memory ran out.
    pub fn copy_first_layers(
        &self,
        layers: usize,
        specs: impl IntoIterator<Item = LayerCacheSpec>,
    ) -> Result<Self, CacheError> {
        self.token_count()?;
        let mut copy = Self::new(specs.into_iter().take(layers));
        for (to, from) in copy.layers.iter_mut().zip(&self.layers) {
            to.restore(&from.snapshot()?)?;
        }
        copy.positions = self.positions.clone();
        copy.next_position = self.next_position;
        Ok(copy)
    }

    /// Becomes a dense cache of the tokens of `blocks`, cut to the first `tokens`; recurrent layers get `states`, which stand for exactly
    /// that many tokens. When it fails the cache is empty.
    ///
    /// # Errors
    /// When the blocks are of another model, hold too few tokens, or memory ran out.
    pub fn restore_dense(
        &mut self,
        blocks: &[std::sync::Arc<SharedRows>],
        tokens: usize,
        states: Option<&RecurrentStates>,
    ) -> Result<(), CacheError> {
        self.clear();
        let outcome = self.fill(blocks, tokens, states);
        if outcome.is_err() {
            self.clear();
        }
        outcome
    }

    fn fill(
        &mut self,
        blocks: &[std::sync::Arc<SharedRows>],
        tokens: usize,
        states: Option<&RecurrentStates>,
    ) -> Result<(), CacheError> {
        let expected = self.layers.len();
        let held: usize = blocks.iter().map(|block| block.tokens).sum();
        let other = |found| CacheError::OtherModel { found, expected };
        for (index, layer) in self.layers.iter_mut().enumerate() {
            match layer {
                LayerCache::Attention(cache) => {
                    for block in blocks {
                        let rows = block.layers.get(index).and_then(Option::as_ref);
                        let (keys, values) = rows.ok_or(other(block.layers.len()))?;
                        cache.append(keys, values)?;
                    }
                    cache.trim(tokens);
                }
                LayerCache::Recurrent(cache) => {
                    let state = states.and_then(|states| states.0.get(index)?.as_ref());
                    *cache = state.ok_or(other(0))?.clone();
                }
            }
        }
        if held < tokens {
            return Err(CacheError::Inconsistent {
                layer: 0,
                found: held,
                expected: tokens,
            });
        }
        self.positions.0 = (0..tokens as u32).collect();
        self.next_position = tokens as u32;
        self.token_count()?;
        Ok(())
    }

    /// The keys of one attention layer in use, `[kv_heads, tokens, head_dim]`, without copying.
    ///
    /// # Errors
    /// When the layer is of another kind or holds nothing.
    pub fn keys(&self, layer: usize) -> Result<Tensor, CacheError> {
        match self.layers.get(layer) {
            Some(LayerCache::Attention(cache)) => Ok(cache.view()?.0),
            _ => Err(CacheError::Device(format!("layer {layer} keeps no keys"))),
        }
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
    use candle_core::{DType, Device};

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

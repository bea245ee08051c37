//! Taking back a part of the last forward pass: drafts that the model did not agree with.

use super::{CacheError, SequenceCache};
use crate::cache::LayerCache;

impl SequenceCache {
    /// Keeps the first `keep` tokens of the last forward pass: rejected drafts are taken back. Attention layers forget rows; recurrent
    /// layers go back to the state before the pass and replay those kept, which is why the pass must have been asked to be
    /// [replayable](crate::models::ForwardInput::replayable). Keeping all of them lets go of what was held for a replay. All or nothing:
    /// every layer's new state is there before any layer is changed.
    ///
    /// # Errors
    /// When the last pass had fewer tokens, a recurrent layer cannot replay it, the cache was changed since, or the device fails. The
    /// cache is then as it was.
    pub fn rollback(&mut self, keep: usize) -> Result<(), CacheError> {
        let (held, rows) = (self.token_count()?, self.last_pass);
        if keep > rows || rows > held {
            return Err(CacheError::NotReplayable(format!(
                "{keep} tokens cannot be kept of a pass of {rows}"
            )));
        }
        let replayed = self
            .layers
            .iter()
            .map(|layer| layer.replayed(keep, rows))
            .collect::<Result<Vec<_>, String>>()
            .map_err(CacheError::NotReplayable)?;
        let tokens = held - rows + keep;
        for (layer, replayed) in self.layers.iter_mut().zip(replayed) {
            match (layer, replayed) {
                (LayerCache::Recurrent(cache), Some(replayed)) => *cache = replayed,
                (LayerCache::Attention(cache), _) => cache.trim(tokens),
                // A layer without attention always has something replayed.
                (LayerCache::Recurrent(_), None) => {}
            }
        }
        self.positions.0.truncate(tokens);
        self.next_position = self.positions.0.last().map_or(0, |p| p + 1);
        self.last_pass = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;
    use crate::{
        cache::{AttentionCacheSpec, LayerCacheSpec, RecurrentPass, RecurrentState},
        positions::Positions,
    };

    const CHANNELS: usize = 6;

    fn hybrid() -> SequenceCache {
        let attention = LayerCacheSpec::Attention(AttentionCacheSpec {
            num_kv_heads: 1,
            head_dim: 2,
            dtype: DType::F32,
            device: Device::Cpu,
        });
        SequenceCache::new([
            LayerCacheSpec::Recurrent,
            attention,
            LayerCacheSpec::Recurrent,
        ])
    }

    /// A pass over tokens whose every number is `value`; the recurrent layers listed keep no replay.
    fn pass(cache: &mut SequenceCache, tokens: usize, value: f32, without: &[usize]) {
        let positions = Positions::contiguous(cache.next_position(), tokens);
        cache
            .extend(&positions, |layers, _| -> Result<(), CacheError> {
                for (i, layer) in layers.iter_mut().enumerate() {
                    let full = |shape: &[usize]| {
                        (Tensor::ones(shape, DType::F32, &Device::Cpu)? * f64::from(value))?
                            .contiguous()
                    };
                    if let Ok(attention) = layer.attention() {
                        let rows = full(&[1, tokens, 2])?;
                        attention.append(&rows, &rows)?;
                        continue;
                    }
                    let recurrent = layer.recurrent()?;
                    let before = recurrent.state().cloned();
                    let (q, k, v) = (
                        full(&[tokens, 1, 2])?,
                        full(&[tokens, 1, 2])?,
                        full(&[tokens, 1, 2])?,
                    );
                    let (decay, beta) = (full(&[tokens, 1])?.neg()?, full(&[tokens, 1])?);
                    let inputs = full(&[tokens, CHANNELS])?;
                    let old = before.as_ref().map(|state| &state.delta);
                    let (_, delta) =
                        headstart_kernels::gated_delta(&q, &k, &v, &decay, &beta, old)?;
                    let weights = Tensor::ones((CHANNELS, 4), DType::F32, &Device::Cpu)?;
                    let old = before.as_ref().map(|state| &state.conv);
                    let (_, conv) = headstart_kernels::causal_conv1d_silu(&inputs, &weights, old)?;
                    let after = RecurrentState { conv, delta };
                    if without.contains(&i) {
                        recurrent.set(after);
                    } else {
                        let pass = RecurrentPass {
                            inputs,
                            q,
                            k,
                            v,
                            decay,
                            beta,
                        };
                        recurrent.set_replayable(after, before, pass);
                    }
                }
                Ok(())
            })
            .unwrap();
    }

    /// All numbers of all layers, and the position that comes next.
    fn numbers(cache: &SequenceCache) -> (Vec<Vec<f32>>, u32) {
        let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let layers = cache.layers().iter().flat_map(|layer| match layer {
            LayerCache::Attention(cache) => cache
                .view()
                .map_or(vec![], |(k, v)| vec![flat(&k), flat(&v)]),
            LayerCache::Recurrent(cache) => cache
                .state()
                .map_or(vec![], |state| vec![flat(&state.conv), flat(&state.delta)]),
        });
        (layers.collect(), cache.next_position())
    }

    #[test]
    fn the_kept_rows_are_all_that_is_left() {
        for before in [0, 1, 5] {
            for tokens in 1..=9 {
                for keep in 1..=tokens {
                    let (mut cache, mut expected) = (hybrid(), hybrid());
                    if before > 0 {
                        pass(&mut cache, before, 0.5, &[]);
                        pass(&mut expected, before, 0.5, &[]);
                    }
                    pass(&mut cache, tokens, 0.25, &[]);
                    pass(&mut expected, keep, 0.25, &[]);
                    cache.rollback(keep).unwrap();
                    assert_eq!(
                        numbers(&cache),
                        numbers(&expected),
                        "{before}, {keep} of {tokens}"
                    );
                    assert_eq!(cache.token_count(), Ok(before + keep));
                }
            }
        }
    }

    #[test]
    fn a_whole_pass_can_be_taken_back() {
        let mut cache = hybrid();
        pass(&mut cache, 3, 0.5, &[]);
        let before = numbers(&cache);
        pass(&mut cache, 4, 0.25, &[]);
        cache.rollback(0).unwrap();
        assert_eq!(numbers(&cache), before);
    }

    #[test]
    fn one_layer_that_cannot_replay_leaves_all_as_they_were() {
        let mut cache = hybrid();
        pass(&mut cache, 3, 0.5, &[]);
        pass(&mut cache, 4, 0.25, &[2]);
        let before = numbers(&cache);
        assert!(matches!(
            cache.rollback(2),
            Err(CacheError::NotReplayable(_))
        ));
        assert_eq!(numbers(&cache), before);
    }

    #[test]
    fn only_the_last_pass_can_be_taken_back_and_only_once() {
        let mut cache = hybrid();
        pass(&mut cache, 3, 0.5, &[]);
        pass(&mut cache, 4, 0.25, &[]);
        assert!(cache.rollback(5).is_err());
        cache.rollback(4).unwrap();
        assert!(cache.rollback(2).is_err());
        pass(&mut cache, 2, 0.25, &[]);
        let snapshot = cache.snapshot().unwrap();
        cache.restore(&snapshot).unwrap();
        assert!(cache.rollback(1).is_err());
        assert_eq!(cache.token_count(), Ok(9));
    }
}

//! A model that writes down what it is given, and fails when it is told to.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use candle_core::{DType, Device, Tensor};

use crate::{
    cache::{LayerCache, RecurrentState, SequenceCache},
    error::EngineError,
    models::{FirstLayers, ForwardInput, ForwardOutput, Model, RanLayers},
};

/// How a pass fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Before it touched the cache.
    Error,
    /// In the middle, with some layers done.
    TornError,
    /// In the middle, by a panic.
    Panic,
}

pub(super) const FAULTS: [Fault; 3] = [Fault::Error, Fault::TornError, Fault::Panic];

/// One pass: its tokens and their positions.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) tokens: Vec<u32>,
    pub(super) positions: Vec<u32>,
}

/// The wrapper.
#[derive(Debug)]
pub(super) struct Probe<'a> {
    inner: &'a dyn Model,
    passes: Mutex<Vec<Pass>>,
    /// The pass that fails, counted from 0, and how.
    fault: Option<(usize, Fault)>,
    count: AtomicUsize,
    /// `[kv_heads, 1, head_dim]` of the model's attention caches.
    row: (usize, usize, usize),
}

impl<'a> Probe<'a> {
    pub(super) fn new(inner: &'a dyn Model) -> Self {
        let mut cache = inner.new_cache();
        let positions = crate::positions::Positions::contiguous(0, 1);
        let input = ForwardInput::new(&[1], &positions, crate::models::LogitRows::None);
        inner.forward(input, &mut cache).unwrap();
        let row = cache
            .extend(
                &crate::positions::Positions::contiguous(1, 0),
                |layers, _| {
                    let keys = layers.iter_mut().find_map(|layer| layer.attention().ok());
                    Ok::<_, EngineError>(keys.unwrap().view()?.0.dims3()?)
                },
            )
            .unwrap();
        Self {
            inner,
            passes: Mutex::default(),
            fault: None,
            count: AtomicUsize::new(0),
            row,
        }
    }

    pub(super) fn failing(inner: &'a dyn Model, at: usize, fault: Fault) -> Self {
        Self {
            fault: Some((at, fault)),
            ..Self::new(inner)
        }
    }

    /// Passes so far, failed ones included.
    pub(super) fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// All passes that were let through, oldest first; forgotten then.
    pub(super) fn take(&self) -> Vec<Pass> {
        std::mem::take(&mut self.passes.lock().unwrap())
    }

    fn enter(&self, input: ForwardInput<'_>, cache: &mut SequenceCache) -> Result<(), EngineError> {
        let count = self.count.fetch_add(1, Ordering::SeqCst);
        match self.fault {
            Some((at, fault)) if at == count => self.fail(fault, input, cache),
            _ => {
                self.passes.lock().unwrap().push(Pass {
                    tokens: input.tokens.to_vec(),
                    positions: input.positions.order().to_vec(),
                });
                Ok(())
            }
        }
    }

    fn fail(
        &self,
        fault: Fault,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<(), EngineError> {
        let injected = || EngineError::Compute("injected".into());
        if fault == Fault::Error {
            return Err(injected());
        }
        let (kv_heads, _, head_dim) = self.row;
        let rows = Tensor::ones(
            (kv_heads, input.tokens.len(), head_dim),
            DType::F32,
            &Device::Cpu,
        )?;
        cache.extend(input.positions, |layers, _| {
            // A recurrent layer and the first attention layer: the others are as before.
            for layer in layers.iter_mut() {
                match layer {
                    LayerCache::Attention(cache) => {
                        cache.append(&rows, &rows)?;
                        break;
                    }
                    LayerCache::Recurrent(cache) => cache.set(RecurrentState {
                        conv: Tensor::zeros((1, 1), DType::F32, &Device::Cpu)?,
                        delta: Tensor::new(7u32, &Device::Cpu)?,
                    }),
                }
            }
            assert!(fault != Fault::Panic, "injected");
            Err(injected())
        })
    }
}

impl Model for Probe<'_> {
    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.inner.context_length()
    }

    fn weight_bytes(&self) -> usize {
        self.inner.weight_bytes()
    }

    fn cache_bytes_per_token(&self) -> usize {
        self.inner.cache_bytes_per_token()
    }

    fn state_bytes(&self) -> usize {
        self.inner.state_bytes()
    }

    fn sliding_window(&self) -> Option<usize> {
        self.inner.sliding_window()
    }

    fn new_cache(&self) -> SequenceCache {
        self.inner.new_cache()
    }

    fn forward(
        &self,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<ForwardOutput, EngineError> {
        self.enter(input, cache)?;
        self.inner.forward(input, cache)
    }

    fn ranking_layers(&self) -> Option<usize> {
        self.inner.ranking_layers()
    }

    fn copy_first_layers(
        &self,
        layers: usize,
        cache: &SequenceCache,
    ) -> Result<SequenceCache, EngineError> {
        self.inner.copy_first_layers(layers, cache)
    }

    fn forward_first(
        &self,
        layers: usize,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<FirstLayers, EngineError> {
        self.enter(input, cache)?;
        self.inner.forward_first(layers, input, cache)
    }

    fn forward_rest(
        &self,
        first: RanLayers<'_>,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<ForwardOutput, EngineError> {
        self.enter(input, cache)?;
        self.inner.forward_rest(first, input, cache)
    }
}

//! A model that costs nothing, so that prompts can be long: its logits are a hash of everything that its cache holds, tokens and
//! positions, so that no two caches give the same ones.

use candle_core::{DType, Device, Tensor};

use crate::{
    cache::{AttentionCacheSpec, LayerCache, LayerCacheSpec, RecurrentState, SequenceCache},
    error::EngineError,
    models::{FirstLayers, ForwardInput, ForwardOutput, LayerQueries, LogitRows, Model, RanLayers},
};

pub(super) const VOCABULARY: usize = 64;
/// The token that its attention looks at.
pub(super) const MARKED: u32 = 63;
/// Width of its only head: enough for a key that is looked at, and a value of token and position.
const WIDTH: usize = 2;

/// Two layers: one of attention and, in hybrids, a recurrent one.
#[derive(Debug)]
pub(super) struct Toy {
    pub(super) hybrid: bool,
    pub(super) window: Option<usize>,
}

impl Toy {
    pub(super) fn new(hybrid: bool) -> Self {
        Self {
            hybrid,
            window: None,
        }
    }

    fn specs(&self) -> Vec<LayerCacheSpec> {
        let attention = LayerCacheSpec::Attention(AttentionCacheSpec {
            num_kv_heads: 1,
            head_dim: WIDTH,
            dtype: DType::F32,
            device: Device::Cpu,
        });
        let second = match self.hybrid {
            true => LayerCacheSpec::Recurrent,
            false => attention.clone(),
        };
        vec![attention, second]
    }

    fn attend(layer: &mut LayerCache, input: ForwardInput<'_>) -> Result<(), EngineError> {
        let device = &Device::Cpu;
        let shape = (1, input.tokens.len(), WIDTH);
        let looked_at = |token: &u32| [f32::from(u8::from(*token == MARKED)) * 40.0, 0.0];
        let keys: Vec<f32> = input.tokens.iter().flat_map(looked_at).collect();
        let values: Vec<f32> = input
            .tokens
            .iter()
            .zip(input.positions.rotary_row(0))
            .flat_map(|(token, position)| [*token as f32, *position as f32])
            .collect();
        layer.attention()?.append(
            &Tensor::from_vec(keys, shape, device)?,
            &Tensor::from_vec(values, shape, device)?,
        )?;
        Ok(())
    }

    fn second(&self, layer: &mut LayerCache, input: ForwardInput<'_>) -> Result<(), EngineError> {
        if !self.hybrid {
            return Self::attend(layer, input);
        }
        let cache = layer.recurrent()?;
        let mut state = match cache.state() {
            Some(state) => state.delta.to_scalar::<u32>()?,
            None => 0,
        };
        for (token, position) in input.tokens.iter().zip(input.positions.rotary_row(0)) {
            state = mix(mix(state, *token), *position);
        }
        cache.set(RecurrentState {
            conv: Tensor::zeros((1, 1), DType::F32, &Device::Cpu)?,
            delta: Tensor::new(state, &Device::Cpu)?,
        });
        Ok(())
    }

    fn output(
        layers: &mut [LayerCache],
        input: ForwardInput<'_>,
    ) -> Result<ForwardOutput, EngineError> {
        let mut hash = 1;
        if input.logits != LogitRows::None {
            for layer in layers {
                match layer {
                    LayerCache::Attention(cache) => {
                        let values = cache.view()?.1.flatten_all()?.to_vec1::<f32>()?;
                        hash = values.iter().fold(hash, |hash, x| mix(hash, *x as u32));
                    }
                    LayerCache::Recurrent(cache) => {
                        if let Some(state) = cache.state() {
                            hash = mix(hash, state.delta.to_scalar::<u32>()?);
                        }
                    }
                }
            }
        }
        let logits = (0..VOCABULARY as u32)
            .map(|token| (mix(hash, token) % 10_007) as f32 / 1000.0)
            .collect();
        Ok(ForwardOutput {
            logits: match input.logits {
                LogitRows::None => None,
                _ => Some(Tensor::from_vec(logits, (1, VOCABULARY), &Device::Cpu)?),
            },
            hidden: None,
            queries: Self::queries(input)?,
        })
    }

    fn queries(input: ForwardInput<'_>) -> Result<Vec<LayerQueries>, EngineError> {
        let rows = input.tokens.len();
        Ok(match input.queries {
            true => vec![LayerQueries {
                layer: 0,
                queries: Tensor::ones((rows, 1, WIDTH), DType::F32, &Device::Cpu)?,
            }],
            false => Vec::new(),
        })
    }
}

fn mix(hash: u32, value: u32) -> u32 {
    let mixed = (hash ^ value).wrapping_mul(0x9e37_79b1);
    mixed ^ (mixed >> 15)
}

impl Model for Toy {
    fn vocab_size(&self) -> usize {
        VOCABULARY
    }

    fn context_length(&self) -> usize {
        1 << 20
    }

    fn weight_bytes(&self) -> usize {
        0
    }

    fn cache_bytes_per_token(&self) -> usize {
        WIDTH * 8
    }

    fn state_bytes(&self) -> usize {
        0
    }

    fn sliding_window(&self) -> Option<usize> {
        self.window
    }

    fn new_cache(&self) -> SequenceCache {
        SequenceCache::new(self.specs())
    }

    fn forward(
        &self,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<ForwardOutput, EngineError> {
        cache.extend(input.positions, |layers, _| {
            Self::attend(&mut layers[0], input)?;
            self.second(&mut layers[1], input)?;
            Self::output(layers, input)
        })
    }

    fn ranking_layers(&self) -> Option<usize> {
        Some(1)
    }

    fn copy_first_layers(
        &self,
        layers: usize,
        cache: &SequenceCache,
    ) -> Result<SequenceCache, EngineError> {
        Ok(cache.copy_first_layers(layers, self.specs())?)
    }

    fn forward_first(
        &self,
        _: usize,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<FirstLayers, EngineError> {
        cache.extend(input.positions, |layers, _| {
            Self::attend(&mut layers[0], input)?;
            Ok(FirstLayers {
                hidden: Tensor::zeros((input.tokens.len(), 1), DType::F32, &Device::Cpu)?,
                queries: Self::queries(input)?,
            })
        })
    }

    fn forward_rest(
        &self,
        first: RanLayers<'_>,
        input: ForwardInput<'_>,
        cache: &mut SequenceCache,
    ) -> Result<ForwardOutput, EngineError> {
        cache.extend(input.positions, |layers, _| {
            first.rows.append_to(0, layers[0].attention()?)?;
            self.second(&mut layers[1], input)?;
            Self::output(layers, input)
        })
    }
}

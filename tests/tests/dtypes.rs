//! Precision is preserved: after a sparse prefill, in bf16 and f16, everything in the cache and everything handed out still has the model's
//! dtype. One widened key would make every later step run in f32.

use candle_core::{DType, Device};
use headstart_engine::{
    cache::LayerCache,
    checkpoint::{Checkpoint, LoadOptions},
    models::{ForwardInput, LogitRows},
    positions::Positions,
    specprefill::SparsePrefill,
};
use headstart_tests::locate::fixtures;

#[test]
fn a_sparse_prefill_keeps_the_models_dtype() {
    for name in [
        "llama-tiny",
        "llama3-scaled-tiny",
        "qwen3-tiny",
        "qwen35-dense-tiny",
        "qwen35-moe-tiny",
        "qwen35-vl-tiny",
    ] {
        for dtype in [DType::BF16, DType::F16] {
            let options = LoadOptions {
                dtype: Some(dtype),
                ..LoadOptions::default()
            };
            let model = Checkpoint::open(&fixtures().join(name))
                .unwrap()
                .load(&Device::Cpu, &options)
                .unwrap();
            let mut cache = model.new_cache();
            let prompt: Vec<u32> = (0..120).map(|i| (i * 7 + 3) % 300).collect();
            let selection: Vec<u32> = (0..110).filter(|i| i % 5 < 2).collect();
            let mut sparse = SparsePrefill::new(0, prompt.len(), &selection, None);
            while sparse.done() < sparse.total() {
                let chunk = sparse.next_chunk(16, 4);
                let output = sparse
                    .step(model.as_ref(), &mut cache, &prompt, chunk, true)
                    .unwrap();
                assert_eq!(output.hidden.unwrap().dtype(), dtype, "{name}");
            }
            // Decode steps and a verify pass of several rows follow.
            for rows in [1, 4] {
                let positions = Positions::contiguous(cache.next_position(), rows);
                let input = ForwardInput::new(&prompt[..rows], &positions, LogitRows::All)
                    .with_hidden()
                    .with_queries();
                let output = model.forward(input, &mut cache).unwrap();
                assert_eq!(output.hidden.unwrap().dtype(), dtype, "{name}");
                assert!(!output.queries.is_empty());
                for layer in &output.queries {
                    assert_eq!(layer.queries.dtype(), dtype, "{name}");
                }
            }
            assert_eq!(cache.next_position(), 125);
            let mut attention = 0;
            for layer in cache.layers() {
                match layer {
                    LayerCache::Attention(cache) => {
                        let (keys, values) = cache.view().unwrap();
                        assert_eq!((keys.dtype(), values.dtype()), (dtype, dtype), "{name}");
                        attention += 1;
                    }
                    LayerCache::Recurrent(cache) => {
                        let state = cache.state().unwrap();
                        // The delta rule's memory is f32 by design: it is a sum over all tokens.
                        assert_eq!(state.conv.dtype(), dtype, "{name}");
                        assert_eq!(state.delta.dtype(), DType::F32, "{name}");
                    }
                }
            }
            assert!(attention > 0);
        }
    }
}

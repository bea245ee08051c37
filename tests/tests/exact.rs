//! Exact mode: a forward pass of up to nine rows gives each row, bit for bit, what one-token passes give, and a pass of which a part was
//! taken back leaves no trace.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use headstart_engine::{
    cache::{LayerCache, SequenceCache},
    checkpoint::{Checkpoint, LoadOptions},
    models::{ForwardInput, ForwardOutput, LogitRows, Model},
    positions::Positions,
    weights::Precision,
};
use headstart_kernels::{CpuPath, EXACT_ROWS, with_path};
use headstart_tests::locate::{bundled, fixtures, shared, starter};

const TINY: [&str; 6] = [
    "llama-tiny",
    "llama3-scaled-tiny",
    "qwen3-tiny",
    "qwen35-dense-tiny",
    "qwen35-moe-tiny",
    "qwen35-vl-tiny",
];

fn load(path: &Path, dtype: Option<DType>, precision: Precision) -> Box<dyn Model> {
    let options = LoadOptions { dtype, precision };
    Checkpoint::open(path)
        .unwrap()
        .load(&Device::Cpu, &options)
        .unwrap()
}

/// Repeatable numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }

    fn tokens(&mut self, model: &dyn Model, count: usize) -> Vec<u32> {
        (0..count)
            .map(|_| self.below(model.vocab_size()) as u32)
            .collect()
    }
}

fn pass(
    model: &dyn Model,
    cache: &mut SequenceCache,
    tokens: &[u32],
    replayable: bool,
) -> ForwardOutput {
    let positions = Positions::contiguous(cache.next_position(), tokens.len());
    let input = ForwardInput::new(tokens, &positions, LogitRows::All).with_hidden();
    let input = if replayable {
        input.replayable()
    } else {
        input
    };
    model.forward(input, cache).unwrap()
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let wide = tensor.to_dtype(DType::F32).unwrap();
    let values = wide.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

fn output_bits(output: &ForwardOutput) -> [Vec<u32>; 2] {
    [&output.hidden, &output.logits].map(|tensor| bits(tensor.as_ref().unwrap()))
}

/// Every number of every layer.
fn state_bits(cache: &SequenceCache) -> Vec<Vec<u32>> {
    let layer = |layer: &LayerCache| match layer {
        LayerCache::Attention(cache) if cache.is_empty() => vec![],
        LayerCache::Attention(cache) => {
            let (keys, values) = cache.view().unwrap();
            vec![bits(&keys), bits(&values)]
        }
        LayerCache::Recurrent(cache) => cache
            .state()
            .map_or(vec![], |state| vec![bits(&state.conv), bits(&state.delta)]),
    };
    cache.layers().iter().flat_map(layer).collect()
}

fn on_every_path(f: impl Fn(CpuPath)) {
    for path in CpuPath::ALL.into_iter().filter(|path| path.available()) {
        with_path(path, || f(path)).unwrap();
    }
}

fn check_rows(name: &str, model: &dyn Model, lengths: &[usize]) {
    on_every_path(|path| {
        for &length in lengths {
            let mut random = Random(length as u64 + 1);
            let (prompt, next) = (
                random.tokens(model, length),
                random.tokens(model, EXACT_ROWS),
            );
            let mut start = model.new_cache();
            if length > 0 {
                pass(model, &mut start, &prompt, false);
            }
            let snapshot = start.snapshot().unwrap();
            let mut cache = model.new_cache();
            cache.restore(&snapshot).unwrap();
            let alone: Vec<_> = next
                .iter()
                .map(|token| output_bits(&pass(model, &mut cache, &[*token], false)))
                .collect();
            for rows in 1..=EXACT_ROWS {
                cache.restore(&snapshot).unwrap();
                let together = output_bits(&pass(model, &mut cache, &next[..rows], true));
                for (what, (part, together)) in ["hidden states", "logits"]
                    .iter()
                    .zip(together.iter().enumerate())
                {
                    let width = together.len() / rows;
                    for (row, together) in together.chunks_exact(width).enumerate() {
                        let differ = together
                            .iter()
                            .zip(&alone[row][part])
                            .filter(|(a, b)| a != b);
                        let differ = differ.count();
                        assert_eq!(
                            differ, 0,
                            "{name}, {path}, after {length} tokens: {what} of row {row} of {rows} differ in {differ} of {width}"
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn rows_of_tiny_models_do_not_depend_on_each_other() {
    for name in TINY {
        for dtype in [DType::F32, DType::F16] {
            let model = load(&fixtures().join(name), Some(dtype), Precision::Fast);
            check_rows(
                &format!("{name} in {dtype:?}"),
                model.as_ref(),
                &[0, 1, 30, 506],
            );
        }
    }
}

#[test]
fn rows_of_four_bit_models_do_not_depend_on_each_other() {
    let model = load(&bundled("nano"), None, Precision::Fast);
    check_rows("nano, 4 bit", model.as_ref(), &[507]);
    if let Some(path) = shared("models/nano-oq4") {
        let model = load(&path, None, Precision::Fast);
        check_rows("nano, mixed bits", model.as_ref(), &[33]);
    }
    if let Some(path) = starter() {
        let model = load(&path, None, Precision::Fast);
        check_rows("the starter", model.as_ref(), &[33]);
    }
}

#[test]
fn rows_of_dense_weights_do_not_depend_on_each_other() {
    let model = load(&bundled("nano"), None, Precision::Exact);
    check_rows("nano, widened", model.as_ref(), &[33]);
    if let Some(path) = shared("models/nano") {
        let model = load(&path, None, Precision::Fast);
        check_rows("nano, bf16", model.as_ref(), &[507]);
    }
}

fn check_rollback(name: &str, model: &dyn Model, cycles: usize) {
    on_every_path(|path| {
        let mut random = Random(11);
        let prompt = random.tokens(model, 21);
        let (mut cache, mut plain) = (model.new_cache(), model.new_cache());
        pass(model, &mut cache, &prompt, false);
        pass(model, &mut plain, &prompt, false);
        for cycle in 0..cycles {
            let depth = 1 + random.below(EXACT_ROWS - 1);
            let accepted = random.below(depth + 1);
            let rows = random.tokens(model, 1 + depth);
            let what = format!("{name}, {path}, cycle {cycle}: {accepted} of {depth} accepted");
            let verified = output_bits(&pass(model, &mut cache, &rows, true));
            cache.rollback(1 + accepted).unwrap();
            for (row, token) in rows[..=accepted].iter().enumerate() {
                let alone = output_bits(&pass(model, &mut plain, &[*token], false));
                for (verified, alone) in verified.iter().zip(&alone) {
                    assert!(
                        verified[row * alone.len()..][..alone.len()] == alone[..],
                        "{what}, row {row}"
                    );
                }
            }
            assert!(state_bits(&cache) == state_bits(&plain), "{what}");
            assert_eq!(cache.next_position(), plain.next_position(), "{what}");
            assert_eq!(cache.positions(), plain.positions(), "{what}");
        }
    });
}

#[test]
fn rejected_drafts_leave_no_trace() {
    for name in ["qwen35-dense-tiny", "qwen35-moe-tiny", "llama-tiny"] {
        let model = load(&fixtures().join(name), Some(DType::F32), Precision::Fast);
        check_rollback(name, model.as_ref(), 60);
    }
    let model = load(&bundled("nano"), None, Precision::Fast);
    check_rollback("nano, 4 bit", model.as_ref(), 12);
}

#[test]
fn a_pass_that_was_not_to_be_replayable_stays() {
    let model = load(
        &fixtures().join("qwen35-dense-tiny"),
        Some(DType::F32),
        Precision::Fast,
    );
    let mut cache = model.new_cache();
    pass(model.as_ref(), &mut cache, &[1, 2, 3], true);
    pass(model.as_ref(), &mut cache, &[4, 5, 6], false);
    let before = state_bits(&cache);
    assert!(cache.rollback(1).is_err());
    assert!(state_bits(&cache) == before);
    assert_eq!(cache.token_count().unwrap(), 6);
}

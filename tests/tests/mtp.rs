//! The MTP head against its definition, computed by other code on the same weights.

use std::{collections::HashMap, path::Path};

use candle_core::{DType, Device, Tensor};
use headstart_engine::{
    checkpoint::{Checkpoint, LoadOptions},
    models::{ForwardInput, LogitRows, Model},
    mtp::{MtpHead, MtpSupport},
    positions::Positions,
};
use headstart_tests::{
    golden::{Golden, max_difference},
    locate::{bundled, fixtures},
};
use serde_json::Value;

const TOLERANCE: f32 = 2e-4;
const MODEL: &str = "qwen35-dense-tiny";

fn open(folder: &Path) -> Box<dyn Model> {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        ..LoadOptions::default()
    };
    Checkpoint::open(folder)
        .unwrap()
        .load(&Device::Cpu, &options)
        .unwrap()
}

fn golden() -> Golden {
    Golden::read(&fixtures().join(MODEL).join("golden_mtp.safetensors"))
}

fn hidden(model: &dyn Model, ids: &[u32]) -> Tensor {
    let positions = Positions::contiguous(0, ids.len());
    let input = ForwardInput::new(ids, &positions, LogitRows::None).with_hidden();
    let output = model.forward(input, &mut model.new_cache()).unwrap();
    output.hidden.unwrap()
}

/// Folds all pairs of `ids` in chunks of the given sizes, from position `first` on; checks what each chunk's last pair gives.
fn check_chunks(head: &MtpHead, hidden: &Tensor, ids: &[u32], chunks: &[usize], first: u32) {
    let golden = golden();
    let mut cache = head.new_cache();
    let mut start = 0;
    for chunk in chunks {
        let end = start + chunk;
        let last = head
            .fold(
                &hidden.narrow(0, start, *chunk).unwrap(),
                &ids[start + 1..=end],
                &Positions::contiguous(first + start as u32, *chunk),
                &mut cache,
            )
            .unwrap();
        let logits = head.logits(&last).unwrap();
        for (found, name) in [(last, "mtp_hidden"), (logits, "mtp_logits")] {
            let expected = golden.tensor(name).narrow(0, end - 1, 1).unwrap();
            let difference = max_difference(&found, &expected);
            assert!(
                difference < TOLERANCE,
                "{name} of pair {}: {difference}",
                end - 1
            );
        }
        start = end;
    }
    assert_eq!(cache.token_count(), Ok(start));
    assert_eq!(cache.next_position(), first + start as u32);
}

#[test]
fn the_head_equals_its_definition() {
    let model = open(&fixtures().join(MODEL));
    let head = model.mtp().head().unwrap();
    let golden = golden();
    let ids = golden.ids("ids");
    let hidden = hidden(model.as_ref(), &ids);
    assert!(max_difference(&hidden, golden.tensor("hidden")) < TOLERANCE);
    // Row by row, in chunks and at once; the golden positions are those of the pairs' tokens or any others as far apart.
    for first in [0, 1, 1000] {
        check_chunks(head, &hidden, &ids, &[1; 59], first);
        check_chunks(head, &hidden, &ids, &[7, 1, 1, 20, 2, 28], first);
        check_chunks(head, &hidden, &ids, &[59], first);
    }
}

#[test]
fn a_trimmed_head_cache_forgets_its_guesses() {
    let model = open(&fixtures().join(MODEL));
    let head = model.mtp().head().unwrap();
    let ids = golden().ids("ids");
    let hidden = hidden(model.as_ref(), &ids);
    let fold = |rows: std::ops::Range<usize>, cache: &mut _| {
        let positions = Positions::contiguous(rows.start as u32 + 1, rows.len());
        let part = hidden.narrow(0, rows.start, rows.len()).unwrap();
        head.fold(&part, &ids[rows.start + 1..=rows.end], &positions, cache)
            .unwrap()
    };
    let mut cache = head.new_cache();
    fold(0..20, &mut cache);
    let snapshot = cache.snapshot().unwrap();
    // A chain: guesses are folded with the head's own hidden states.
    let mut last = fold(20..21, &mut cache);
    let expected = last.clone();
    for step in 0..3 {
        last = head
            .fold(
                &last,
                &[7 + step],
                &Positions::contiguous(22 + step, 1),
                &mut cache,
            )
            .unwrap();
    }
    cache.trim(20).unwrap();
    assert_eq!(max_difference(&fold(20..21, &mut cache), &expected), 0.0);
    cache.restore(&snapshot).unwrap();
    assert_eq!(cache.token_count(), Ok(20));
    assert_eq!(max_difference(&fold(20..21, &mut cache), &expected), 0.0);
    // A position that was there already is refused, and nothing is changed.
    let again = head.fold(&last, &[1], &Positions::contiguous(21, 1), &mut cache);
    assert!(again.is_err());
    assert!(
        head.fold(&last, &[1, 2], &Positions::contiguous(30, 2), &mut cache)
            .is_err()
    );
    assert_eq!(cache.token_count(), Ok(21));
}

#[test]
fn a_draft_vocabulary_gives_a_part_of_the_logits() {
    for (folder, dtype) in [
        (fixtures().join(MODEL), "dense"),
        (bundled("nano"), "4 bit"),
    ] {
        let model = open(&folder);
        let head = model.mtp().head().unwrap();
        let ids = [5, 9, 17];
        let hidden = hidden(model.as_ref(), &ids[..2]);
        let last = head
            .fold(
                &hidden,
                &ids[1..],
                &Positions::contiguous(1, 2),
                &mut head.new_cache(),
            )
            .unwrap();
        let all = head.logits(&last).unwrap().to_vec2::<f32>().unwrap();
        let vocabulary = model.vocab_size() as u32;
        let some = [vocabulary - 1, 3, 3, 0, 64, 65, 17, vocabulary / 2];
        let draft = head.subset(&some).unwrap();
        assert_eq!(
            draft.ids(),
            [0, 3, 17, 64, 65, vocabulary / 2, vocabulary - 1]
        );
        let part = draft.logits(&last).unwrap().to_vec2::<f32>().unwrap();
        for (id, logit) in draft.ids().iter().zip(&part[0]) {
            assert_eq!(
                logit.to_bits(),
                all[0][*id as usize].to_bits(),
                "{dtype}, token {id}"
            );
        }
        assert!(head.subset(&[vocabulary]).is_err());
        assert!(head.subset(&[]).is_err());
        assert!(draft.bytes() < model.weight_bytes() / 8);
    }
}

/// Writes a copy of the tiny model with other tensors and another configuration.
fn variant(
    change: impl FnOnce(&mut HashMap<String, Tensor>),
    configure: impl FnOnce(&mut Value),
) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let from = fixtures().join(MODEL);
    let mut tensors =
        candle_core::safetensors::load(from.join("model.safetensors"), &Device::Cpu).unwrap();
    change(&mut tensors);
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    configure(&mut config);
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

#[test]
fn why_there_is_no_head_is_known() {
    assert!(matches!(
        open(&fixtures().join("llama-tiny")).mtp(),
        MtpSupport::NoHead
    ));
    assert!(matches!(
        open(&fixtures().join("qwen35-moe-tiny")).mtp(),
        MtpSupport::NoHead
    ));
    let undeclared = variant(|_| (), |config| config["mtp_num_hidden_layers"] = 0.into());
    assert!(matches!(open(undeclared.path()).mtp(), MtpSupport::NoHead));
    let stripped = variant(
        |tensors| tensors.retain(|name, _| !name.starts_with("mtp.")),
        |_| (),
    );
    let model = open(stripped.path());
    assert!(matches!(model.mtp(), MtpSupport::WeightsMissing));
    assert_eq!(model.mtp().reason(), Some("weights_missing"));
    let partial = variant(
        |tensors| drop(tensors.remove("mtp.layers.0.self_attn.k_proj.weight")),
        |_| (),
    );
    match open(partial.path()).mtp() {
        MtpSupport::Broken(message) => assert!(message.contains("k_proj"), "{message}"),
        other => panic!("{other:?}"),
    }
}

/// Converters add the 1 to the trunk's norms and move the convolution's axis; the head's norms may or may not have it, one by one.
#[test]
fn norms_of_converted_checkpoints_are_told_apart_one_by_one() {
    let converted = variant(
        |tensors| {
            for (name, tensor) in tensors.iter_mut() {
                if name.ends_with("conv1d.weight") {
                    *tensor = tensor.transpose(1, 2).unwrap().contiguous().unwrap();
                }
                let norm = name.contains("norm") && !name.contains("linear_attn");
                let mixed = !name.starts_with("mtp.") || name.contains("layernorm");
                if norm && mixed {
                    *tensor = (&*tensor + 1.0).unwrap();
                }
            }
        },
        |_| (),
    );
    let model = open(converted.path());
    let ids = golden().ids("ids");
    let hidden = hidden(model.as_ref(), &ids);
    check_chunks(model.mtp().head().unwrap(), &hidden, &ids, &[59], 1);
}

/// A head of experts, in each layout that experts are stored in, gives the same.
#[test]
fn heads_of_experts_load_in_every_layout() {
    let from = fixtures().join("qwen35-moe-tiny");
    let experts =
        candle_core::safetensors::load(from.join("model.safetensors"), &Device::Cpu).unwrap();
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let moe: Value = serde_json::from_str(&text).unwrap();
    let trunk = "model.layers.3.mlp.";
    let rows = |tensor: &Tensor, expert: usize, from: usize, count: usize| {
        tensor
            .get(expert)
            .unwrap()
            .narrow(0, from, count)
            .unwrap()
            .contiguous()
            .unwrap()
    };
    let mut found = Vec::new();
    for layout in ["fused", "single", "stacked"] {
        let folder = variant(
            |tensors| {
                let head: Vec<_> = tensors
                    .iter()
                    .filter(|(name, _)| name.starts_with("mtp."))
                    .map(|(name, tensor)| (name.clone(), tensor.clone()))
                    .collect();
                *tensors = experts.clone();
                tensors.extend(head.into_iter().filter(|(name, _)| !name.contains(".mlp.")));
                for (name, tensor) in &experts {
                    let Some(rest) = name.strip_prefix(trunk) else {
                        continue;
                    };
                    let put = format!("mtp.layers.0.mlp.{rest}");
                    if layout == "fused" || !rest.starts_with("experts.") {
                        tensors.insert(put, tensor.clone());
                        continue;
                    }
                    let (count, height, _) = tensor.dims3().unwrap();
                    let parts = match rest {
                        "experts.gate_up_proj" => vec![
                            ("gate_proj", 0, height / 2),
                            ("up_proj", height / 2, height / 2),
                        ],
                        _ => vec![("down_proj", 0, height)],
                    };
                    for (projection, start, length) in parts {
                        let each: Vec<_> = (0..count)
                            .map(|expert| rows(tensor, expert, start, length))
                            .collect();
                        if layout == "stacked" {
                            let name = format!("mtp.layers.0.mlp.switch_mlp.{projection}.weight");
                            tensors.insert(name, Tensor::stack(&each, 0).unwrap());
                            continue;
                        }
                        for (expert, tensor) in each.into_iter().enumerate() {
                            let name =
                                format!("mtp.layers.0.mlp.experts.{expert}.{projection}.weight");
                            tensors.insert(name, tensor);
                        }
                    }
                }
            },
            |config| {
                *config = moe.clone();
                config["mtp_num_hidden_layers"] = 1.into();
            },
        );
        let model = open(folder.path());
        let MtpSupport::Ready(head) = model.mtp() else {
            panic!("{layout}: {:?}", model.mtp())
        };
        let ids = [3, 8, 200, 41, 7];
        let hidden = hidden(model.as_ref(), &ids[..4]);
        let last = head
            .fold(
                &hidden,
                &ids[1..],
                &Positions::contiguous(1, 4),
                &mut head.new_cache(),
            )
            .unwrap();
        found.push(head.logits(&last).unwrap().to_vec2::<f32>().unwrap());
    }
    assert!(found[0][0].iter().any(|logit| logit.abs() > 1e-3));
    assert_eq!(found[0], found[1]);
    assert_eq!(found[0], found[2]);
}

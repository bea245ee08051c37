//! One model in every form that checkpoints come in: the logits must stay what they were.

use std::{collections::HashMap, fs, path::Path};

use candle_core::{DType, Device, Tensor};
use headstart_engine::{
    checkpoint::{Checkpoint, LoadOptions},
    models::{ForwardInput, LogitRows},
    positions::Positions,
    quantize::{Keep, QuantizeOptions, quantize},
    weights::{AffineFormat, Precision},
};
use headstart_tests::{
    golden::{Golden, max_difference},
    locate::{bundled, fixtures},
};
use serde_json::{Value, json};

fn golden(name: &str) -> Golden {
    Golden::read(&fixtures().join(name).join("golden.safetensors"))
}

fn logits(folder: &Path, ids: &[u32]) -> Tensor {
    let options = LoadOptions {
        dtype: Some(DType::F32),
        // Unrounded activations: what is measured is the weights' form alone.
        precision: Precision::Exact,
    };
    let model = Checkpoint::open(folder)
        .unwrap()
        .load(&Device::Cpu, &options)
        .unwrap();
    let input = ForwardInput {
        tokens: ids,
        positions: &Positions::contiguous(0, ids.len()),
        logits: LogitRows::All,
        hidden: false,
        queries: false,
        replayable: false,
    };
    model
        .forward(input, &mut model.new_cache())
        .unwrap()
        .logits()
        .unwrap()
}

fn load_error(folder: &Path) -> String {
    let checkpoint = match Checkpoint::open(folder) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return error.to_string(),
    };
    match checkpoint.load(&Device::Cpu, &LoadOptions::default()) {
        Ok(_) => panic!("it loaded"),
        Err(error) => error.to_string(),
    }
}

/// Root mean square of the difference over that of the expected values.
fn relative_rms(found: &Tensor, expected: &Tensor) -> f32 {
    let mean_square = |tensor: &Tensor| {
        tensor
            .sqr()
            .unwrap()
            .mean_all()
            .unwrap()
            .to_scalar::<f32>()
            .unwrap()
    };
    (mean_square(&(found - expected).unwrap()) / mean_square(expected)).sqrt()
}

fn eight_bits() -> QuantizeOptions {
    QuantizeOptions {
        format: AffineFormat { bits: 8, group: 32 },
        keep: Vec::new(),
    }
}

fn tensors(name: &str) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(
        fixtures().join(name).join("model.safetensors"),
        &Device::Cpu,
    )
    .unwrap()
}

fn write(folder: &Path, config: &Value, tensors: &HashMap<String, Tensor>) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    candle_core::safetensors::save(tensors, folder.join("model.safetensors")).unwrap();
}

fn config(folder: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
}

/// Conversion moves convolutions, shifts norms, renames modules, stacks experts and packs weights; with 8 bits little is lost.
#[test]
fn converted_checkpoints_give_the_same_logits() {
    let root = tempfile::tempdir().unwrap();
    for name in [
        "llama-tiny",
        "qwen3-tiny",
        "qwen35-dense-tiny",
        "qwen35-moe-tiny",
        "qwen35-vl-tiny",
    ] {
        let target = root.path().join(name);
        let report = quantize(&fixtures().join(name), &target, &eight_bits(), &mut |_| {}).unwrap();
        assert!(
            report.quantized > 10 && report.bytes.1 < report.bytes.0 / 2,
            "{name}: {report:?}"
        );
        let golden = golden(name);
        let error = relative_rms(
            &logits(&target, &golden.ids("ids_70")),
            golden.tensor("logits_70"),
        );
        println!("{name}: relative error {error:.4}");
        // A wrong conversion gives 1 and more. Random weights amplify rounding, and in the mixture some tokens change experts.
        let limit = if name.contains("moe") { 0.25 } else { 0.1 };
        assert!(error < limit, "{name}: {error}");
    }
    // A text-only quantization may still carry the description of the image encoder that it lost.
    let folder = root.path().join("qwen35-vl-tiny");
    let mut left_over = config(&folder);
    left_over["vision_config"] = json!({"depth": 2, "hidden_size": 32});
    fs::write(folder.join("config.json"), left_over.to_string()).unwrap();
    let golden = golden("qwen35-vl-tiny");
    let error = relative_rms(
        &logits(&folder, &golden.ids("ids_70")),
        golden.tensor("logits_70"),
    );
    assert!(error < 0.1, "{error}");
}

#[test]
fn experts_one_by_one_equal_fused_ones() {
    let root = tempfile::tempdir().unwrap();
    let mut split = HashMap::new();
    for (name, tensor) in tensors("qwen35-moe-tiny") {
        if let Some(prefix) = name.strip_suffix(".gate_up_proj") {
            for expert in 0..8 {
                let both = tensor.get(expert).unwrap();
                for (part, projection) in ["gate_proj", "up_proj"].into_iter().enumerate() {
                    let half = both.narrow(0, part * 32, 32).unwrap().contiguous().unwrap();
                    split.insert(format!("{prefix}.{expert}.{projection}.weight"), half);
                }
            }
        } else if let Some(prefix) = name.strip_suffix("experts.down_proj") {
            for expert in 0..8 {
                let down = tensor.get(expert).unwrap().contiguous().unwrap();
                split.insert(format!("{prefix}experts.{expert}.down_proj.weight"), down);
            }
        } else {
            split.insert(name, tensor);
        }
    }
    let source = fixtures().join("qwen35-moe-tiny");
    write(root.path(), &config(&source), &split);
    let ids = golden("qwen35-moe-tiny").ids("ids_70");
    assert_eq!(
        max_difference(&logits(root.path(), &ids), &logits(&source, &ids)),
        0.0
    );
    // And the converter gathers them again.
    let target = root.path().join("converted");
    quantize(root.path(), &target, &eight_bits(), &mut |_| {}).unwrap();
    let fused = root.path().join("fused");
    quantize(&source, &fused, &eight_bits(), &mut |_| {}).unwrap();
    assert_eq!(
        max_difference(&logits(&target, &ids), &logits(&fused, &ids)),
        0.0
    );
}

#[test]
fn block_scaled_fp8_is_dequantized_at_load() {
    let root = tempfile::tempdir().unwrap();
    let mut packed = HashMap::new();
    let mut widened = HashMap::new();
    let mut converted = 0;
    for (name, tensor) in tensors("qwen35-dense-tiny") {
        let linear = name.contains("_proj") && tensor.rank() == 2;
        if !linear {
            packed.insert(name.clone(), tensor.clone());
            widened.insert(name, tensor);
            continue;
        }
        // One scale for each block of 128 x 128; the largest F8_E4M3 is 448.
        let (rows, columns) = tensor.dims2().unwrap();
        let mut scales = Vec::new();
        let (mut codes, mut wide) = (Vec::new(), Vec::new());
        for row in (0..rows).step_by(128) {
            let (mut code_line, mut wide_line) = (Vec::new(), Vec::new());
            for column in (0..columns).step_by(128) {
                let block = tensor.narrow(0, row, 128.min(rows - row)).unwrap();
                let block = block
                    .narrow(1, column, 128.min(columns - column))
                    .unwrap()
                    .contiguous()
                    .unwrap();
                let scale = block
                    .abs()
                    .unwrap()
                    .max_all()
                    .unwrap()
                    .to_scalar::<f32>()
                    .unwrap()
                    / 448.0;
                let code = (block / f64::from(scale))
                    .unwrap()
                    .to_dtype(DType::F8E4M3)
                    .unwrap();
                wide_line.push((code.to_dtype(DType::F32).unwrap() * f64::from(scale)).unwrap());
                code_line.push(code);
                scales.push(scale);
            }
            codes.push(Tensor::cat(&code_line, 1).unwrap());
            wide.push(Tensor::cat(&wide_line, 1).unwrap());
        }
        let shape = (rows.div_ceil(128), columns.div_ceil(128));
        let scales = Tensor::from_vec(scales, shape, &Device::Cpu).unwrap();
        packed.insert(format!("{name}_scale_inv"), scales);
        packed.insert(name.clone(), Tensor::cat(&codes, 0).unwrap());
        widened.insert(name, Tensor::cat(&wide, 0).unwrap());
        converted += 1;
    }
    assert!(converted > 20);
    let plain = config(&fixtures().join("qwen35-dense-tiny"));
    let mut declared = plain.clone();
    declared["quantization_config"] =
        json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    write(&root.path().join("packed"), &declared, &packed);
    write(&root.path().join("widened"), &plain, &widened);
    let ids = golden("qwen35-dense-tiny").ids("ids_70");
    let found = logits(&root.path().join("packed"), &ids);
    assert!(max_difference(&found, &logits(&root.path().join("widened"), &ids)) < 1e-4);
}

#[test]
fn wrong_declarations_are_named() {
    let root = tempfile::tempdir().unwrap();
    let good = root.path().join("good");
    let mut options = eight_bits();
    options.keep.push(Keep {
        pattern: "*.v_proj".into(),
        bits: Some(4),
    });
    quantize(
        &fixtures().join("qwen35-dense-tiny"),
        &good,
        &options,
        &mut |_| {},
    )
    .unwrap();
    let ids = golden("qwen35-dense-tiny").ids("ids_5");
    logits(&good, &ids);
    let module = "language_model.model.layers.3.self_attn.v_proj";
    let mut wrong = config(&good);
    let members = wrong["quantization"].as_object_mut().unwrap();
    let declaration = members.remove(module).unwrap();
    members.insert("model.layers.3.self_attn.v_proj".into(), declaration);
    fs::write(good.join("config.json"), wrong.to_string()).unwrap();
    let error = load_error(&good);
    for part in [
        module,
        "expected 8 bits",
        "4 bits",
        "\"model.layers.3.self_attn.v_proj\" may be meant",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let mut gptq = config(&good);
    gptq.as_object_mut().unwrap().remove("quantization");
    gptq["quantization_config"] = json!({"quant_method": "gptq", "bits": 4});
    fs::write(good.join("config.json"), gptq.to_string()).unwrap();
    assert!(load_error(&good).contains("gptq"));
}

#[test]
fn quantizing_never_leaves_a_part_behind() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("made");
    fs::create_dir(&target).unwrap();
    let exists = quantize(
        &fixtures().join("llama-tiny"),
        &target,
        &eight_bits(),
        &mut |_| {},
    )
    .unwrap_err();
    assert!(exists.to_string().contains("there already"), "{exists}");
    let twice = root.path().join("twice");
    assert!(quantize(&bundled("nano"), &twice, &eight_bits(), &mut |_| {}).is_err());
    let cut = root.path().join("cut");
    fs::create_dir(&cut).unwrap();
    for file in ["config.json", "model.safetensors"] {
        let bytes = fs::read(fixtures().join("llama-tiny").join(file)).unwrap();
        let length = if file == "config.json" {
            bytes.len()
        } else {
            bytes.len() - 1
        };
        fs::write(cut.join(file), &bytes[..length]).unwrap();
    }
    let error = quantize(&cut, &twice, &eight_bits(), &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(error.contains("truncated"), "{error}");
    let left: Vec<String> = fs::read_dir(root.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| !["made", "cut"].contains(&name.as_str()))
        .collect();
    assert_eq!(left, Vec::<String>::new());
}

/// A safetensors file cut anywhere is an error that names it, never a panic.
#[test]
fn truncated_weights_are_named() {
    let root = tempfile::tempdir().unwrap();
    let source = fixtures().join("llama-tiny");
    fs::copy(source.join("config.json"), root.path().join("config.json")).unwrap();
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    for length in [0, 7, 8, 100, 2000, bytes.len() / 2, bytes.len() - 1] {
        fs::write(root.path().join("model.safetensors"), &bytes[..length]).unwrap();
        let error = load_error(root.path());
        assert!(
            error.contains("model.safetensors") && error.contains("runcated"),
            "{length}: {error}"
        );
    }
    // A header that claims more than there is.
    let mut lying = bytes.clone();
    lying[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    fs::write(root.path().join("model.safetensors"), &lying).unwrap();
    assert!(load_error(root.path()).contains("claims"));
}

//! GGUFs of the Qwen3.5 family, laid out as llama.cpp's converter does (`conversion/qwen.py`), against transformers.

use std::{
    collections::{BTreeMap, HashMap},
    fs::File,
    path::{Path, PathBuf},
};

use candle_core::{
    DType, Device, Tensor,
    quantized::{GgmlDType, QTensor, gguf_file},
};
use gguf_file::Value;
use headstart_engine::{
    checkpoint::{Checkpoint, LoadOptions},
    models::{ForwardInput, LogitRows},
    positions::Positions,
    weights::Precision,
};
use headstart_tests::{
    golden::{Golden, max_difference},
    locate::fixtures,
};

const DENSE: &str = "qwen35-dense-tiny";
const MIXTURE: &str = "qwen35-moe-tiny";

/// A file about to be written.
struct Converted {
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, Tensor>,
    architecture: &'static str,
}

fn uint(n: u64) -> Value {
    Value::U32(n as u32)
}

/// Value heads grouped by key head -> tiled, along dimension 0.
fn tiled(rows: &Tensor, key_heads: usize, shared: usize, width: usize) -> Tensor {
    let shape = rows.dims().to_vec();
    let rest: usize = shape[1..].iter().product();
    rows.reshape((key_heads, shared, width * rest))
        .unwrap()
        .transpose(0, 1)
        .unwrap()
        .contiguous()
        .unwrap()
        .reshape(shape)
        .unwrap()
}

fn convert(name: &str) -> Converted {
    let folder = fixtures().join(name);
    let config: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap())
            .unwrap();
    let number = |key: &str| config[key].as_u64().unwrap_or(0);
    let layers = number("num_hidden_layers");
    let mtp = number("mtp_num_hidden_layers");
    let experts = number("num_experts");
    let architecture = if experts > 0 { "qwen35moe" } else { "qwen35" };
    let key = |name: &str| format!("{architecture}.{name}");
    let (key_heads, value_heads) = (
        number("linear_num_key_heads"),
        number("linear_num_value_heads"),
    );
    let (key_dim, value_dim) = (
        number("linear_key_head_dim"),
        number("linear_value_head_dim"),
    );
    let rope = &config["rope_parameters"];
    let mut sections: Vec<Value> = rope["mrope_section"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| Value::I32(n.as_i64().unwrap() as i32))
        .collect();
    sections.push(Value::I32(0));
    let partial = rope["partial_rotary_factor"].as_f64().unwrap();
    let mut metadata: BTreeMap<String, Value> = [
        ("block_count", uint(layers + mtp)),
        ("context_length", uint(number("max_position_embeddings"))),
        ("embedding_length", uint(number("hidden_size"))),
        ("attention.head_count", uint(number("num_attention_heads"))),
        (
            "attention.head_count_kv",
            uint(number("num_key_value_heads")),
        ),
        ("attention.key_length", uint(number("head_dim"))),
        ("attention.value_length", uint(number("head_dim"))),
        (
            "attention.layer_norm_rms_epsilon",
            Value::F32(config["rms_norm_eps"].as_f64().unwrap() as f32),
        ),
        ("rope.freq_base", Value::F32(10_000.0)),
        (
            "rope.dimension_count",
            uint((number("head_dim") as f64 * partial) as u64),
        ),
        ("rope.dimension_sections", Value::Array(sections)),
        ("ssm.conv_kernel", uint(number("linear_conv_kernel_dim"))),
        ("ssm.state_size", uint(key_dim)),
        ("ssm.group_count", uint(key_heads)),
        ("ssm.time_step_rank", uint(value_heads)),
        ("ssm.inner_size", uint(value_dim * value_heads)),
        (
            "full_attention_interval",
            uint(number("full_attention_interval")),
        ),
    ]
    .into_iter()
    .map(|(name, value)| (key(name), value))
    .collect();
    metadata.insert(
        "general.architecture".into(),
        Value::String(architecture.into()),
    );
    if mtp > 0 {
        metadata.insert(key("nextn_predict_layers"), uint(mtp));
    }
    if experts > 0 {
        for (gguf, json) in [
            ("expert_count", "num_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
            (
                "expert_shared_feed_forward_length",
                "shared_expert_intermediate_size",
            ),
        ] {
            metadata.insert(key(gguf), uint(number(json)));
        }
    } else {
        metadata.insert(
            key("feed_forward_length"),
            uint(number("intermediate_size")),
        );
    }
    let sizes = Sizes {
        key_heads: key_heads as usize,
        shared: (value_heads / key_heads) as usize,
        keys: (key_heads * key_dim) as usize,
        value_dim: value_dim as usize,
    };
    let mut tensors = BTreeMap::new();
    let trained: HashMap<String, Tensor> =
        candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap();
    for (name, tensor) in trained {
        for (name, tensor) in converted(&name, tensor, layers, &sizes) {
            tensors.insert(name, tensor);
        }
    }
    Converted {
        metadata,
        tensors,
        architecture,
    }
}

struct Sizes {
    key_heads: usize,
    shared: usize,
    /// Width of all keys.
    keys: usize,
    value_dim: usize,
}

/// One tensor as the converter stores it.
fn converted(name: &str, tensor: Tensor, layers: u64, sizes: &Sizes) -> Vec<(String, Tensor)> {
    let whole = match name {
        "model.embed_tokens.weight" => Some("token_embd.weight"),
        "model.norm.weight" => Some("output_norm.weight"),
        "lm_head.weight" => Some("output.weight"),
        _ => None,
    };
    let (block, module) = if let Some(rest) = name.strip_prefix("model.layers.") {
        let (block, module) = rest.split_once('.').unwrap();
        (block.parse().unwrap(), module.to_string())
    } else if let Some(module) = name.strip_prefix("mtp.layers.0.") {
        (layers, module.to_string())
    } else {
        (layers, name.trim_start_matches("mtp.").to_string())
    };
    let tensor = if name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight")
        || name.starts_with("mtp.pre_fc_norm")
    {
        (tensor + 1.0).unwrap()
    } else {
        tensor
    };
    if let Some(whole) = whole {
        return vec![(whole.into(), tensor)];
    }
    let tile = |tensor: &Tensor, width: usize| tiled(tensor, sizes.key_heads, sizes.shared, width);
    // The rows after queries and keys.
    let tile_values = |tensor: &Tensor| {
        let first = tensor.narrow(0, 0, 2 * sizes.keys).unwrap();
        let values = tensor.dim(0).unwrap() - 2 * sizes.keys;
        let values = tensor
            .narrow(0, 2 * sizes.keys, values)
            .unwrap()
            .contiguous()
            .unwrap();
        Tensor::cat(&[first, tile(&values, sizes.value_dim)], 0).unwrap()
    };
    let (stored, tensor) = match module.as_str() {
        "mlp.experts.gate_up_proj" => {
            let half = tensor.dim(1).unwrap() / 2;
            return ["ffn_gate_exps", "ffn_up_exps"]
                .into_iter()
                .enumerate()
                .map(|(part, stored)| {
                    let rows = tensor.narrow(1, part * half, half).unwrap();
                    (
                        format!("blk.{block}.{stored}.weight"),
                        rows.contiguous().unwrap(),
                    )
                })
                .collect();
        }
        "mlp.experts.down_proj" => ("ffn_down_exps.weight", tensor),
        "mlp.gate.weight" => ("ffn_gate_inp.weight", tensor),
        "mlp.shared_expert_gate.weight" => ("ffn_gate_inp_shexp.weight", tensor),
        "mlp.shared_expert.gate_proj.weight" => ("ffn_gate_shexp.weight", tensor),
        "mlp.shared_expert.up_proj.weight" => ("ffn_up_shexp.weight", tensor),
        "mlp.shared_expert.down_proj.weight" => ("ffn_down_shexp.weight", tensor),
        "mlp.gate_proj.weight" => ("ffn_gate.weight", tensor),
        "mlp.up_proj.weight" => ("ffn_up.weight", tensor),
        "mlp.down_proj.weight" => ("ffn_down.weight", tensor),
        "input_layernorm.weight" => ("attn_norm.weight", tensor),
        "post_attention_layernorm.weight" => ("post_attention_norm.weight", tensor),
        "self_attn.q_proj.weight" => ("attn_q.weight", tensor),
        "self_attn.k_proj.weight" => ("attn_k.weight", tensor),
        "self_attn.v_proj.weight" => ("attn_v.weight", tensor),
        "self_attn.o_proj.weight" => ("attn_output.weight", tensor),
        "self_attn.q_norm.weight" => ("attn_q_norm.weight", tensor),
        "self_attn.k_norm.weight" => ("attn_k_norm.weight", tensor),
        "linear_attn.in_proj_qkv.weight" => ("attn_qkv.weight", tile_values(&tensor)),
        "linear_attn.in_proj_z.weight" => ("attn_gate.weight", tile(&tensor, sizes.value_dim)),
        "linear_attn.in_proj_a.weight" => ("ssm_alpha.weight", tile(&tensor, 1)),
        "linear_attn.in_proj_b.weight" => ("ssm_beta.weight", tile(&tensor, 1)),
        "linear_attn.conv1d.weight" => (
            "ssm_conv1d.weight",
            tile_values(&tensor.squeeze(1).unwrap()),
        ),
        "linear_attn.norm.weight" => ("ssm_norm.weight", tensor),
        "linear_attn.out_proj.weight" => {
            let columns = tile(&tensor.t().unwrap().contiguous().unwrap(), sizes.value_dim);
            ("ssm_out.weight", columns.t().unwrap().contiguous().unwrap())
        }
        "linear_attn.A_log" => ("ssm_a", tile(&tensor.exp().unwrap().neg().unwrap(), 1)),
        "linear_attn.dt_bias" => ("ssm_dt.bias", tile(&tensor, 1)),
        "fc.weight" => ("nextn.eh_proj.weight", tensor),
        "pre_fc_norm_embedding.weight" => ("nextn.enorm.weight", tensor),
        "pre_fc_norm_hidden.weight" => ("nextn.hnorm.weight", tensor),
        "norm.weight" => ("nextn.shared_head_norm.weight", tensor),
        other => panic!("no place for {other}"),
    };
    vec![(format!("blk.{block}.{stored}"), tensor)]
}

impl Converted {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    /// Writes the file; matrices whose rows `matrices`' blocks fill are quantized, but for what the converter keeps in F32.
    fn write(&self, folder: &Path, matrices: GgmlDType) -> PathBuf {
        let path = folder.join("model.gguf");
        let tensors: Vec<(&str, QTensor)> = self
            .tensors
            .iter()
            .map(|(name, tensor)| {
                let kept = tensor.rank() < 2
                    || ["ssm_conv1d", "ffn_gate_inp"]
                        .iter()
                        .any(|kept| name.contains(kept));
                let fits = |dtype: GgmlDType| {
                    tensor
                        .dims()
                        .last()
                        .is_some_and(|n| n.is_multiple_of(dtype.block_size()))
                };
                let dtype = if kept || !fits(matrices) {
                    GgmlDType::F32
                } else {
                    matrices
                };
                (name.as_str(), QTensor::quantize(tensor, dtype).unwrap())
            })
            .collect();
        let tensors: Vec<(&str, &QTensor)> = tensors
            .iter()
            .map(|(name, tensor)| (*name, tensor))
            .collect();
        let metadata: Vec<(&str, &Value)> = self
            .metadata
            .iter()
            .map(|(name, value)| (name.as_str(), value))
            .collect();
        gguf_file::write(&mut File::create(&path).unwrap(), &metadata, &tensors).unwrap();
        path
    }

    fn logits(&self, ids: &[u32], matrices: GgmlDType) -> Tensor {
        let folder = tempfile::tempdir().unwrap();
        let options = LoadOptions {
            dtype: Some(DType::F32),
            precision: Precision::Fast,
        };
        let checkpoint = Checkpoint::open(&self.write(folder.path(), matrices)).unwrap();
        assert_eq!(
            checkpoint.summary().unwrap().architecture,
            self.architecture
        );
        let model = checkpoint.load(&Device::Cpu, &options).unwrap();
        assert_eq!(
            model.cache_bytes_per_token(),
            checkpoint.cache_bytes_per_token(&Device::Cpu).unwrap()
        );
        let positions = Positions::contiguous(0, ids.len());
        let input = ForwardInput::new(ids, &positions, LogitRows::All);
        model
            .forward(input, &mut model.new_cache())
            .unwrap()
            .logits
            .unwrap()
    }

    fn load_error(&self) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = self.write(folder.path(), GgmlDType::F32);
        let loaded = Checkpoint::open(&path)
            .and_then(|checkpoint| checkpoint.load(&Device::Cpu, &LoadOptions::default()));
        match loaded {
            Ok(_) => panic!("it loaded"),
            Err(error) => error.to_string(),
        }
    }
}

fn golden(name: &str) -> Golden {
    Golden::read(&fixtures().join(name).join("golden.safetensors"))
}

#[track_caller]
fn assert_golden(name: &str, converted: &Converted) {
    let golden = golden(name);
    for length in [1, 5, 70, 150] {
        let found = converted.logits(&golden.ids(&format!("ids_{length}")), GgmlDType::F32);
        let difference = max_difference(&found, golden.tensor(&format!("logits_{length}")));
        println!("{name}, {length} tokens: {difference:e}");
        assert!(difference < 2e-4, "{name}, {length} tokens: {difference}");
    }
}

#[test]
fn converted_models_equal_transformers() {
    for name in [DENSE, MIXTURE] {
        assert_golden(name, &convert(name));
    }
}

/// Blocks of 32 columns span two value heads of 16 here, so columns cannot be moved, only what they are multiplied by.
#[test]
fn quantized_files_lose_little() {
    for name in [DENSE, MIXTURE] {
        let golden = golden(name);
        let found = convert(name).logits(&golden.ids("ids_70"), GgmlDType::Q8_0);
        let expected = golden.tensor("logits_70");
        let mean_square = |tensor: &Tensor| {
            let mean = tensor.sqr().unwrap().mean_all().unwrap();
            mean.to_scalar::<f32>().unwrap()
        };
        let error = (mean_square(&(found - expected).unwrap()) / mean_square(expected)).sqrt();
        println!("{name}: relative error {error:.4}");
        // Random weights amplify the rounding of weights and activations; heads in a wrong order give 1 and more.
        assert!(error > 0.0 && error < 0.25, "{name}: {error}");
    }
}

#[test]
fn every_published_spelling_loads() {
    let mut listed = convert(DENSE);
    let interval = listed.key("full_attention_interval");
    let list = listed.key("attention.recurrent_layers");
    listed.metadata.remove(&interval);
    // Without a word about it every fourth layer is attention.
    assert_golden(DENSE, &listed);
    listed.metadata.insert(interval, uint(2));
    let flags = [true, true, true, false, false].map(Value::Bool);
    listed.metadata.insert(list, Value::Array(flags.to_vec()));
    assert_golden(DENSE, &listed);

    let mut fused = convert(MIXTURE);
    for block in 0..4 {
        let mut take = |name: &str| {
            fused
                .tensors
                .remove(&format!("blk.{block}.{name}.weight"))
                .unwrap()
        };
        let both = Tensor::cat(&[take("ffn_gate_exps"), take("ffn_up_exps")], 1).unwrap();
        let share = take("ffn_gate_inp_shexp").flatten_all().unwrap();
        let mut put = |name: &str, tensor: Tensor| {
            let name = format!("blk.{block}.{name}.weight");
            fused.tensors.insert(name, tensor);
        };
        put("ffn_gate_up_exps", both);
        put("ffn_gate_inp_shexp", share);
    }
    assert_golden(MIXTURE, &fused);
}

#[test]
fn wrong_files_are_refused_in_words() {
    let refused = |change: &dyn Fn(&mut Converted), word: &str| {
        let mut converted = convert(DENSE);
        change(&mut converted);
        let error = converted.load_error();
        assert!(error.contains(word), "{error}");
    };
    refused(
        &|c| {
            c.metadata
                .insert("qwen35.nextn_predict_layers".into(), uint(5));
        },
        "MTP",
    );
    refused(
        &|c| {
            let sections = [3, 3, 2, 0].map(Value::I32).to_vec();
            c.metadata.insert(
                "qwen35.rope.dimension_sections".into(),
                Value::Array(sections),
            );
        },
        "dimension_sections",
    );
    refused(
        &|c| {
            c.metadata.insert("qwen35.ssm.inner_size".into(), uint(66));
        },
        "66",
    );
    refused(
        &|c| {
            c.metadata.insert("qwen35.ssm.group_count".into(), uint(3));
        },
        "key heads",
    );
    refused(
        &|c| {
            c.metadata.remove("qwen35.ssm.time_step_rank");
        },
        "ssm.time_step_rank",
    );
    refused(
        &|c| {
            let flags = [true, false].map(Value::Bool).to_vec();
            c.metadata.insert(
                "qwen35.attention.recurrent_layers".into(),
                Value::Array(flags),
            );
        },
        "recurrent_layers",
    );
    refused(
        &|c| {
            let positive = Tensor::ones(4, DType::F32, &Device::Cpu).unwrap();
            c.tensors.insert("blk.1.ssm_a".into(), positive);
        },
        "blk.1.ssm_a",
    );
    refused(
        &|c| {
            c.tensors.remove("blk.2.ssm_dt.bias");
        },
        "blk.2.ssm_dt.bias",
    );
    refused(
        &|c| {
            c.tensors.remove("blk.0.post_attention_norm.weight");
        },
        "blk.0.post_attention_norm.weight",
    );
}

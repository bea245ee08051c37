//! Writing the new checkpoint: shard by shard, one matrix in memory at a time, under its final name only when it is whole.

use std::{
    fs::File,
    io::{BufWriter, Write},
    path::{Path, PathBuf},
};

use candle_core::DType;
use half::{bf16, f16};
use rayon::prelude::*;
use serde_json::{Map, Value, json};

use super::{
    affine::quantize_rows,
    plan::{Action, Item, QuantizeOptions, plan},
};
use crate::{
    config::ConfigSource,
    error::ModelError,
    weights::{AffineFormat, QuantizationConfig, SafetensorsSource},
};

/// The size after which a new shard is begun.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Files that go along as they are.
const COMPANIONS: [&str; 9] = [
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
];

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizeReport {
    /// Bytes of all tensors before and after.
    pub bytes: (u64, u64),
    /// Modules quantized.
    pub quantized: usize,
    /// Tensors left as they were.
    pub copied: usize,
    /// Tensors left out (image encoders).
    pub dropped: usize,
}

/// Quantizes the folder `source` into the new folder `target`. Calls `progress` with the part done, 0 to 1.
///
/// # Errors
/// When the source cannot be read or is quantized already, the target exists, or it cannot be written. Nothing is left behind then.
pub fn quantize(
    source: &Path,
    target: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn FnMut(f64),
) -> Result<QuantizeReport, ModelError> {
    if target.exists() {
        return Err(ModelError::corrupt(
            target,
            "is there already; choose another name or remove it first",
        ));
    }
    let config = ConfigSource::from_folder(source)?;
    if config.json("quantization").is_some() || config.json("quantization_config").is_some() {
        return Err(ModelError::corrupt(
            source,
            "is quantized already; quantize the unquantized checkpoint that it was made from",
        ));
    }
    let hybrid = config.architecture()?.starts_with("qwen3_5");
    let tensors = SafetensorsSource::open(source, QuantizationConfig::default())?;
    let plan = plan(&tensors, options, hybrid)?;
    let name = target
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let partial = target.with_file_name(format!(".{name}.partial-{}", std::process::id()));
    std::fs::create_dir_all(&partial).map_err(|e| ModelError::io(&partial, e))?;
    let written = write_all(&tensors, &plan.items, &partial, progress)
        .and_then(|bytes| {
            write_config(source, &partial, &plan.items, options.format, hybrid)?;
            for companion in COMPANIONS {
                let from = source.join(companion);
                if from.is_file() {
                    std::fs::copy(&from, partial.join(companion))
                        .map_err(|e| ModelError::io(&from, e))?;
                }
            }
            std::fs::rename(&partial, target).map_err(|e| ModelError::io(target, e))?;
            Ok(bytes)
        })
        .inspect_err(|_| {
            // The error at hand matters more than one of tidying up.
            let _ = std::fs::remove_dir_all(&partial);
        })?;
    let quantized = plan
        .items
        .iter()
        .filter(|item| matches!(item.action, Action::Quantize(_)))
        .count();
    Ok(QuantizeReport {
        bytes: (
            tensors.summaries().iter().map(|tensor| tensor.bytes).sum(),
            written,
        ),
        quantized,
        copied: plan.items.len() - quantized,
        dropped: plan.dropped.len(),
    })
}

fn bytes_of(dtype: &str, shape: &[usize]) -> u64 {
    let size = match dtype {
        "U32" | "F32" => 4,
        _ => 2,
    };
    shape.iter().product::<usize>() as u64 * size
}

fn item_bytes(item: &Item) -> u64 {
    item.outputs()
        .iter()
        .map(|(_, dtype, shape)| bytes_of(dtype, shape))
        .sum()
}

fn write_all(
    source: &SafetensorsSource,
    items: &[Item],
    folder: &Path,
    progress: &mut dyn FnMut(f64),
) -> Result<u64, ModelError> {
    let mut shards: Vec<Vec<&Item>> = vec![Vec::new()];
    let mut size = 0;
    for item in items {
        if size > 0 && size + item_bytes(item) > SHARD_BYTES {
            shards.push(Vec::new());
            size = 0;
        }
        size += item_bytes(item);
        if let Some(shard) = shards.last_mut() {
            shard.push(item);
        }
    }
    let total: u64 = items.iter().map(item_bytes).sum();
    let count = shards.len();
    let mut weight_map = Map::new();
    let mut done = 0;
    for (i, shard) in shards.iter().enumerate() {
        let name = if count == 1 {
            "model.safetensors".to_string()
        } else {
            format!("model-{:05}-of-{count:05}.safetensors", i + 1)
        };
        for (tensor, _, _) in shard.iter().flat_map(|item| item.outputs()) {
            weight_map.insert(tensor, json!(name));
        }
        write_shard(source, shard, &folder.join(&name), &mut |bytes| {
            done += bytes;
            progress(done as f64 / total.max(1) as f64);
        })?;
    }
    if count > 1 {
        let index = json!({"metadata": {"total_size": total}, "weight_map": weight_map});
        write_file(
            &folder.join("model.safetensors.index.json"),
            pretty(&index).as_bytes(),
        )?;
    }
    Ok(total)
}

fn write_shard(
    source: &SafetensorsSource,
    items: &[&Item],
    path: &PathBuf,
    progress: &mut dyn FnMut(u64),
) -> Result<(), ModelError> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "mlx"}));
    let mut offset = 0;
    for (name, dtype, shape) in items.iter().flat_map(|item| item.outputs()) {
        let end = offset + bytes_of(dtype, &shape);
        header.insert(
            name,
            json!({"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}),
        );
        offset = end;
    }
    let mut header = Value::Object(header).to_string();
    // The data begins at a multiple of 8.
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let io = |e: std::io::Error| ModelError::io(path, e);
    let file = File::create(path).map_err(io)?;
    let mut out = BufWriter::with_capacity(1 << 20, file);
    out.write_all(&(header.len() as u64).to_le_bytes())
        .map_err(io)?;
    out.write_all(header.as_bytes()).map_err(io)?;
    for item in items {
        for bytes in item_data(source, item)? {
            out.write_all(&bytes).map_err(io)?;
        }
        progress(item_bytes(item));
    }
    let file = out
        .into_inner()
        .map_err(|e| ModelError::io(path, e.into_error()))?;
    file.sync_all().map_err(io)
}

/// The bytes of an item's tensors.
fn item_data(source: &SafetensorsSource, item: &Item) -> Result<Vec<Vec<u8>>, ModelError> {
    let columns = match (item.action, item.shape.last()) {
        (Action::Quantize(_), Some(columns)) => *columns,
        _ => 1,
    };
    let mut stored = Vec::new();
    for part in &item.parts {
        stored.extend_from_slice(source.stored_rows(&part.tensor, part.start, part.count)?);
    }
    let Action::Quantize(format) = item.action else {
        if item.action == Action::Copy {
            return Ok(vec![stored]);
        }
        let shifted: Vec<f32> = widen(&stored, item.dtype)
            .into_iter()
            .map(|w| w + 1.0)
            .collect();
        return Ok(vec![narrow(&shifted, item.dtype)]);
    };
    let weights = widen(&stored, item.dtype);
    // A few thousand weights a task; whole rows, so that groups stay whole.
    let task = columns * (16_384 / columns).max(1);
    let parts: Vec<_> = weights
        .par_chunks(task)
        .map(|rows| quantize_rows(rows, format, item.dtype))
        .collect();
    Ok(vec![
        parts.iter().flat_map(|part| &part.words).copied().collect(),
        parts
            .iter()
            .flat_map(|part| &part.scales)
            .copied()
            .collect(),
        parts
            .iter()
            .flat_map(|part| &part.biases)
            .copied()
            .collect(),
    ])
}

fn widen(bytes: &[u8], dtype: DType) -> Vec<f32> {
    match dtype {
        DType::BF16 => bytemuck::pod_collect_to_vec::<u8, bf16>(bytes)
            .into_iter()
            .map(bf16::to_f32)
            .collect(),
        DType::F16 => bytemuck::pod_collect_to_vec::<u8, f16>(bytes)
            .into_iter()
            .map(f16::to_f32)
            .collect(),
        _ => bytemuck::pod_collect_to_vec(bytes),
    }
}

fn narrow(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::BF16 => values
            .iter()
            .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
            .collect(),
        DType::F16 => values
            .iter()
            .flat_map(|v| f16::from_f32(*v).to_le_bytes())
            .collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// `config.json` with the quantization declared, for hybrids in the form that MLX's loaders know.
fn write_config(
    source: &Path,
    folder: &Path,
    items: &[Item],
    format: AffineFormat,
    hybrid: bool,
) -> Result<(), ModelError> {
    let path = source.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(|e| ModelError::io(&path, e))?;
    let mut config: Map<String, Value> = serde_json::from_str(&text)
        .map_err(|e| ModelError::corrupt(&path, format!("not valid JSON: {e}")))?;
    if hybrid {
        config.remove("vision_config");
        if !config.contains_key("text_config") {
            let moe = config.contains_key("num_experts");
            let mut outer = Map::new();
            for key in ["tie_word_embeddings", "eos_token_id", "bos_token_id"] {
                outer.extend(
                    config
                        .get(key)
                        .map(|value| (key.to_string(), value.clone())),
                );
            }
            let (kind, class) = if moe {
                ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration")
            } else {
                ("qwen3_5", "Qwen3_5ForConditionalGeneration")
            };
            outer.insert("architectures".into(), json!([class]));
            outer.insert("model_type".into(), json!(kind));
            outer.insert("text_config".into(), Value::Object(config));
            config = outer;
        }
    }
    let declared = |format: AffineFormat| json!({"group_size": format.group, "bits": format.bits, "mode": "affine"});
    let mut quantization = declared(format);
    if let Some(members) = quantization.as_object_mut() {
        for item in items
            .iter()
            .filter(|item| item.is_weight && item.shape.len() > 1)
        {
            match item.action {
                Action::Quantize(own) if own == format => {}
                Action::Quantize(own) => {
                    members.insert(item.name.clone(), declared(own));
                }
                _ => {
                    members.insert(item.name.clone(), Value::Bool(false));
                }
            }
        }
    }
    config.insert("quantization".into(), quantization.clone());
    config.insert("quantization_config".into(), quantization);
    write_file(
        &folder.join("config.json"),
        pretty(&Value::Object(config)).as_bytes(),
    )
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), ModelError> {
    let io = |e: std::io::Error| ModelError::io(path, e);
    let mut file = File::create(path).map_err(io)?;
    file.write_all(bytes).map_err(io)?;
    file.sync_all().map_err(io)
}

//! `headstart inspect MODEL`.

use clap::Args;
use headstart_engine::{
    checkpoint::{Checkpoint, CheckpointFormat},
    device::DeviceChoice,
};
use serde_json::json;

use super::{Failure, find_model, human_bytes};
use crate::{conversation::template_of, serve::ServeOptions};

#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// Name or path of the model.
    model: String,
    /// List every tensor.
    #[arg(long)]
    tensors: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Shows what a model is, without loading its weights.
pub(super) fn inspect(options: &ServeOptions, args: &InspectArgs) -> Result<(), Failure> {
    let entry = find_model(options, &args.model)?;
    let checkpoint = Checkpoint::open(&entry.path)?;
    let summary = checkpoint.summary()?;
    let tensors = checkpoint.tensors()?;
    let tokenizer = checkpoint.tokenizer();
    let template = template_of(&checkpoint);
    let cache_bytes = checkpoint
        .cache_bytes_per_token(&options.settings.device.parse::<DeviceChoice>()?.open()?)?;
    let mut types: Vec<(String, usize, u64)> = Vec::new();
    for tensor in &tensors {
        match types
            .iter_mut()
            .find(|(dtype, _, _)| *dtype == tensor.dtype)
        {
            Some((_, count, bytes)) => {
                *count += 1;
                *bytes += tensor.bytes;
            }
            None => types.push((tensor.dtype.clone(), 1, tensor.bytes)),
        }
    }
    types.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
    let format = match summary.format {
        CheckpointFormat::Gguf => "GGUF",
        CheckpointFormat::Safetensors => "safetensors",
    };
    let at_full_context = summary.bytes + (cache_bytes * summary.context_length) as u64;
    if args.json {
        let value = json!({
            "id": entry.id,
            "path": entry.path,
            "format": format,
            "architecture": summary.architecture,
            "quantization": summary.quantization,
            "parameters": summary.parameters,
            "size_bytes": summary.bytes,
            "context_length": summary.context_length,
            "cache_bytes_per_token": cache_bytes,
            "memory_at_full_context_bytes": at_full_context,
            "tensor_types": types.iter().map(|(dtype, count, bytes)| json!({"type": dtype, "tensors": count, "bytes": bytes})).collect::<Vec<_>>(),
            "tokenizer": match &tokenizer {
                Ok(tokenizer) => json!({"vocab_size": tokenizer.vocab_size(), "bos_token": tokenizer.bos_token(),
                    "eos_token": tokenizer.eos_token(), "stop_ids": tokenizer.stop_ids()}),
                Err(error) => json!({"error": error.to_string()}),
            },
            "chat_template": match &template {
                Ok(template) => json!(template.as_ref().map(|t| t.source())),
                Err(error) => json!({"error": error.to_string()}),
            },
            "tensors": args.tensors.then(|| tensors.iter().map(|t| json!({"name": t.name, "shape": t.shape, "type": t.dtype, "bytes": t.bytes})).collect::<Vec<_>>()),
        });
        println!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    println!("{}", entry.id);
    println!("  path          {}", entry.path.display());
    println!("  format        {format}");
    println!("  architecture  {}", summary.architecture);
    println!("  quantization  {}", summary.quantization);
    println!("  parameters    {:.1} M", summary.parameters as f64 / 1e6);
    println!(
        "  size          {} in {} tensors",
        human_bytes(summary.bytes),
        tensors.len()
    );
    for (dtype, count, bytes) in &types {
        println!(
            "                {dtype:8} {count:4} tensors, {}",
            human_bytes(*bytes)
        );
    }
    println!("  context       {} tokens", summary.context_length);
    println!(
        "  memory        {} weights + {} cache a token = {} at full context",
        human_bytes(summary.bytes),
        human_bytes(cache_bytes as u64),
        human_bytes(at_full_context)
    );
    match &tokenizer {
        Ok(tokenizer) => println!(
            "  tokenizer     {} entries, begin {}, end {}, stops {:?}",
            tokenizer.vocab_size(),
            tokenizer.bos_token().unwrap_or("-"),
            tokenizer.eos_token().unwrap_or("-"),
            tokenizer.stop_ids()
        ),
        Err(error) => println!("  tokenizer     cannot be used: {error}"),
    }
    match &template {
        Ok(Some(template)) => println!(
            "  chat template {} characters",
            template.source().chars().count()
        ),
        Ok(None) => println!("  chat template none: only plain completions"),
        Err(error) => println!("  chat template cannot be used: {error}"),
    }
    if args.tensors {
        println!();
        for tensor in &tensors {
            println!("  {:60} {:8} {:?}", tensor.name, tensor.dtype, tensor.shape);
        }
    }
    Ok(())
}

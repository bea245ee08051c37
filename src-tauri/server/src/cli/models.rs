//! `headstart models`.

use clap::Args;
use serde_json::json;

use super::{Failure, human_bytes};
use crate::{
    library::Library,
    serve::{ServeOptions, model_folders},
};

#[derive(Debug, Args)]
pub(super) struct ModelsArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Lists the models.
pub(super) fn models(options: &ServeOptions, args: &ModelsArgs) -> Result<(), Failure> {
    let folders = model_folders(options);
    let library = Library::new(folders.clone());
    let entries = library.entries();
    if args.json {
        let list: Vec<_> = entries
            .iter()
            .map(|entry| match &entry.status {
                Ok(summary) => json!({
                    "id": entry.id,
                    "path": entry.path,
                    "architecture": summary.architecture,
                    "quantization": summary.quantization,
                    "parameters": summary.parameters,
                    "size_bytes": summary.bytes,
                    "context_length": summary.context_length,
                }),
                Err(reason) => json!({"id": entry.id, "path": entry.path, "error": reason}),
            })
            .collect();
        println!("{}", serde_json::to_string_pretty(&list)?);
        return Ok(());
    }
    if entries.is_empty() {
        println!("No models yet. Put .gguf files or model folders into one of:");
        for folder in folders {
            println!("  {}", folder.display());
        }
        return Ok(());
    }
    let width = entries
        .iter()
        .map(|entry| entry.id.chars().count())
        .max()
        .unwrap_or(0);
    for entry in &entries {
        match &entry.status {
            Ok(summary) => println!(
                "{:width$}  {:8} {:6} {:>9}  {} tokens of context",
                entry.id,
                summary.architecture,
                summary.quantization,
                human_bytes(summary.bytes),
                summary.context_length
            ),
            Err(reason) => println!("{:width$}  cannot be used: {reason}", entry.id),
        }
    }
    Ok(())
}

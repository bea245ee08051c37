//! `headstart render`: the prompt that a model is given, to the letter.

use std::{
    io::{Read, Write},
    path::PathBuf,
};

use clap::Args;
use headstart_engine::checkpoint::Checkpoint;

use super::{Failure, find_model};
use crate::{
    conversation::{Conversation, template_of},
    prompt::{ChatTemplate, RenderRequest, SpecialTokens},
    serve::ServeOptions,
};

#[derive(Debug, Args)]
pub(super) struct RenderArgs {
    /// Name or path of the model whose template is used.
    #[arg(required_unless_present = "template")]
    model: Option<String>,
    /// A Jinja template instead of the model's own.
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// The conversation: JSON with "messages" and, optionally, "tools", "chat_template_kwargs", "add_generation_prompt" and
    /// "continue_final_message"; "-" is standard input.
    #[arg(long, value_name = "FILE")]
    request: PathBuf,
    /// Print the token ids instead of the text (needs a model).
    #[arg(long)]
    tokens: bool,
}

/// Renders and prints.
pub(super) fn render(options: &ServeOptions, args: &RenderArgs) -> Result<(), Failure> {
    let checkpoint = match &args.model {
        Some(name) => Some(Checkpoint::open(&find_model(options, name)?.path)?),
        None => None,
    };
    let template = match (&args.template, &checkpoint) {
        (Some(file), _) => {
            let source = std::fs::read_to_string(file)
                .map_err(|e| Failure(format!("cannot read {}: {e}", file.display())))?;
            ChatTemplate::compile(&source, SpecialTokens::default())?
        }
        (None, Some(checkpoint)) => template_of(checkpoint)?.ok_or_else(|| {
            Failure("this model has no chat template; give one with --template".into())
        })?,
        (None, None) => return Err(Failure("name a model or a --template".into())),
    };
    let request = read_request(&args.request)?;
    let text = template.render(&request)?;
    let mut out = std::io::stdout().lock();
    if args.tokens {
        let checkpoint = checkpoint.ok_or_else(|| Failure("--tokens needs a model".into()))?;
        let ids = checkpoint.tokenizer()?.encode(&text, false)?;
        writeln!(out, "{}", serde_json::to_string(&ids)?)?;
    } else {
        // Nothing is added: what is printed is what the model reads.
        out.write_all(text.as_bytes())?;
    }
    out.flush()?;
    Ok(())
}

fn read_request(path: &PathBuf) -> Result<RenderRequest, Failure> {
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        text
    } else {
        std::fs::read_to_string(path)
            .map_err(|e| Failure(format!("cannot read {}: {e}", path.display())))?
    };
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    let conversation: Conversation =
        serde_path_to_error::deserialize(&mut deserializer).map_err(|e| {
            Failure(format!(
                "the request is wrong at \"{}\": {}",
                e.path(),
                e.inner()
            ))
        })?;
    Ok(conversation.into_request())
}

//! `headstart run MODEL "prompt"`.

use std::io::{IsTerminal, Read, Write};

use clap::Args;
use headstart_engine::{
    checkpoint::Checkpoint,
    request::{FinishReason, GenerationEvent, GenerationRequest},
    sampling::SamplingParams,
    scheduler::ModelSpec,
};
use serde_json::json;

use super::{
    Failure, find_model,
    speed::{SpeedArgs, summary},
    start_engine,
};
use crate::{
    conversation::template_of,
    defaults::SamplingDefaults,
    prompt::{NoStaticPrefix, PreparedPrompt, RenderRequest},
    serve::ServeOptions,
};

#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Name or path of the model.
    model: String,
    /// The prompt; without it, standard input is read.
    prompt: Option<String>,
    /// A system message.
    #[arg(long)]
    system: Option<String>,
    /// Give the prompt to the model as it is, without a chat template.
    #[arg(long)]
    raw: bool,
    /// The most tokens to generate.
    #[arg(long, value_name = "N")]
    max_tokens: Option<usize>,
    /// 0 always takes the likeliest token.
    #[arg(long, value_name = "T")]
    temperature: Option<f32>,
    /// Makes the answer repeatable.
    #[arg(long)]
    seed: Option<u64>,
    /// Do not print counts and times at the end.
    #[arg(long)]
    no_stats: bool,
    #[command(flatten)]
    speed: SpeedArgs,
}

/// Answers one prompt, streaming to standard output; counts and times go to standard error.
pub(super) fn run(options: &ServeOptions, args: RunArgs) -> Result<(), Failure> {
    let prompt = match args.prompt {
        Some(prompt) => prompt,
        None => {
            if std::io::stdin().is_terminal() {
                eprintln!("headstart: reading the prompt from the terminal; end it with Ctrl-D");
            }
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text)?;
            text
        }
    };
    let entry = find_model(options, &args.model)?;
    let settings = args.speed.resolve(options, &entry)?;
    let checkpoint = Checkpoint::open(&entry.path)?;
    let (text, conversation) = if args.raw {
        (prompt, None)
    } else {
        let template = template_of(&checkpoint)?.ok_or_else(|| {
            Failure(
                "this model has no chat template; use --raw to let it continue your text".into(),
            )
        })?;
        let mut messages = Vec::new();
        messages.extend(
            args.system
                .map(|text| json!({"role": "system", "content": text})),
        );
        messages.push(json!({"role": "user", "content": prompt}));
        let request = RenderRequest {
            messages,
            now: Some(chrono::Local::now().naive_local()),
            ..RenderRequest::default()
        };
        (template.render(&request)?, Some((template, request)))
    };
    drop(checkpoint);
    let engine = start_engine(options)?;
    let spec = ModelSpec {
        key: entry.id,
        path: entry.path.clone(),
        options: headstart_engine::checkpoint::LoadOptions::default(),
    };
    let model = engine.load_blocking(spec.clone())?;
    let defaults = SamplingDefaults::of_model(&entry.path);
    let sampling = SamplingParams {
        temperature: args.temperature.unwrap_or(defaults.temperature),
        top_k: defaults.top_k,
        top_p: defaults.top_p,
        min_p: defaults.min_p,
        repetition_penalty: defaults.repetition_penalty,
        seed: args.seed,
        ..SamplingParams::greedy()
    };
    let tokens = model.tokenizer.encode(&text, args.raw)?;
    let not_needed = PreparedPrompt::not_needed(&tokens, &settings.specprefill);
    let prompt = match (conversation, not_needed) {
        (None, _) => PreparedPrompt::without_boundaries(tokens, NoStaticPrefix::NoTemplate),
        (_, Some(reason)) => PreparedPrompt::without_boundaries(tokens, reason),
        (Some((template, request)), None) => PreparedPrompt::of_conversation(
            tokens,
            &request,
            &template,
            &model.tokenizer,
            settings.protect_last_messages,
        ),
    };
    let mut events = engine.submit(GenerationRequest {
        stop_ids: model.tokenizer.stop_ids().to_vec(),
        max_tokens: args.max_tokens,
        static_prefix: prompt.static_prefix,
        protected_tail: prompt.protected_tail,
        specprefill: settings.specprefill.clone(),
        mtp: settings.mtp,
        ..GenerationRequest::new(spec, prompt.tokens, sampling)
    })?;
    let mut out = std::io::stdout().lock();
    while let Some(event) = events.next_blocking() {
        match event {
            GenerationEvent::Admitted | GenerationEvent::Prefill { .. } => {}
            GenerationEvent::Text { text, .. } => {
                if let Err(error) = out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
                    // The reader of a pipe may have seen enough.
                    if error.kind() == std::io::ErrorKind::BrokenPipe {
                        return Ok(());
                    }
                    return Err(error.into());
                }
            }
            GenerationEvent::Finished { reason, usage } => {
                writeln!(out)?;
                if !args.no_stats {
                    let speed = |rate: Option<f64>| {
                        rate.map_or("-".to_string(), |rate| format!("{rate:.1} tok/s"))
                    };
                    eprintln!(
                        "[{} prompt tokens at {}, first token after {:.2} s, {} tokens at {}{}]",
                        usage.prompt_tokens,
                        speed(usage.prompt_tokens_per_second()),
                        usage.time_to_first_token.as_secs_f64(),
                        usage.completion_tokens,
                        speed(usage.generation_tokens_per_second()),
                        if reason == FinishReason::Length {
                            ", cut at the limit"
                        } else {
                            ""
                        }
                    );
                    for line in summary(&settings, &usage) {
                        eprintln!("[{line}]");
                    }
                }
                return Ok(());
            }
            GenerationEvent::Failed(error) => return Err(error.into()),
        }
    }
    Err(Failure(
        "the engine stopped in the middle of the answer".into(),
    ))
}

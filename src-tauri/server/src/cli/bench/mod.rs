//! `headstart bench MODEL`: time to first token, prefill and decode speed, and memory.

mod facts;
mod mtp;
mod prose;
mod specprefill;

use clap::Args;
use headstart_engine::{
    checkpoint::LoadOptions,
    request::{GenerationEvent, GenerationRequest, Usage},
    sampling::SamplingParams,
    scheduler::{Engine, ModelInfo, ModelSpec},
    specprefill::policy::KEEP_RATIO_RANGE,
};
use serde_json::{Value, json};

use super::{Failure, find_model, human_bytes, start_engine};
use crate::serve::ServeOptions;

#[derive(Debug, Args)]
pub(super) struct BenchArgs {
    /// Name or path of the model.
    model: String,
    /// Prompt lengths in tokens.
    #[arg(long, value_delimiter = ',', default_value = "128,512,2048")]
    prompt: Vec<usize>,
    /// Answer lengths in tokens.
    #[arg(long, value_delimiter = ',', default_value = "128")]
    output: Vec<usize>,
    /// Runs of each pair; medians are shown.
    #[arg(long, default_value_t = 3)]
    repeat: usize,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Compare sparse with dense prefills on prompts that hide a fact: time to first token, kept tokens, how far the next token's
    /// distribution moved, and whether the fact is found.
    #[arg(long, conflicts_with = "mtp")]
    specprefill: bool,
    /// Compare decoding without drafts, with fixed depths and with the adaptive one, on short conversations.
    #[arg(long)]
    mtp: bool,
    /// The draft model; without one the model's own first layers rank the tokens.
    #[arg(long, requires = "specprefill")]
    draft: Option<String>,
    /// Keep ratios to compare.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "0.2",
        requires = "specprefill"
    )]
    keep: Vec<f32>,
    /// Prompts of each length.
    #[arg(long, default_value_t = 10, requires = "specprefill")]
    cases: usize,
    /// Prompts with at most this many tokens are read whole.
    #[arg(long, default_value_t = 1024, requires = "specprefill")]
    threshold: usize,
    /// Show the facts that only the dense answer knows.
    #[arg(long, requires = "specprefill")]
    verbose: bool,
}

/// Medians of one pair of lengths.
#[derive(Debug, Clone)]
struct Row {
    prompt: usize,
    output: usize,
    ttft: f64,
    prefill: f64,
    decode: Option<f64>,
    peak_bytes: Option<u64>,
}

/// Measures and prints.
pub(super) fn bench(options: &ServeOptions, args: &BenchArgs) -> Result<(), Failure> {
    let entry = find_model(options, &args.model)?;
    let engine = start_engine(options)?;
    let spec = ModelSpec {
        key: entry.id.clone(),
        path: entry.path.clone(),
        options: LoadOptions::default(),
    };
    let model = engine.load_blocking(spec.clone())?;
    let longest = args.prompt.iter().max().copied().unwrap_or(0)
        + args.output.iter().max().copied().unwrap_or(0);
    if args.prompt.iter().chain(&args.output).any(|n| *n == 0) || args.repeat == 0 {
        return Err(Failure("lengths and --repeat must be at least 1".into()));
    }
    if longest > model.context_length {
        return Err(Failure(format!(
            "the longest prompt and answer need {longest} tokens, but this model's context holds {}",
            model.context_length
        )));
    }
    // The first run touches memory and code for the first time.
    measure(&engine, &spec, &model, 16, 4)?;
    if args.mtp {
        return mtp::bench(&engine, &spec, &model, args);
    }
    if args.specprefill {
        if let Some(wrong) = args
            .keep
            .iter()
            .find(|keep| !KEEP_RATIO_RANGE.contains(keep))
        {
            return Err(Failure(format!(
                "a keep ratio is between {} and {}, not {wrong}",
                KEEP_RATIO_RANGE.start(),
                KEEP_RATIO_RANGE.end()
            )));
        }
        let draft = match &args.draft {
            Some(name) => {
                let entry = find_model(options, name)?;
                Some(ModelSpec {
                    key: entry.id,
                    path: entry.path,
                    options: LoadOptions::default(),
                })
            }
            None => None,
        };
        return specprefill::bench(&engine, &spec, &model, draft, args);
    }
    let mut rows = Vec::new();
    for prompt in &args.prompt {
        for output in &args.output {
            let runs: Result<Vec<Usage>, Failure> = (0..args.repeat)
                .map(|_| measure(&engine, &spec, &model, *prompt, *output))
                .collect();
            let row = summarize(*prompt, *output, &runs?);
            if !args.json {
                if rows.is_empty() {
                    print_header(&entry.id, &model);
                }
                print_row(&row);
            }
            rows.push(row);
        }
    }
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&report(&entry.id, &model, args.repeat, &rows))?
        );
    }
    Ok(())
}

/// One request with a made-up prompt: random but repeatable tokens, whose computation costs what any text's does.
fn measure(
    engine: &Engine,
    spec: &ModelSpec,
    model: &ModelInfo,
    prompt: usize,
    output: usize,
) -> Result<Usage, Failure> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let prompt_tokens = (0..prompt)
        .map(|_| {
            // xorshift64 (Marsaglia 2003).
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % model.vocab_size as u64) as u32
        })
        .collect();
    let mut events = engine.submit(GenerationRequest {
        max_tokens: Some(output),
        show_special_tokens: true,
        ..GenerationRequest::new(spec.clone(), prompt_tokens, SamplingParams::greedy())
    })?;
    while let Some(event) = events.next_blocking() {
        match event {
            GenerationEvent::Finished { usage, .. } => return Ok(*usage),
            GenerationEvent::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Err(Failure("the engine stopped in the middle of a run".into()))
}

fn summarize(prompt: usize, output: usize, runs: &[Usage]) -> Row {
    let decode: Option<Vec<f64>> = runs
        .iter()
        .map(Usage::generation_tokens_per_second)
        .collect();
    Row {
        prompt,
        output,
        ttft: median(
            runs.iter()
                .map(|run| run.time_to_first_token.as_secs_f64())
                .collect(),
        ),
        prefill: median(
            runs.iter()
                .filter_map(Usage::prompt_tokens_per_second)
                .collect(),
        ),
        decode: decode.map(median),
        peak_bytes: peak_memory(),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The most memory that this process ever had in RAM, in bytes.
fn peak_memory() -> Option<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills the struct that it is given and keeps no pointer to it; zeroed bytes are a valid rusage.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) != 0 {
            return None;
        }
        usage.assume_init()
    };
    let peak = u64::try_from(usage.ru_maxrss).ok()?;
    // macOS counts bytes, Linux kibibytes.
    Some(if cfg!(target_os = "macos") {
        peak
    } else {
        peak * 1024
    })
}

fn print_header(id: &str, model: &ModelInfo) {
    println!(
        "{id}: {} of weights, loaded in {:.2} s",
        human_bytes(model.weight_bytes as u64),
        model.load_time.as_secs_f64()
    );
    println!(
        "{:>8} {:>8} {:>10} {:>14} {:>13} {:>10}",
        "prompt", "output", "TTFT s", "prefill tok/s", "decode tok/s", "peak"
    );
}

fn print_row(row: &Row) {
    println!(
        "{:>8} {:>8} {:>10.3} {:>14.1} {:>13} {:>10}",
        row.prompt,
        row.output,
        row.ttft,
        row.prefill,
        row.decode.map_or("-".into(), |speed| format!("{speed:.1}")),
        row.peak_bytes.map_or("-".into(), human_bytes)
    );
}

fn report(id: &str, model: &ModelInfo, repeat: usize, rows: &[Row]) -> Value {
    json!({
        "model": id,
        "weight_bytes": model.weight_bytes,
        "load_seconds": model.load_time.as_secs_f64(),
        "runs": repeat,
        "rows": rows.iter().map(|row| json!({
            "prompt_tokens": row.prompt,
            "output_tokens": row.output,
            "time_to_first_token": row.ttft,
            "prompt_tokens_per_second": row.prefill,
            "generation_tokens_per_second": row.decode,
            "peak_memory_bytes": row.peak_bytes,
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0]), 2.5);
        assert!(median(vec![]).is_nan());
    }

    #[test]
    fn peak_memory_is_known_and_plausible() {
        let peak = peak_memory().unwrap();
        assert!(peak > 1 << 20 && peak < 1 << 40, "{peak}");
    }
}

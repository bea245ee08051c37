//! `headstart bench --mtp`: decoding without drafts, with fixed depths and with the adaptive one, on the same prompts.

use headstart_engine::{
    checkpoint::Checkpoint,
    request::{GenerationEvent, GenerationRequest, MtpSettings, Usage},
    sampling::SamplingParams,
    scheduler::{Engine, ModelInfo, ModelSpec},
};
use serde_json::{Value, json};

use super::{super::Failure, BenchArgs, median};
use crate::{
    conversation::template_of,
    prompt::{ChatTemplate, RenderRequest},
};

/// What people ask.
const PROMPTS: [&str; 20] = [
    "What is the capital of France?",
    "Explain how a rainbow forms in two sentences.",
    "Write a short story about a lighthouse keeper.",
    "List five healthy breakfast ideas.",
    "How do I boil an egg?",
    "Write a Python function that reverses a string.",
    "Give me three tips for better sleep.",
    "What is the difference between a virus and a bacterium?",
    "Summarize the plot of Romeo and Juliet.",
    "Write a polite email asking for a day off.",
    "Why is the sky blue?",
    "Translate good morning into Spanish and French.",
    "What are the main causes of the First World War?",
    "Describe the taste of a ripe mango.",
    "Write a poem about autumn leaves.",
    "How does a bicycle stay upright?",
    "Name ten animals that live in the ocean.",
    "What should I pack for a trip to the mountains?",
    "Explain recursion to a child.",
    "qzx 7 vlor blim? 93 tkk - ooo pfft, wub nng 4 4 1 zzq",
];

/// One way to decode.
#[derive(Debug, Clone)]
struct Way {
    name: String,
    settings: MtpSettings,
    runs: Vec<Usage>,
    texts: Vec<String>,
}

/// Runs every prompt every way, in turns, and prints a table, or JSON.
pub(super) fn bench(
    engine: &Engine,
    spec: &ModelSpec,
    model: &ModelInfo,
    args: &BenchArgs,
) -> Result<(), Failure> {
    let template = template_of(&Checkpoint::open(&spec.path)?)?;
    let output = args.output.first().copied().unwrap_or(128);
    let on = MtpSettings {
        enabled: true,
        ..MtpSettings::default()
    };
    let way = |name: String, settings| Way {
        name,
        settings,
        runs: Vec::new(),
        texts: Vec::new(),
    };
    let mut ways = vec![way("off".into(), MtpSettings::default())];
    ways.extend((1..=4).map(|depth| {
        let settings = MtpSettings {
            fixed_depth: Some(depth),
            ..on
        };
        way(format!("depth {depth}"), settings)
    }));
    ways.push(way("adaptive".into(), on));
    ways.push(way(
        "adaptive, whole vocabulary".into(),
        MtpSettings {
            draft_vocabulary: false,
            ..on
        },
    ));
    // Each way once before anything counts: the first run of a model touches memory for the first time, and the adaptive one learns.
    let first = tokens(model, template.as_ref(), PROMPTS[0])?;
    for way in &ways {
        answer(engine, spec, model, &first, output, way.settings)?;
    }
    for prompt in PROMPTS {
        let tokens = tokens(model, template.as_ref(), prompt)?;
        for way in &mut ways {
            let mut best: Option<(Usage, String)> = None;
            for _ in 0..args.repeat {
                let run = answer(engine, spec, model, &tokens, output, way.settings)?;
                // The least disturbed run.
                let faster = |best: &(Usage, String)| run.0.generation < best.0.generation;
                if best.as_ref().is_none_or(faster) {
                    best = Some(run);
                }
            }
            if let Some((usage, text)) = best {
                way.runs.push(usage);
                way.texts.push(text);
            }
        }
    }
    let off = speeds(&ways[0]);
    if args.json {
        let rows: Vec<Value> = ways.iter().map(|way| row(way, &off, &ways[0])).collect();
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!(
        "{:>26} {:>13} {:>7} {:>7} {:>12} {:>11} {:>6} {:>10} {:>9}",
        "",
        "decode tok/s",
        "ratio",
        "worst",
        "tokens/cycle",
        "acceptance",
        "parks",
        "cycle ms",
        "head ms"
    );
    for way in &ways {
        let row = row(way, &off, &ways[0]);
        let number = |key: &str, digits: usize| {
            row[key]
                .as_f64()
                .map_or("-".into(), |n| format!("{n:.digits$}"))
        };
        println!(
            "{:>26} {:>13} {:>7} {:>7} {:>12} {:>11} {:>6} {:>10} {:>9}{}",
            way.name,
            number("tokens_per_second", 1),
            number("ratio", 3),
            number("worst_ratio", 3),
            number("tokens_per_cycle", 2),
            number("acceptance", 3),
            row["parks"],
            number("backbone_ms_per_cycle", 2),
            number("head_ms_per_cycle", 2),
            match row["same_text"].as_u64() {
                Some(same) if same < PROMPTS.len() as u64 =>
                    format!("  same text: {same}/{}", PROMPTS.len()),
                _ => String::new(),
            }
        );
    }
    Ok(())
}

fn tokens(
    model: &ModelInfo,
    template: Option<&ChatTemplate>,
    prompt: &str,
) -> Result<Vec<u32>, Failure> {
    let text = match template {
        Some(template) => template.render(&RenderRequest {
            messages: vec![json!({"role": "user", "content": prompt})],
            add_generation_prompt: true,
            ..RenderRequest::default()
        })?,
        None => format!("{prompt}\n"),
    };
    Ok(model.tokenizer.encode(&text, template.is_none())?)
}

/// One answer and its text.
fn answer(
    engine: &Engine,
    spec: &ModelSpec,
    model: &ModelInfo,
    tokens: &[u32],
    output: usize,
    mtp: MtpSettings,
) -> Result<(Usage, String), Failure> {
    let mut events = engine.submit(GenerationRequest {
        max_tokens: Some(output),
        stop_ids: model.tokenizer.stop_ids().to_vec(),
        mtp,
        ..GenerationRequest::new(spec.clone(), tokens.to_vec(), SamplingParams::greedy())
    })?;
    let mut text = String::new();
    while let Some(event) = events.next_blocking() {
        match event {
            GenerationEvent::Text { text: piece, .. } => text.push_str(&piece),
            GenerationEvent::Finished { usage, .. } => return Ok((*usage, text)),
            GenerationEvent::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Err(Failure("the engine stopped in the middle of a run".into()))
}

fn speeds(way: &Way) -> Vec<Option<f64>> {
    way.runs
        .iter()
        .map(Usage::generation_tokens_per_second)
        .collect()
}

fn row(way: &Way, off: &[Option<f64>], plain: &Way) -> Value {
    let speeds = speeds(way);
    let ratios: Vec<f64> = speeds
        .iter()
        .zip(off)
        .filter_map(|(speed, off)| Some(speed.as_ref()? / off.as_ref()?))
        .collect();
    let sum = |count: fn(&Usage) -> f64| way.runs.iter().map(count).sum::<f64>();
    let cycles = sum(|run| run.mtp.cycles as f64);
    let drafted = sum(|run| run.mtp.drafted as f64);
    let accepted = sum(|run| run.mtp.accepted as f64);
    let per_cycle = |total: f64| (cycles > 0.0).then(|| total / cycles);
    let same = way.texts.iter().zip(&plain.texts).filter(|(a, b)| a == b);
    // Tokens by time over all prompts: what a user waits for.
    let tokens = sum(|run| run.completion_tokens.saturating_sub(1) as f64);
    let seconds = sum(|run| run.generation.as_secs_f64());
    let plain_seconds: f64 = plain
        .runs
        .iter()
        .map(|run| run.generation.as_secs_f64())
        .sum();
    json!({
        "way": way.name,
        "tokens_per_second": tokens / seconds,
        "ratio": plain_seconds / seconds,
        "median_ratio": median(ratios.clone()),
        "worst_ratio": ratios.iter().copied().fold(f64::INFINITY, f64::min),
        "tokens_per_cycle": per_cycle(accepted + cycles),
        "acceptance": (drafted > 0.0).then(|| accepted / drafted),
        "parks": way.runs.iter().map(|run| run.mtp.parks).sum::<usize>(),
        "backbone_ms_per_cycle": per_cycle(sum(|run| run.mtp.backbone.as_secs_f64() * 1e3)),
        "head_ms_per_cycle": per_cycle(sum(|run| run.mtp.head.as_secs_f64() * 1e3)),
        "same_text": same.count(),
    })
}

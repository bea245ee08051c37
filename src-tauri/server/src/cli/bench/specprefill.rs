//! `headstart bench --specprefill`: dense against sparse on the same prompts.

use std::collections::BTreeMap;

use headstart_engine::{
    checkpoint::Checkpoint,
    request::{GenerationEvent, GenerationRequest, Usage},
    sampling::{SamplingParams, TokenLogprobs},
    scheduler::{Engine, ModelInfo, ModelSpec},
    specprefill::{Scorer, SkipReason, SpecPrefillSettings},
};
use serde_json::{Value, json};

use super::{
    super::Failure,
    BenchArgs,
    facts::{FactCase, fact_case},
    median,
};
use crate::{
    conversation::template_of,
    prompt::{ChatTemplate, RenderRequest},
};

/// Alternatives whose probabilities are compared.
const TOP: usize = 20;

/// What one prompt gave.
#[derive(Debug)]
struct Outcome {
    usage: Usage,
    text: String,
    first: Option<TokenLogprobs>,
}

/// Sums over the cases of one length and ratio.
#[derive(Debug, Default)]
struct Tally {
    cases: usize,
    prompt: Vec<f64>,
    dense_ttft: Vec<f64>,
    sparse_ttft: Vec<f64>,
    dense_decode: Vec<f64>,
    sparse_decode: Vec<f64>,
    scoring: Vec<f64>,
    kept: Vec<f64>,
    scored: Vec<f64>,
    divergence: Vec<f64>,
    top_agrees: usize,
    dense_finds: usize,
    sparse_finds: usize,
    skipped: BTreeMap<&'static str, usize>,
}

/// Runs the cases and prints a table, or JSON.
pub(super) fn bench(
    engine: &Engine,
    spec: &ModelSpec,
    model: &ModelInfo,
    draft: Option<ModelSpec>,
    args: &BenchArgs,
) -> Result<(), Failure> {
    let template = template_of(&Checkpoint::open(&spec.path)?)?;
    let settings = SpecPrefillSettings {
        enabled: true,
        threshold: args.threshold,
        scorer: if draft.is_some() {
            Scorer::Draft
        } else {
            Scorer::Own
        },
        draft,
        reuse_sessions: false,
        dense_recovery: false,
        ..SpecPrefillSettings::default()
    };
    let run = Run {
        engine,
        spec,
        model,
        template,
        output: args.output.first().copied().unwrap_or(32).min(32),
    };
    let mut report = Vec::new();
    if !args.json {
        println!(
            "{:>7} {:>5} {:>6} {:>8} {:>8} {:>7} {:>7} {:>9} {:>6} {:>11} {:>11} {:>13}",
            "prompt",
            "keep",
            "cases",
            "dense s",
            "sparse s",
            "ratio",
            "kept",
            "scoring s",
            "KL",
            "top-1",
            "finds dense",
            "finds sparse"
        );
    }
    for length in &args.prompt {
        let mut tallies: Vec<(f32, Tally)> = args
            .keep
            .iter()
            .map(|keep| (*keep, Tally::default()))
            .collect();
        for seed in 0..args.cases as u64 {
            let case = fact_case(seed, *length, |text| {
                model
                    .tokenizer
                    .encode(text, false)
                    .map_or(0, |ids| ids.len())
            });
            let tokens = run.tokens(&case)?;
            let dense = run.answer(&tokens, SpecPrefillSettings::default())?;
            for (keep, tally) in &mut tallies {
                let settings = SpecPrefillSettings {
                    keep_ratio: *keep,
                    ..settings.clone()
                };
                let sparse = run.answer(&tokens, settings)?;
                tally.add(&case, &dense, &sparse);
                if args.verbose
                    && dense.text.contains(&case.answer)
                    && !sparse.text.contains(&case.answer)
                {
                    eprintln!(
                        "lost at {} tokens, keep {keep}, seed {seed}: {:?} is not in {:?}",
                        tokens.len(),
                        case.answer,
                        sparse.text
                    );
                }
            }
        }
        for (keep, tally) in &tallies {
            if args.json {
                report.push(tally.json(*keep));
            } else {
                tally.print(*keep);
            }
        }
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    }
    Ok(())
}

/// What all cases have in common.
struct Run<'a> {
    engine: &'a Engine,
    spec: &'a ModelSpec,
    model: &'a ModelInfo,
    template: Option<ChatTemplate>,
    output: usize,
}

impl Run<'_> {
    fn tokens(&self, case: &FactCase) -> Result<Vec<u32>, Failure> {
        let text = match &self.template {
            Some(template) => template.render(&RenderRequest {
                messages: vec![json!({"role": "user", "content": case.text})],
                add_generation_prompt: true,
                ..RenderRequest::default()
            })?,
            None => format!("{}\n", case.text),
        };
        Ok(self
            .model
            .tokenizer
            .encode(&text, self.template.is_none())?)
    }

    fn answer(&self, tokens: &[u32], specprefill: SpecPrefillSettings) -> Result<Outcome, Failure> {
        let sampling = SamplingParams {
            logprobs: Some(TOP),
            ..SamplingParams::greedy()
        };
        let mut events = self.engine.submit(GenerationRequest {
            max_tokens: Some(self.output),
            stop_ids: self.model.tokenizer.stop_ids().to_vec(),
            specprefill,
            ..GenerationRequest::new(self.spec.clone(), tokens.to_vec(), sampling)
        })?;
        let (mut text, mut first) = (String::new(), None);
        while let Some(event) = events.next_blocking() {
            match event {
                GenerationEvent::Text {
                    text: piece,
                    tokens,
                } => {
                    text.push_str(&piece);
                    first = first.or(tokens.into_iter().next().and_then(|token| token.logprobs));
                }
                GenerationEvent::Finished { usage, .. } => {
                    return Ok(Outcome {
                        usage: *usage,
                        text,
                        first,
                    });
                }
                GenerationEvent::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        Err(Failure("the engine stopped in the middle of a run".into()))
    }
}

impl Tally {
    fn add(&mut self, case: &FactCase, dense: &Outcome, sparse: &Outcome) {
        let report = &sparse.usage.specprefill;
        self.cases += 1;
        self.prompt.push(report.prompt_tokens as f64);
        self.dense_ttft
            .push(dense.usage.time_to_first_token.as_secs_f64());
        self.sparse_ttft
            .push(sparse.usage.time_to_first_token.as_secs_f64());
        self.dense_decode
            .extend(dense.usage.generation_tokens_per_second());
        self.sparse_decode
            .extend(sparse.usage.generation_tokens_per_second());
        self.scoring.push(report.scoring.as_secs_f64());
        self.kept.push(report.kept_tokens as f64);
        self.scored.push(report.scored_tokens as f64);
        if let (Some(p), Some(q)) = (&dense.first, &sparse.first) {
            self.divergence.push(divergence(p, q));
            let best = |logprobs: &TokenLogprobs| logprobs.top.first().map(|top| top.0);
            self.top_agrees += usize::from(best(p) == best(q));
        }
        self.dense_finds += usize::from(dense.text.contains(&case.answer));
        self.sparse_finds += usize::from(sparse.text.contains(&case.answer));
        if let Some(reason) = report.reason {
            *self.skipped.entry(SkipReason::as_str(reason)).or_default() += 1;
        }
    }

    fn ratio(&self) -> f64 {
        median(self.dense_ttft.clone()) / median(self.sparse_ttft.clone())
    }

    fn print(&self, keep: f32) {
        println!(
            "{:>7.0} {keep:>5.2} {:>6} {:>8.3} {:>8.3} {:>6.2}x {:>7.0} {:>9.3} {:>6.3} {:>11} {:>11} {:>13}{}",
            median(self.prompt.clone()),
            self.cases,
            median(self.dense_ttft.clone()),
            median(self.sparse_ttft.clone()),
            self.ratio(),
            median(self.kept.clone()),
            median(self.scoring.clone()),
            median(self.divergence.clone()),
            format!("{}/{}", self.top_agrees, self.cases),
            format!("{}/{}", self.dense_finds, self.cases),
            format!("{}/{}", self.sparse_finds, self.cases),
            if self.skipped.is_empty() {
                String::new()
            } else {
                format!("  not applied: {:?}", self.skipped)
            }
        );
    }

    fn json(&self, keep: f32) -> Value {
        json!({
            "prompt_tokens": median(self.prompt.clone()),
            "keep_ratio": keep,
            "cases": self.cases,
            "dense_time_to_first_token": median(self.dense_ttft.clone()),
            "sparse_time_to_first_token": median(self.sparse_ttft.clone()),
            "speedup": self.ratio(),
            "dense_tokens_per_second": median(self.dense_decode.clone()),
            "sparse_tokens_per_second": median(self.sparse_decode.clone()),
            "scored_tokens": median(self.scored.clone()),
            "kept_tokens": median(self.kept.clone()),
            "scoring_seconds": median(self.scoring.clone()),
            "next_token_divergence": median(self.divergence.clone()),
            "top_1_agreement": self.top_agrees,
            "found_dense": self.dense_finds,
            "found_sparse": self.sparse_finds,
            "not_applied": self.skipped,
        })
    }
}

/// Kullback-Leibler divergence of the next token's distribution, over the most likely tokens of `p`; those that `q` does not list count
/// with the least probability that it lists.
fn divergence(p: &TokenLogprobs, q: &TokenLogprobs) -> f64 {
    let least = q.top.iter().map(|top| top.1).fold(0.0, f32::min);
    p.top
        .iter()
        .map(|(id, p)| {
            let q = q
                .top
                .iter()
                .find(|top| top.0 == *id)
                .map_or(least, |top| top.1);
            f64::from(p.exp()) * f64::from(p - q)
        })
        .sum()
}

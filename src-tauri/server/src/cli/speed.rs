//! Flags for SpecPrefill and MTP, and what a terminal says of their work.

use clap::Args;
use headstart_engine::{checkpoint::LoadOptions, request::Usage, scheduler::ModelSpec};

use super::{Failure, find_model};
use crate::{
    library::ModelEntry,
    serve::ServeOptions,
    settings::{RequestSettings, Resolved, ScorerChoice},
};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "SpecPrefill and MTP (what is not given is taken from the settings)")]
pub(super) struct SpeedArgs {
    /// Read a long prompt sparsely: a draft model marks what matters.
    #[arg(long)]
    specprefill: bool,
    /// Name or path of the draft model; by default that of the settings, else the model called like this one with "-draft" behind.
    #[arg(long, value_name = "MODEL")]
    draft: Option<String>,
    /// Who marks what matters: the draft model, or the model's own first layers.
    #[arg(long, value_enum)]
    scorer: Option<ScorerChoice>,
    /// Share of the prompt to keep, 0.05 to 1.
    #[arg(long, value_name = "RATIO")]
    keep: Option<f32>,
    /// Read prompts of at most so many tokens whole.
    #[arg(long, value_name = "N")]
    threshold: Option<usize>,
    /// Decode several tokens in one step, where the model has an MTP head.
    #[arg(long)]
    mtp: bool,
    /// Always draft so many tokens, 1 to 8, instead of measuring how many are best.
    #[arg(long, value_name = "N")]
    mtp_depth: Option<usize>,
}

impl SpeedArgs {
    /// Resolves the flags over the settings, as the server does for a request.
    ///
    /// # Errors
    /// When a value is out of its range or a draft cannot be used.
    pub(super) fn resolve(
        &self,
        options: &ServeOptions,
        entry: &ModelEntry,
    ) -> Result<Resolved, Failure> {
        let request = RequestSettings {
            specprefill: self.specprefill.then_some(true),
            specprefill_keep_ratio: self.keep,
            specprefill_threshold: self.threshold,
            specprefill_draft_model: self.draft.clone(),
            specprefill_scorer: self.scorer,
            mtp: self.mtp.then_some(true),
            mtp_depth: self.mtp_depth,
            ..RequestSettings::default()
        };
        let resolved = options.settings.resolve(&entry.id, &request, |name| {
            find_model(options, name)
                .map(|entry| ModelSpec {
                    key: entry.id,
                    path: entry.path,
                    options: LoadOptions::default(),
                })
                .map_err(|Failure(message)| message)
        })?;
        if let Some(warning) = &resolved.warning {
            eprintln!("headstart: {warning}");
        }
        Ok(resolved)
    }
}

/// What was done for one answer, in a line for each feature that was asked for.
pub(super) fn summary(asked: &Resolved, usage: &Usage) -> Vec<String> {
    let mut lines = Vec::new();
    if asked.specprefill.enabled {
        let report = &usage.specprefill;
        lines.push(if report.applied {
            let by = match &report.draft_model {
                Some(draft) => format!("chosen by {draft}"),
                None => "chosen by its own first layers".to_string(),
            };
            format!(
                "SpecPrefill read {} of {} tokens, {by} in {:.2} s; whole: {} of system text and tools{}",
                report.kept_tokens,
                report.scored_tokens,
                report.scoring.as_secs_f64(),
                report.static_prefix_tokens,
                report
                    .static_prefix_reason
                    .map_or(String::new(), |reason| format!(" ({reason})")),
            )
        } else {
            format!(
                "SpecPrefill was not used: {}",
                report.reason.map_or("no reason given", |reason| reason.as_str())
            )
        });
    }
    if asked.mtp.enabled {
        let report = &usage.mtp;
        lines.push(if report.applied {
            let tokens = (report.accepted + report.cycles) as f64 / report.cycles.max(1) as f64;
            format!(
                "MTP: {tokens:.2} tokens a step, {} of {} drafted tokens accepted ({})",
                report.accepted,
                report.drafted,
                report.mode.as_str()
            )
        } else {
            format!(
                "MTP was not used: {}",
                report.reason.unwrap_or("no reason given")
            )
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headstart_engine::{
        request::MtpReport,
        specprefill::{SkipReason, SpecPrefillReport},
    };

    use super::*;

    fn asked() -> Resolved {
        let mut asked = Resolved::default();
        asked.specprefill.enabled = true;
        asked.mtp.enabled = true;
        asked
    }

    #[test]
    fn only_what_was_asked_for_is_mentioned() {
        assert!(summary(&Resolved::default(), &Usage::default()).is_empty());
    }

    #[test]
    fn both_say_what_they_did_or_why_not() {
        let usage = Usage {
            specprefill: SpecPrefillReport {
                applied: true,
                draft_model: Some("a/draft".into()),
                scored_tokens: 9000,
                kept_tokens: 1800,
                static_prefix_tokens: 120,
                scoring: Duration::from_millis(420),
                ..SpecPrefillReport::default()
            },
            mtp: MtpReport {
                applied: true,
                cycles: 10,
                drafted: 20,
                accepted: 15,
                ..MtpReport::default()
            },
            ..Usage::default()
        };
        let lines = summary(&asked(), &usage);
        for part in ["1800 of 9000", "a/draft", "0.42 s", "120"] {
            assert!(lines[0].contains(part), "{lines:?}");
        }
        for part in ["2.50", "15 of 20", "exact"] {
            assert!(lines[1].contains(part), "{lines:?}");
        }
        let usage = Usage {
            specprefill: SpecPrefillReport {
                reason: Some(SkipReason::BelowThreshold),
                ..SpecPrefillReport::default()
            },
            mtp: MtpReport {
                reason: Some("weights_missing"),
                ..MtpReport::default()
            },
            ..Usage::default()
        };
        let lines = summary(&asked(), &usage);
        assert!(lines[0].ends_with("not used: below_threshold"), "{lines:?}");
        assert!(lines[1].ends_with("not used: weights_missing"), "{lines:?}");
    }
}

//! Whether a request is prefilled sparsely: a pure function from what is known at admission to a plan or a reason.

use std::time::Duration;

use crate::scheduler::ModelSpec;

/// Uncached prompt tokens above which SpecPrefill starts to pay.
pub const DEFAULT_THRESHOLD: usize = 8192;
/// Share of the scored tokens that the target reads.
pub const DEFAULT_KEEP_RATIO: f32 = 0.20;
/// Bounds of the keep ratio.
pub const KEEP_RATIO_RANGE: std::ops::RangeInclusive<f32> = 0.05..=1.0;

/// Who ranks the prompt's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scorer {
    /// A small model with the same tokenizer.
    #[default]
    Draft,
    /// The target's own first layers.
    Own,
}

impl Scorer {
    /// As in settings and replies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Own => "self",
        }
    }
}

/// The settings of one request, fully resolved.
#[derive(Debug, Clone, PartialEq)]
pub struct SpecPrefillSettings {
    /// Off: every prompt is read whole.
    pub enabled: bool,
    /// Prompts with at most this many uncached tokens are read whole.
    pub threshold: usize,
    /// Share of the scored tokens to keep, in [`KEEP_RATIO_RANGE`].
    pub keep_ratio: f32,
    /// Who ranks the tokens.
    pub scorer: Scorer,
    /// The draft model.
    pub draft: Option<ModelSpec>,
    /// Continue the cache of the conversation's last sparse turn where the prompt extends it.
    pub reuse_sessions: bool,
    /// Read the prompt whole in idle time after a sparse answer, so that the next turn finds it in the prefix cache.
    pub dense_recovery: bool,
}

impl Default for SpecPrefillSettings {
    fn default() -> Self {
        Self {
            enabled: false,
            threshold: DEFAULT_THRESHOLD,
            keep_ratio: DEFAULT_KEEP_RATIO,
            scorer: Scorer::Draft,
            draft: None,
            reuse_sessions: true,
            dense_recovery: true,
        }
    }
}

/// Why a prompt was read whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SkipReason {
    /// Switched off for this model or request.
    Disabled,
    /// The request holds an image.
    ImageInput,
    /// Not enough uncached tokens.
    BelowThreshold,
    /// Not enough uncached tokens beside the static prefix.
    ConversationBelowThreshold,
    /// The keep ratio is 1: everything would be kept.
    KeepsAll,
    /// No draft model is chosen.
    NoDraftModel,
    /// The draft model could not be loaded.
    DraftLoadFailed,
    /// The draft model reads text as other tokens.
    TokenizerMismatch,
    /// The window is longer than the draft's context.
    DraftContext,
    /// The target has no layer whose attention could rank tokens.
    NoAttention,
    /// Ranking failed; the log has the error.
    ScoringFailed,
    /// The sparse prefill failed; the log has the error.
    SparsePrefillFailed,
}

impl SkipReason {
    /// As in replies and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::ImageInput => "image_input",
            Self::BelowThreshold => "below_threshold",
            Self::ConversationBelowThreshold => "conversation_below_threshold",
            Self::KeepsAll => "keeps_all",
            Self::NoDraftModel => "no_draft_model",
            Self::DraftLoadFailed => "draft_load_failed",
            Self::TokenizerMismatch => "tokenizer_mismatch",
            Self::DraftContext => "draft_context_too_short",
            Self::NoAttention => "no_attention_layers",
            Self::ScoringFailed => "scoring_failed",
            Self::SparsePrefillFailed => "sparse_prefill_failed",
        }
    }
}

/// What is known of the draft model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftState {
    /// It is loaded, reads the same tokens and holds so many of them.
    Ready {
        /// The most tokens that it can read.
        context_length: usize,
    },
    /// None is chosen.
    Missing,
    /// It could not be loaded.
    LoadFailed,
    /// It has another tokenizer.
    TokenizerMismatch,
}

/// What a plan is made from.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// The first of them that a cache serves.
    pub cached_tokens: usize,
    /// The first of them that are system text and tools: read whole and never ranked.
    pub static_prefix: usize,
    /// Whether the request holds an image.
    pub has_image: bool,
    /// The request's settings.
    pub settings: &'a SpecPrefillSettings,
}

/// What is done with a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Plan {
    /// It is read whole.
    Dense(SkipReason),
    /// A part of it is ranked.
    Sparse(SparsePlan),
}

/// A sparse prefill.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SparsePlan {
    /// Index of the first ranked token: the end of what is cached or static. All tokens from here on are ranked.
    pub window_start: usize,
    /// Share of them to keep.
    pub keep_ratio: f32,
    /// Who ranks them.
    pub scorer: Scorer,
}

/// Decides. `draft` is asked for only when everything else speaks for a sparse prefill, because the answer may need the draft loaded.
pub fn plan(facts: Facts<'_>, draft: impl FnOnce() -> DraftState) -> Plan {
    let settings = facts.settings;
    if !settings.enabled {
        return Plan::Dense(SkipReason::Disabled);
    }
    if facts.has_image {
        return Plan::Dense(SkipReason::ImageInput);
    }
    if settings.scorer == Scorer::Draft && settings.draft.is_none() {
        return Plan::Dense(SkipReason::NoDraftModel);
    }
    let uncached = facts.prompt_tokens.saturating_sub(facts.cached_tokens);
    if uncached <= settings.threshold {
        return Plan::Dense(SkipReason::BelowThreshold);
    }
    let window_start = facts.cached_tokens.max(facts.static_prefix);
    let window = facts.prompt_tokens.saturating_sub(window_start);
    if window <= settings.threshold {
        return Plan::Dense(SkipReason::ConversationBelowThreshold);
    }
    if settings.keep_ratio >= 1.0 {
        return Plan::Dense(SkipReason::KeepsAll);
    }
    if settings.scorer == Scorer::Draft {
        match draft() {
            // The look-ahead needs room behind the window.
            DraftState::Ready { context_length }
                if window + super::LOOK_AHEAD_STEPS > context_length =>
            {
                return Plan::Dense(SkipReason::DraftContext);
            }
            DraftState::Ready { .. } => {}
            DraftState::Missing => return Plan::Dense(SkipReason::NoDraftModel),
            DraftState::LoadFailed => return Plan::Dense(SkipReason::DraftLoadFailed),
            DraftState::TokenizerMismatch => return Plan::Dense(SkipReason::TokenizerMismatch),
        }
    }
    Plan::Sparse(SparsePlan {
        window_start,
        keep_ratio: settings.keep_ratio,
        scorer: settings.scorer,
    })
}

/// What SpecPrefill did for one request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SpecPrefillReport {
    /// True when the target did not read every token.
    pub applied: bool,
    /// Why not, when not.
    pub reason: Option<SkipReason>,
    /// Who ranked the tokens, when they were.
    pub scorer: Option<Scorer>,
    /// Name of the draft model, when it ranked them.
    pub draft_model: Option<String>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Tokens of its static prefix.
    pub static_prefix_tokens: usize,
    /// Why there is no static prefix, when there is none.
    pub static_prefix_reason: Option<&'static str>,
    /// Tokens that the prefix cache, or the sparse session, stands for.
    pub cached_tokens: usize,
    /// Tokens that were ranked.
    pub scored_tokens: usize,
    /// Of these, tokens that the target read.
    pub kept_tokens: usize,
    /// The share asked for.
    pub keep_ratio: f32,
    /// Time for ranking.
    pub scoring: Duration,
    /// Time that the target spent on the kept tokens.
    pub sparse_prefill: Duration,
    /// True when the sparse cache of the conversation's last turn was continued.
    pub session_reused: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::LoadOptions;

    fn settings() -> SpecPrefillSettings {
        SpecPrefillSettings {
            enabled: true,
            threshold: 1000,
            draft: Some(ModelSpec {
                key: "draft".into(),
                path: "draft".into(),
                options: LoadOptions::default(),
            }),
            ..SpecPrefillSettings::default()
        }
    }

    const READY: DraftState = DraftState::Ready {
        context_length: 100_000,
    };

    fn decide(
        settings: &SpecPrefillSettings,
        [prompt_tokens, cached_tokens, static_prefix]: [usize; 3],
        has_image: bool,
        draft: DraftState,
    ) -> Plan {
        let facts = Facts {
            prompt_tokens,
            cached_tokens,
            static_prefix,
            has_image,
            settings,
        };
        plan(facts, || draft)
    }

    #[test]
    fn both_thresholds() {
        use SkipReason::{BelowThreshold, ConversationBelowThreshold};
        for (lengths, expected) in [
            ([1000, 0, 0], Err(BelowThreshold)),
            ([1001, 0, 0], Ok(0)),
            ([5000, 4000, 0], Err(BelowThreshold)),
            ([5001, 4000, 0], Ok(4000)),
            // A long system text alone is no reason to rank a short conversation.
            ([5000, 0, 4000], Err(ConversationBelowThreshold)),
            ([5001, 0, 4000], Ok(4000)),
            ([6000, 512, 4000], Ok(4000)),
            ([6000, 4608, 4000], Ok(4608)),
            ([5600, 4608, 100], Err(BelowThreshold)),
            ([10, 0, 50], Err(BelowThreshold)),
        ] {
            let expected = match expected {
                Err(reason) => Plan::Dense(reason),
                Ok(window_start) => Plan::Sparse(SparsePlan {
                    window_start,
                    keep_ratio: DEFAULT_KEEP_RATIO,
                    scorer: Scorer::Draft,
                }),
            };
            assert_eq!(
                decide(&settings(), lengths, false, READY),
                expected,
                "{lengths:?}"
            );
        }
    }

    #[test]
    fn every_skip_has_its_reason() {
        let off = SpecPrefillSettings {
            enabled: false,
            ..settings()
        };
        let all = SpecPrefillSettings {
            keep_ratio: 1.0,
            ..settings()
        };
        let none = SpecPrefillSettings {
            draft: None,
            ..settings()
        };
        let long = [9000, 0, 10];
        let on = settings();
        for (settings, image, draft, reason) in [
            (&off, false, READY, SkipReason::Disabled),
            (&on, true, READY, SkipReason::ImageInput),
            (&all, false, READY, SkipReason::KeepsAll),
            (&none, false, READY, SkipReason::NoDraftModel),
            (&on, false, DraftState::Missing, SkipReason::NoDraftModel),
            (
                &on,
                false,
                DraftState::LoadFailed,
                SkipReason::DraftLoadFailed,
            ),
            (
                &on,
                false,
                DraftState::TokenizerMismatch,
                SkipReason::TokenizerMismatch,
            ),
            (
                &on,
                false,
                DraftState::Ready {
                    context_length: 8997,
                },
                SkipReason::DraftContext,
            ),
        ] {
            assert_eq!(decide(settings, long, image, draft), Plan::Dense(reason));
        }
    }

    #[test]
    fn the_draft_is_asked_for_only_when_it_is_needed() {
        let own = SpecPrefillSettings {
            scorer: Scorer::Own,
            draft: None,
            ..settings()
        };
        let facts = |settings, prompt_tokens| Facts {
            prompt_tokens,
            cached_tokens: 0,
            static_prefix: 0,
            has_image: false,
            settings,
        };
        let never = || -> DraftState { panic!("the draft is not needed") };
        assert!(matches!(plan(facts(&own, 9000), never), Plan::Sparse(_)));
        let short = settings();
        assert_eq!(
            plan(facts(&short, 10), never),
            Plan::Dense(SkipReason::BelowThreshold)
        );
    }
}

//! How a model may be sped up: what the settings file says of it, under `[defaults]` for all and under `[models."NAME"]` for one.

use headstart_engine::{
    request::{MAX_MTP_DEPTH, MtpMode},
    specprefill::{Scorer, policy::KEEP_RATIO_RANGE},
};
use serde::Deserialize;

/// Who ranks the prompt's tokens, as users write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ScorerChoice {
    /// The draft model.
    Draft,
    /// The model's own first layers.
    #[serde(rename = "self")]
    #[value(name = "self")]
    Own,
}

impl From<ScorerChoice> for Scorer {
    fn from(choice: ScorerChoice) -> Self {
        match choice {
            ScorerChoice::Draft => Self::Draft,
            ScorerChoice::Own => Self::Own,
        }
    }
}

/// How MTP's drafts are verified, as users write it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MtpModeChoice {
    /// Greedy answers equal plain decoding's.
    Exact,
    /// Whatever is fastest.
    Fast,
}

impl From<MtpModeChoice> for MtpMode {
    fn from(choice: MtpModeChoice) -> Self {
        match choice {
            MtpModeChoice::Exact => Self::Exact,
            MtpModeChoice::Fast => Self::Fast,
        }
    }
}

/// The settings of one model, or the defaults of all. What is not set is left to the next layer.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// Read long prompts sparsely.
    pub specprefill_enabled: Option<bool>,
    /// Prompts with at most this many new tokens are read whole.
    pub specprefill_threshold: Option<usize>,
    /// Share of the ranked tokens that the model reads, in [`KEEP_RATIO_RANGE`].
    pub specprefill_keep_ratio: Option<f32>,
    /// Name of the draft model in the library; empty: none, not even one that would be found by its name.
    pub draft_model: Option<String>,
    /// Who ranks the prompt's tokens.
    pub specprefill_scorer: Option<ScorerChoice>,
    /// The last so many messages are read whole.
    pub specprefill_protect_last_messages: Option<usize>,
    /// Continue the cache of the conversation's last sparse turn.
    pub specprefill_sessions: Option<bool>,
    /// Read the prompt whole in idle time after a sparse answer.
    pub specprefill_dense_recovery: Option<bool>,
    /// Decode several tokens in one step where the model has an MTP head.
    pub mtp_enabled: Option<bool>,
    /// The most tokens drafted in one step, 1 to [`MAX_MTP_DEPTH`].
    pub mtp_max_depth: Option<usize>,
    /// Always draft so many tokens, 1 to [`MAX_MTP_DEPTH`].
    pub mtp_fixed_depth: Option<usize>,
    /// How drafts are verified.
    pub mtp_mode: Option<MtpModeChoice>,
    /// Draft from the most frequent part of the vocabulary only.
    pub mtp_draft_vocabulary: Option<bool>,
}

/// A value outside its range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{key} is {value}; it must be {range}")]
pub struct OutOfRange {
    /// Its key.
    pub key: String,
    /// The value.
    pub value: String,
    /// The values that it may have.
    pub range: String,
}

/// The keep ratio, if it can be one.
///
/// # Errors
/// When it is outside [`KEEP_RATIO_RANGE`] or no number.
pub(super) fn checked_ratio(key: &str, ratio: f32) -> Result<f32, OutOfRange> {
    if KEEP_RATIO_RANGE.contains(&ratio) {
        return Ok(ratio);
    }
    Err(OutOfRange {
        key: key.into(),
        value: ratio.to_string(),
        range: format!(
            "from {} to {}",
            KEEP_RATIO_RANGE.start(),
            KEEP_RATIO_RANGE.end()
        ),
    })
}

/// The depth, if it can be one.
///
/// # Errors
/// When it is not from 1 to [`MAX_MTP_DEPTH`].
pub(super) fn checked_depth(key: &str, depth: usize) -> Result<usize, OutOfRange> {
    if (1..=MAX_MTP_DEPTH).contains(&depth) {
        return Ok(depth);
    }
    Err(OutOfRange {
        key: key.into(),
        value: depth.to_string(),
        range: format!("from 1 to {MAX_MTP_DEPTH}"),
    })
}

impl ModelSettings {
    /// Checks every value; `table` stands before the key in an error.
    ///
    /// # Errors
    /// The first value outside its range.
    pub fn check(&self, table: &str) -> Result<(), OutOfRange> {
        let key = |key| format!("{table}.{key}");
        if let Some(ratio) = self.specprefill_keep_ratio {
            checked_ratio(&key("specprefill_keep_ratio"), ratio)?;
        }
        if let Some(depth) = self.mtp_max_depth {
            checked_depth(&key("mtp_max_depth"), depth)?;
        }
        if let Some(depth) = self.mtp_fixed_depth {
            checked_depth(&key("mtp_fixed_depth"), depth)?;
        }
        Ok(())
    }

    /// These settings, and `below` where they say nothing.
    #[must_use]
    pub fn over(self, below: &Self) -> Self {
        Self {
            specprefill_enabled: self.specprefill_enabled.or(below.specprefill_enabled),
            specprefill_threshold: self.specprefill_threshold.or(below.specprefill_threshold),
            specprefill_keep_ratio: self.specprefill_keep_ratio.or(below.specprefill_keep_ratio),
            draft_model: self.draft_model.or_else(|| below.draft_model.clone()),
            specprefill_scorer: self.specprefill_scorer.or(below.specprefill_scorer),
            specprefill_protect_last_messages: self
                .specprefill_protect_last_messages
                .or(below.specprefill_protect_last_messages),
            specprefill_sessions: self.specprefill_sessions.or(below.specprefill_sessions),
            specprefill_dense_recovery: self
                .specprefill_dense_recovery
                .or(below.specprefill_dense_recovery),
            mtp_enabled: self.mtp_enabled.or(below.mtp_enabled),
            mtp_max_depth: self.mtp_max_depth.or(below.mtp_max_depth),
            mtp_fixed_depth: self.mtp_fixed_depth.or(below.mtp_fixed_depth),
            mtp_mode: self.mtp_mode.or(below.mtp_mode),
            mtp_draft_vocabulary: self.mtp_draft_vocabulary.or(below.mtp_draft_vocabulary),
        }
    }
}

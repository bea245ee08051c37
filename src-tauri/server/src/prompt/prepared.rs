//! A prompt as the engine takes it: its tokens and the parts of it that SpecPrefill must not touch.

use headstart_engine::{
    request::StaticPrefix, specprefill::SpecPrefillSettings, tokenizer::Tokenizer,
};

use super::{Boundaries, ChatTemplate, NoStaticPrefix, RenderRequest};

/// Tokens and boundaries of one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreparedPrompt {
    /// The token ids.
    pub tokens: Vec<u32>,
    /// System text and tools at the beginning.
    pub static_prefix: StaticPrefix,
    /// The number of tokens at the end that are always read.
    pub protected_tail: usize,
}

impl PreparedPrompt {
    /// A prompt without known boundaries.
    #[must_use]
    pub fn without_boundaries(tokens: Vec<u32>, reason: NoStaticPrefix) -> Self {
        Self {
            tokens,
            static_prefix: reason.into(),
            protected_tail: 0,
        }
    }

    /// Why the boundaries of a conversation need not be found, where nobody will ask for them: finding them costs renderings.
    #[must_use]
    pub fn not_needed(tokens: &[u32], settings: &SpecPrefillSettings) -> Option<NoStaticPrefix> {
        if !settings.enabled {
            Some(NoStaticPrefix::Disabled)
        } else if tokens.len() <= settings.threshold {
            Some(NoStaticPrefix::BelowThreshold)
        } else {
            None
        }
    }

    /// Finds the boundaries of the conversation `request`, whose prompt `tokens` is; `protect_last_messages` of it are always read.
    /// A boundary that cannot be found protects nothing; the log says why.
    #[must_use]
    pub fn of_conversation(
        tokens: Vec<u32>,
        request: &RenderRequest,
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        protect_last_messages: usize,
    ) -> Self {
        let boundaries = Boundaries::new(&tokens, request, template, |text| {
            // As the prompt: the template writes the special tokens itself.
            tokenizer.encode(text, false)
        });
        let static_prefix = boundaries.static_prefix();
        let protected_tail = boundaries
            .protected_tail(protect_last_messages)
            .unwrap_or_else(|error| {
                tracing::warn!(%error, "the last messages cannot be told from the rest: they are not protected");
                0
            });
        Self {
            tokens,
            static_prefix,
            protected_tail,
        }
    }
}

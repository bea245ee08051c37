//! Where the static prefix of a prompt ends: the system text and tool block that a template prints before the first turn.
//!
//! A template is a program, so the boundary is found by running it: the leading system messages are rendered with two different first
//! user turns, under the request's own tools and arguments. What both renderings and the prompt share, in tokens, depends on nothing
//! that was said in the conversation. Whatever the template inserts by itself is covered, and a token that spans the boundary is not.

use headstart_engine::{request::StaticPrefix, tokenizer::TokenizerError};
use serde_json::{Value, json};

use super::{ChatTemplate, PromptError, RenderRequest};

/// Texts of the two probes. They differ from the first character on, in every tokenizer: a digit is not merged with the mark or line
/// end before it, where a letter may be. They are equally long, for templates that print lengths.
const PROBES: [&str; 2] = ["4 is where it starts.", "7 is where it starts."];

/// Why a prompt has no static prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoStaticPrefix {
    /// SpecPrefill is off for the request, so that nobody asks for the boundary.
    Disabled,
    /// The prompt is too short for SpecPrefill.
    BelowThreshold,
    /// The prompt is plain text or token ids.
    NoTemplate,
    /// The conversation begins with another message, and there are no tools.
    NoSystemMessage,
    /// There are no other messages.
    OnlySystemMessages,
    /// The template does not take the probes; the log has its words.
    RenderFailed,
    /// The tokenizer does not take the probes; the log has the reason.
    TokenizerFailed,
    /// The prompt does not begin as the probes do.
    NothingInCommon,
}

impl NoStaticPrefix {
    /// As in replies and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::BelowThreshold => "below_threshold",
            Self::NoTemplate => "no_template",
            Self::NoSystemMessage => "no_system_message",
            Self::OnlySystemMessages => "only_system_messages",
            Self::RenderFailed => "render_failed",
            Self::TokenizerFailed => "tokenizer_failed",
            Self::NothingInCommon => "nothing_in_common",
        }
    }
}

impl From<NoStaticPrefix> for StaticPrefix {
    fn from(reason: NoStaticPrefix) -> Self {
        Self {
            tokens: 0,
            reason: Some(reason.as_str()),
        }
    }
}

/// Why a probe has no tokens.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The template does not take it.
    #[error(transparent)]
    Render(#[from] PromptError),
    /// The tokenizer does not take it.
    #[error(transparent)]
    Tokenize(#[from] TokenizerError),
}

/// Finds the boundaries inside the prompt of one conversation.
#[derive(Debug)]
pub struct Boundaries<'a, Tokenize> {
    prompt: &'a [u32],
    request: &'a RenderRequest,
    template: &'a ChatTemplate,
    tokenize: Tokenize,
}

impl<'a, Tokenize> Boundaries<'a, Tokenize>
where
    Tokenize: Fn(&str) -> Result<Vec<u32>, TokenizerError>,
{
    /// `prompt`: the tokens of the conversation `request`. `template` and `tokenize`: what made them from it.
    pub fn new(
        prompt: &'a [u32],
        request: &'a RenderRequest,
        template: &'a ChatTemplate,
        tokenize: Tokenize,
    ) -> Self {
        Self {
            prompt,
            request,
            template,
            tokenize,
        }
    }

    /// The number of the prompt's first tokens that are its static prefix: min(common(prompt, A), common(A, B)) for probes A and B.
    /// It includes what the template prints before the first user's text where the conversation goes on with a user's message.
    #[must_use]
    pub fn static_prefix(&self) -> StaticPrefix {
        let messages = &self.request.messages;
        let leading = self.leading();
        if leading == messages.len() {
            return NoStaticPrefix::OnlySystemMessages.into();
        }
        if leading == 0 && self.request.tools.as_ref().is_none_or(Vec::is_empty) {
            return NoStaticPrefix::NoSystemMessage.into();
        }
        let end = self.end(&|probe| {
            let mut probed = messages[..leading].to_vec();
            probed.push(json!({"role": "user", "content": probe}));
            probed
        });
        let reason = match end {
            Ok(0) => NoStaticPrefix::NothingInCommon,
            Ok(tokens) => {
                return StaticPrefix {
                    tokens,
                    reason: None,
                };
            }
            Err(ProbeError::Render(error)) => {
                tracing::warn!(%error, "the template does not take the static prefix alone");
                NoStaticPrefix::RenderFailed
            }
            Err(ProbeError::Tokenize(error)) => {
                tracing::warn!(%error, "the static prefix could not be tokenized");
                NoStaticPrefix::TokenizerFailed
            }
        };
        reason.into()
    }

    /// The number of the prompt's last tokens from the text of its `last`-to-last message on; 0 for no message, and at most everything
    /// behind the leading system messages.
    ///
    /// The text of that message is exchanged for the probes. To render the conversation without it would not do: many templates want a
    /// user's turn, and some print earlier turns otherwise when a later one is missing.
    ///
    /// # Errors
    /// When the template or the tokenizer does not take the probes.
    pub fn protected_tail(&self, last: usize) -> Result<usize, ProbeError> {
        let messages = &self.request.messages;
        let first = messages.len().saturating_sub(last).max(self.leading());
        if first >= messages.len() {
            return Ok(0);
        }
        let end = self.end(&|probe| {
            let mut probed = messages.clone();
            if let Some(fields) = probed[first].as_object_mut() {
                fields.insert("content".into(), probe.into());
            }
            probed
        })?;
        Ok(self.prompt.len() - end)
    }

    /// The number of messages before the first that is not the system's or the developer's.
    fn leading(&self) -> usize {
        self.request
            .messages
            .iter()
            .take_while(|message| {
                matches!(
                    message.get("role").and_then(Value::as_str),
                    Some("system" | "developer")
                )
            })
            .count()
    }

    /// The number of tokens that the prompt and both probed conversations begin with.
    fn end(&self, probed: &dyn Fn(&str) -> Vec<Value>) -> Result<usize, ProbeError> {
        let tokens = |probe| -> Result<Vec<u32>, ProbeError> {
            let text = self.template.render(&RenderRequest {
                messages: probed(probe),
                tools: self.request.tools.clone(),
                kwargs: self.request.kwargs.clone(),
                add_generation_prompt: self.request.add_generation_prompt,
                continue_final_message: false,
                now: self.request.now,
                content_shape: self.request.content_shape,
            })?;
            Ok((self.tokenize)(&text)?)
        };
        let [a, b] = PROBES;
        let a = tokens(a)?;
        let end = common(self.prompt, &a);
        Ok(end.min(common(&a, &tokens(b)?)))
    }
}

/// The number of equal first tokens.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

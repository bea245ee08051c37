//! A model's chat template.

use std::collections::BTreeMap;
use std::path::Path;

use chrono::NaiveDateTime;
use serde_json::{Map, Value};

use super::content::{ContentShape, ContentSupport};
use super::jinja::{Limits, Program, RenderError};
use super::{PromptError, SpecialTokens, continuation, messages, model_dir};

/// One rendering.
#[derive(Debug, Clone)]
pub struct RenderRequest {
    /// The conversation as the client sent it, in the shape of the chat-completions API.
    pub messages: Vec<Value>,
    /// The tools' definitions as the client sent them. An empty list is the same as none.
    pub tools: Option<Vec<Value>>,
    /// Further variables of the template: `chat_template_kwargs`, `enable_thinking`, `reasoning_effort`, `documents`. They win
    /// over special tokens of the same name.
    pub kwargs: Map<String, Value>,
    /// Whether the prompt ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Whether the prompt ends inside the last message; not together with `add_generation_prompt`.
    pub continue_final_message: bool,
    /// What `strftime_now` shows: local time. `None` is the wall clock, read once for the whole rendering.
    pub now: Option<NaiveDateTime>,
    /// Whether contents are adapted to what the template reads.
    pub content_shape: ContentShape,
}

impl Default for RenderRequest {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            tools: None,
            kwargs: Map::new(),
            add_generation_prompt: true,
            continue_final_message: false,
            now: None,
            content_shape: ContentShape::Auto,
        }
    }
}

/// One named template.
#[derive(Debug)]
struct Variant {
    source: String,
    program: Program,
    contents: ContentSupport,
}

/// A model's chat template, compiled. It can be shared by threads; rendering changes nothing in it.
///
/// ```
/// # use headstart_server::prompt::{ChatTemplate, RenderRequest, SpecialTokens};
/// # use serde_json::json;
/// let source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
/// let template = ChatTemplate::compile(source, SpecialTokens::default())?;
/// let messages = vec![json!({"role": "user", "content": "Hello"})];
/// assert_eq!(template.render(&RenderRequest { messages, ..Default::default() })?, "<user>Hello<assistant>");
/// # Ok::<(), headstart_server::prompt::PromptError>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    variants: BTreeMap<String, Variant>,
    tokens: SpecialTokens,
    limits: Limits,
}

/// The template used unless there is reason for another.
const DEFAULT: &str = "default";
/// The template used with tools, where a model has one.
const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// Compiles one template.
    ///
    /// # Errors
    /// [`PromptError::Compile`] if it is not valid Jinja2.
    pub fn compile(source: &str, tokens: SpecialTokens) -> Result<Self, PromptError> {
        Self::from_named([(DEFAULT.to_owned(), source.to_owned())], tokens)
    }

    /// Compiles the template of a model's folder: `chat_template.jinja` wins over `chat_template.json`, and that over the
    /// `chat_template` of `tokenizer_config.json`. `None` if the model has none.
    ///
    /// # Errors
    /// [`PromptError::Io`] or [`PromptError::InvalidFile`] if a file is there but cannot be used, [`PromptError::Compile`] if a
    /// template is not valid.
    pub fn from_model_dir(dir: &Path) -> Result<Option<Self>, PromptError> {
        let found = model_dir::read(dir)?;
        if found.templates.is_empty() {
            Ok(None)
        } else {
            Self::from_named(found.templates, found.tokens).map(Some)
        }
    }

    /// Compiles named templates. For a GGUF file, `tokenizer.chat_template` is `default` and `tokenizer.chat_template.NAME` is
    /// `NAME`. With tools, `tool_use` is used if there is one; otherwise `default`, or the only one there is.
    ///
    /// # Errors
    /// [`PromptError::Compile`] if one is not valid, or if there are several but no `default`.
    pub fn from_named(
        templates: impl IntoIterator<Item = (String, String)>,
        tokens: SpecialTokens,
    ) -> Result<Self, PromptError> {
        let mut variants = BTreeMap::new();
        for (name, source) in templates {
            let variant = compile_variant(source, &tokens).map_err(|error| match error {
                PromptError::Compile { message, line } if name != DEFAULT => PromptError::Compile {
                    message: format!("in the template '{name}': {message}"),
                    line,
                },
                error => error,
            })?;
            variants.insert(name, variant);
        }
        if !variants.contains_key(DEFAULT) && variants.len() != 1 {
            let names: Vec<&str> = variants.keys().map(String::as_str).collect();
            let message = if names.is_empty() {
                "the model has none".into()
            } else {
                format!(
                    "there are several ({}) and none is called '{DEFAULT}'",
                    names.join(", ")
                )
            };
            return Err(PromptError::Compile { message, line: 1 });
        }
        Ok(Self {
            variants,
            tokens,
            limits: Limits::default(),
        })
    }

    /// Replaces the bounds on what a rendering may cost.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The text of the default template, as the model's author wrote it.
    #[must_use]
    pub fn source(&self) -> &str {
        self.variant(false).map_or("", |variant| &variant.source)
    }

    /// The special tokens that the template can print.
    #[must_use]
    pub fn tokens(&self) -> &SpecialTokens {
        &self.tokens
    }

    fn variant(&self, with_tools: bool) -> Option<&Variant> {
        let for_tools = if with_tools {
            self.variants.get(TOOL_USE)
        } else {
            None
        };
        for_tools
            .or_else(|| self.variants.get(DEFAULT))
            .or_else(|| self.variants.values().next())
    }

    /// Renders a conversation. The prompt holds the special tokens that the template prints, so it is tokenized without adding
    /// any.
    ///
    /// # Errors
    /// [`PromptError::InvalidMessages`] if the messages are malformed, [`PromptError::Template`] if the template refuses the
    /// conversation, fails on it, or exceeds the [`Limits`]. There is no other prompt to fall back to.
    pub fn render(&self, request: &RenderRequest) -> Result<String, PromptError> {
        let tools = request.tools.as_deref().filter(|tools| !tools.is_empty());
        messages::check_tools(tools.unwrap_or_default())?;
        if request.continue_final_message && request.add_generation_prompt {
            return Err(PromptError::invalid(
                "continue_final_message",
                "cannot be used together with add_generation_prompt: the last message is either continued or answered",
            ));
        }
        for name in ["messages", "tools", "add_generation_prompt"] {
            if request.kwargs.contains_key(name) {
                return Err(PromptError::invalid(
                    format!("chat_template_kwargs.{name}"),
                    "is a field of the request itself",
                ));
            }
        }
        let Some(variant) = self.variant(tools.is_some()) else {
            return Err(PromptError::Compile {
                message: "the model has none".into(),
                line: 1,
            });
        };
        let mut messages = messages::normalize(&request.messages)?;
        if request.content_shape == ContentShape::Auto {
            variant.contents.adapt(&mut messages)?;
        }
        let continued = if request.continue_final_message {
            Some(continuation::mark(&mut messages)?)
        } else {
            None
        };
        let mut variables = variables(&self.tokens, messages, tools, request.add_generation_prompt);
        variables.extend(
            request
                .kwargs
                .iter()
                .map(|(name, value)| (name.clone(), value.clone())),
        );
        let prompt = variant
            .program
            .render(&variables, &self.limits, request.now)?;
        match continued {
            Some(text) => continuation::cut(prompt, &text),
            None => Ok(prompt),
        }
    }
}

fn compile_variant(source: String, tokens: &SpecialTokens) -> Result<Variant, PromptError> {
    let program = Program::compile(&source).map_err(|error| PromptError::Compile {
        message: error.message,
        line: error.line,
    })?;
    let tool = serde_json::json!({"type": "function", "function": {
        "name": "f", "description": "f", "parameters": {"type": "object", "properties": {}}
    }});
    let contents = ContentSupport::probe(|messages, with_tools| {
        let tools = if with_tools {
            Some(std::slice::from_ref(&tool))
        } else {
            None
        };
        program
            .render(
                &variables(tokens, messages.to_vec(), tools, true),
                &PROBE_LIMITS,
                None,
            )
            .ok()
    });
    Ok(Variant {
        source,
        program,
        contents,
    })
}

/// Bounds of one rendering of a tiny conversation.
const PROBE_LIMITS: Limits = Limits {
    steps: 1_000_000,
    output_bytes: 1 << 20,
    work_bytes: 64 << 20,
};

/// The variables that `apply_chat_template` sets.
fn variables(
    tokens: &SpecialTokens,
    messages: Vec<Value>,
    tools: Option<&[Value]>,
    add_generation_prompt: bool,
) -> Map<String, Value> {
    let mut variables = tokens.variables();
    variables.insert("messages".into(), Value::Array(messages));
    variables.insert(
        "tools".into(),
        tools.map_or(Value::Null, |tools| Value::Array(tools.to_vec())),
    );
    variables.insert("documents".into(), Value::Null);
    variables.insert(
        "add_generation_prompt".into(),
        Value::Bool(add_generation_prompt),
    );
    variables
}

impl From<RenderError> for PromptError {
    fn from(error: RenderError) -> Self {
        match error {
            RenderError::Raised(message) => Self::Template {
                message,
                line: None,
                refused: true,
            },
            RenderError::Failed { message, line } => Self::Template {
                message,
                line,
                refused: false,
            },
        }
    }
}

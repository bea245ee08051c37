//! Prompts: from a conversation as a client sends it to the text that the model was trained to continue.
//!
//! A [`ChatTemplate`] is compiled once when a model is loaded and renders as transformers' `apply_chat_template` does, byte for
//! byte: one different space is another prompt to the model. A conversation that the template does not take is an error for the
//! client, with the template's own words; nothing ever falls back to another prompt.
//!
//! - [`ChatTemplate`]: where templates come from, which one is used, rendering.
//! - [`RenderRequest`]: the input of one rendering.
//! - [`Boundaries`]: where the system text ends inside a prompt, and where its last messages begin.
//! - `messages`: checks the client's messages and brings them into the shape templates expect.
//! - `content`: string or list of parts, whichever the template can read.
//! - `jinja`: Jinja2 with Python's semantics.

mod content;
mod continuation;
mod error;
mod jinja;
mod messages;
mod model_dir;
mod prepared;
mod static_prefix;
mod template;
mod tokens;

#[cfg(test)]
mod tests;

pub use content::ContentShape;
pub use error::PromptError;
pub use jinja::Limits;
pub use prepared::PreparedPrompt;
pub use static_prefix::{Boundaries, NoStaticPrefix, ProbeError};
pub use template::{ChatTemplate, RenderRequest};
pub use tokens::SpecialTokens;

//! Log-probabilities in the two shapes of OpenAI's API.

use headstart_engine::{request::GeneratedToken, tokenizer::Tokenizer};
use serde_json::{Map, Value, json};

/// What OpenAI reports instead of minus infinity.
const LOWEST: f32 = -9999.0;

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { LOWEST }
}

fn text(tokenizer: &Tokenizer, id: u32) -> (String, Vec<u8>) {
    let bytes = tokenizer.token_bytes(id);
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}

/// Chat: one object a token with its bytes and alternatives.
pub(super) fn chat(tokenizer: &Tokenizer, tokens: &[GeneratedToken]) -> Vec<Value> {
    let entry = |id: u32, logprob: f32| {
        let (token, bytes) = text(tokenizer, id);
        json!({"token": token, "logprob": finite(logprob), "bytes": bytes})
    };
    tokens
        .iter()
        .filter_map(|token| {
            let logprobs = token.logprobs.as_ref()?;
            let mut value = entry(token.id, logprobs.logprob);
            value["top_logprobs"] = logprobs
                .top
                .iter()
                .map(|(id, logprob)| entry(*id, *logprob))
                .collect();
            Some(value)
        })
        .collect()
}

/// Completions: parallel lists, with the offset of each token in the text.
#[derive(Debug, Default)]
pub(super) struct LegacyLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
    /// Characters of the reply before the next token.
    offset: usize,
}

impl LegacyLogprobs {
    /// Lists for an answer that follows `text` in the reply.
    pub(super) fn after(text: &str) -> Self {
        Self {
            offset: text.chars().count(),
            ..Self::default()
        }
    }

    /// Adds tokens.
    pub(super) fn extend(&mut self, tokenizer: &Tokenizer, tokens: &[GeneratedToken]) {
        for token in tokens {
            let Some(logprobs) = token.logprobs.as_ref() else {
                continue;
            };
            let (name, _) = text(tokenizer, token.id);
            let mut top = Map::new();
            for (id, logprob) in &logprobs.top {
                top.insert(text(tokenizer, *id).0, json!(finite(*logprob)));
            }
            self.text_offset.push(self.offset);
            self.offset += name.chars().count();
            self.tokens.push(name);
            self.token_logprobs.push(finite(logprobs.logprob));
            self.top_logprobs.push(Value::Object(top));
        }
    }

    /// The lists so far, which are emptied; offsets go on.
    pub(super) fn take(&mut self) -> Value {
        json!({
            "tokens": std::mem::take(&mut self.tokens),
            "token_logprobs": std::mem::take(&mut self.token_logprobs),
            "top_logprobs": std::mem::take(&mut self.top_logprobs),
            "text_offset": std::mem::take(&mut self.text_offset),
        })
    }
}

//! The special tokens that a template can print.

use serde_json::{Map, Value};

/// Special tokens by the names templates use. A token that a model lacks is undefined in its template, and prints as nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SpecialTokens {
    /// `bos_token`: begins a text.
    pub bos_token: Option<String>,
    /// `eos_token`: ends a text.
    pub eos_token: Option<String>,
    /// `pad_token`
    pub pad_token: Option<String>,
    /// `unk_token`
    pub unk_token: Option<String>,
    /// All others: `sep_token`, `image_token`, `additional_special_tokens` (a list), and so on.
    pub extra: Map<String, Value>,
}

impl SpecialTokens {
    /// Reads the tokens of a `tokenizer_config.json` or `special_tokens_map.json`: every field whose name ends with `_token` and
    /// whose value is a string or an object with a string `content`; the list `additional_special_tokens`; the entries of
    /// `extra_special_tokens`. Anything else is not a token.
    #[must_use]
    pub fn from_config(config: &Map<String, Value>) -> Self {
        let mut tokens = Self::default();
        for (name, value) in config {
            match (name.as_str(), value) {
                ("additional_special_tokens", Value::Array(list)) => {
                    let list = list.iter().filter_map(content).map(Value::String).collect();
                    tokens.extra.insert(name.clone(), Value::Array(list));
                }
                ("extra_special_tokens", Value::Object(named)) => {
                    named
                        .iter()
                        .for_each(|(name, value)| tokens.set(name, content(value)));
                }
                (name, value) if name.ends_with("_token") => tokens.set(name, content(value)),
                _ => {}
            }
        }
        tokens
    }

    fn set(&mut self, name: &str, text: Option<String>) {
        let Some(text) = text else { return };
        match name {
            "bos_token" => self.bos_token = Some(text),
            "eos_token" => self.eos_token = Some(text),
            "pad_token" => self.pad_token = Some(text),
            "unk_token" => self.unk_token = Some(text),
            name => _ = self.extra.insert(name.to_owned(), Value::String(text)),
        }
    }

    /// Takes from `other` what is missing here.
    pub(super) fn fill_from(&mut self, other: Self) {
        let named = [
            (&mut self.bos_token, other.bos_token),
            (&mut self.eos_token, other.eos_token),
            (&mut self.pad_token, other.pad_token),
            (&mut self.unk_token, other.unk_token),
        ];
        for (mine, theirs) in named {
            if mine.is_none() {
                *mine = theirs;
            }
        }
        for (name, value) in other.extra {
            self.extra.entry(name).or_insert(value);
        }
    }

    /// The template's variables.
    pub(super) fn variables(&self) -> Map<String, Value> {
        let mut variables = self.extra.clone();
        let named = [
            ("bos_token", &self.bos_token),
            ("eos_token", &self.eos_token),
            ("pad_token", &self.pad_token),
            ("unk_token", &self.unk_token),
        ];
        for (name, token) in named {
            if let Some(token) = token {
                variables.insert(name.into(), Value::String(token.clone()));
            }
        }
        variables
    }
}

/// A token's text: the value itself, or the `content` of an `AddedToken`.
fn content(value: &Value) -> Option<String> {
    value
        .as_str()
        .or_else(|| value.get("content")?.as_str())
        .map(str::to_owned)
}

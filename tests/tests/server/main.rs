//! The server from outside: the real binary, spoken to over HTTP as its clients do.

mod cancel;
mod cli;
mod concurrency;
mod errors;
mod guard;
mod sampling;
mod speed;
mod sse;
mod usage;

use std::sync::{Arc, Mutex, PoisonError, Weak};

use headstart_tests::{
    client::Client,
    models::Models,
    server::{Server, Setup},
};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

/// A server and its models.
struct Lab {
    models: Models,
    server: Server,
}

impl Lab {
    /// A server of its own, for tests that look at what the engine does or need other settings.
    fn start(change: impl FnOnce(Setup) -> Setup) -> Self {
        let models = Models::new();
        let server = change(Setup::new(models.path())).start();
        Self { models, server }
    }

    /// One server for all tests that run at the same time and only ask it things; it ends with the last of them.
    fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Lab>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lab) = shared.upgrade() {
            return lab;
        }
        let lab = Arc::new(Self::start(|setup| setup.settings("max_loaded_models = 4")));
        *shared = Arc::downgrade(&lab);
        lab
    }

    fn client(&self) -> Client {
        self.server.client()
    }

    /// Whether the starter can be asked; prints that a test is skipped when not.
    fn has_starter(&self) -> bool {
        if !self.models.has_starter() {
            println!("SKIPPED: needs the starter model");
        }
        self.models.has_starter()
    }
}

/// A greedy chat request of one user message.
fn ask(model: &str, text: &str, max_tokens: usize) -> Value {
    json!({
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": max_tokens,
    })
}

/// `request` with further fields.
fn with(mut request: Value, further: Value) -> Value {
    if let (Some(fields), Value::Object(further)) = (request.as_object_mut(), further) {
        fields.extend(further);
    }
    request
}

/// A text of about `tokens` tokens of the starter.
fn long_text(tokens: usize) -> String {
    "The quick brown fox jumps over the lazy dog near the river bank. ".repeat(tokens / 14)
}

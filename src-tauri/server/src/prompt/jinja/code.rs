//! Pieces of rewritten expressions.

/// Longest description of an expression kept for messages.
const MAX_PATH: usize = 80;

/// A rewritten expression. Its text is a minijinja primary with filters, so that another `|filter` can be appended as it is.
pub(super) struct Code {
    pub(super) text: String,
    /// How the template wrote it, for messages; empty when that would be long.
    pub(super) path: String,
    pub(super) shape: Shape,
}

/// What the last step of an expression was.
#[derive(Clone, PartialEq)]
pub(super) enum Shape {
    Name,
    /// `base.name`, not yet known to be a call: (base text, base path, name)
    Attribute(String, String, String),
    /// `name(args)`
    NameCall,
    Other,
}

impl Code {
    pub(super) fn new(text: String) -> Self {
        Self {
            text,
            path: String::new(),
            shape: Shape::Other,
        }
    }

    pub(super) fn with_path(text: String, path: String) -> Self {
        Self {
            text,
            path: if path.len() > MAX_PATH {
                String::new()
            } else {
                path
            },
            shape: Shape::Other,
        }
    }

    pub(super) fn filter(self, name: &str, args: &str) -> Self {
        Self::new(filter(self.text, name, args))
    }
}

pub(super) fn filter(mut text: String, name: &str, args: &str) -> String {
    text.push('|');
    text.push_str(name);
    if !args.is_empty() {
        text.push('(');
        text.push_str(args);
        text.push(')');
    }
    text
}

/// A string literal of minijinja.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

pub(super) fn item(base: Code, key: &str, key_path: &str) -> Code {
    let path = join_path(&base.path, &format!("[{key_path}]"));
    Code::with_path(
        filter(
            base.text,
            "py.item",
            &format!("{key}, {}", quote(&base.path)),
        ),
        path,
    )
}

pub(super) fn join_path(base: &str, part: &str) -> String {
    if base.is_empty() || base.len() + part.len() > MAX_PATH {
        String::new()
    } else {
        format!("{base}{part}")
    }
}

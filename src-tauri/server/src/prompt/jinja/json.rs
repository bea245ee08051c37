//! Python's `json.dumps`, with the arguments that `apply_chat_template` gives its `tojson` filter.

use minijinja::{Error, Value};

use super::args::{Args, flag};
use super::limits::Text;
use super::value::{Py, SeqKind, fail, py, type_name};
use super::{filters, text};

/// How to write JSON.
struct Style {
    ensure_ascii: bool,
    sort_keys: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
}

/// `value|tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`
pub(super) fn tojson(value: &Value, args: Args) -> Result<Value, Error> {
    let [ensure_ascii, indent, separators, sort_keys] =
        args.bind(["ensure_ascii", "indent", "separators", "sort_keys"])?;
    let indent = match indent.as_ref().map(py) {
        None | Some(Py::None) => None,
        Some(Py::Int(n)) => Some(" ".repeat(usize::try_from(n.clamp(0, 64)).unwrap_or(0))),
        Some(Py::Bool(b)) => Some(" ".repeat(usize::from(b))),
        Some(Py::Str(s)) => Some(s.to_owned()),
        Some(_) => {
            return Err(fail(
                "tojson: the argument 'indent' must be an int or a str",
            ));
        }
    };
    let (item_separator, key_separator) = match separators.as_ref().map(py) {
        // Without spaces at line ends.
        None | Some(Py::None) => (
            if indent.is_some() { "," } else { ", " }.to_owned(),
            ": ".to_owned(),
        ),
        Some(Py::Seq(pair)) => match pair.items() {
            [item, key] => match (item.as_str(), key.as_str()) {
                (Some(item), Some(key)) => (item.to_owned(), key.to_owned()),
                _ => return Err(fail("tojson: the separators must be strings")),
            },
            _ => return Err(fail("tojson: the argument 'separators' must be a pair")),
        },
        Some(_) => return Err(fail("tojson: the argument 'separators' must be a pair")),
    };
    let style = Style {
        ensure_ascii: flag(ensure_ascii, false),
        sort_keys: flag(sort_keys, false),
        indent,
        item_separator,
        key_separator,
    };
    let mut out = Text::default();
    write(&mut out, value, &style, 0)?;
    Ok(Value::from(out.into_string()))
}

fn write(out: &mut Text, value: &Value, style: &Style, level: usize) -> Result<(), Error> {
    match py(value) {
        Py::None => out.push("null"),
        Py::Bool(b) => out.push(if b { "true" } else { "false" }),
        Py::Int(n) => out.push(&n.to_string()),
        Py::Float(x) => out.push(&number(x)),
        Py::Str(s) => write_str(out, s, style.ensure_ascii),
        Py::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Group) => {
            if seq.items().is_empty() {
                return out.push("[]");
            }
            out.push("[")?;
            for (i, item) in seq.items().iter().enumerate() {
                separate(out, style, level + 1, i > 0)?;
                write(out, item, style, level + 1)?;
            }
            new_line(out, style, level)?;
            out.push("]")
        }
        Py::Dict(dict) => {
            if dict.map.is_empty() {
                return out.push("{}");
            }
            let mut entries: Vec<(&Value, &Value)> = dict.map.iter().collect();
            if style.sort_keys {
                entries = filters::sorted(entries, |a, b| super::ops::less(a.0, b.0))?;
            }
            out.push("{")?;
            for (i, (key, value)) in entries.into_iter().enumerate() {
                separate(out, style, level + 1, i > 0)?;
                write_key(out, key, style)?;
                out.push(&style.key_separator)?;
                write(out, value, style, level + 1)?;
            }
            new_line(out, style, level)?;
            out.push("}")
        }
        Py::Seq(_) | Py::Undefined | Py::Other => Err(fail(format!(
            "Object of type {} is not JSON serializable",
            type_name(value)
        ))),
    }
}

fn separate(out: &mut Text, style: &Style, level: usize, after_another: bool) -> Result<(), Error> {
    if after_another {
        out.push(&style.item_separator)?;
    }
    new_line(out, style, level)
}

fn new_line(out: &mut Text, style: &Style, level: usize) -> Result<(), Error> {
    let Some(indent) = &style.indent else {
        return Ok(());
    };
    out.push("\n")?;
    (0..level).try_for_each(|_| out.push(indent))
}

fn write_key(out: &mut Text, key: &Value, style: &Style) -> Result<(), Error> {
    match py(key) {
        Py::Str(s) => write_str(out, s, style.ensure_ascii),
        Py::None => out.push("\"null\""),
        Py::Bool(b) => out.push(if b { "\"true\"" } else { "\"false\"" }),
        Py::Int(n) => out.push(&format!("\"{n}\"")),
        Py::Float(x) => out.push(&format!("\"{}\"", number(x))),
        _ => Err(fail(format!(
            "keys must be str, int, float, bool or None, not {}",
            type_name(key)
        ))),
    }
}

fn number(x: f64) -> String {
    if x.is_nan() {
        "NaN".into()
    } else if x.is_infinite() {
        if x > 0.0 {
            "Infinity".into()
        } else {
            "-Infinity".into()
        }
    } else {
        text::float(x)
    }
}

fn write_str(out: &mut Text, s: &str, ensure_ascii: bool) -> Result<(), Error> {
    out.push("\"")?;
    let mut plain_from = 0;
    for (i, c) in s.char_indices() {
        let escape = match c {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            '\u{8}' => "\\b".to_owned(),
            '\u{c}' => "\\f".to_owned(),
            c if c < ' ' => format!("\\u{:04x}", c as u32),
            c if ensure_ascii && c > '~' => c
                .encode_utf16(&mut [0; 2])
                .iter()
                .map(|unit| format!("\\u{unit:04x}"))
                .collect(),
            _ => continue,
        };
        out.push(&s[plain_from..i])?;
        out.push(&escape)?;
        plain_from = i + c.len_utf8();
    }
    out.push(&s[plain_from..])?;
    out.push("\"")
}

//! Python's `str()` and `repr()`.

use std::borrow::Cow;

use minijinja::{Error, Value};

use super::limits::Text;
use super::value::{Py, PySeq, SeqKind, py, type_name};

/// `str(value)`: what `{{ value }}` and `~` print.
pub(super) fn str(value: &Value) -> Result<Cow<'_, str>, Error> {
    Ok(match py(value) {
        Py::Undefined => Cow::Borrowed(""),
        Py::Str(s) => Cow::Borrowed(s),
        _ => Cow::Owned(repr(value)?),
    })
}

/// `repr(value)`.
pub(super) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = Text::default();
    write_repr(&mut out, value)?;
    Ok(out.into_string())
}

fn write_repr(out: &mut Text, value: &Value) -> Result<(), Error> {
    match py(value) {
        Py::Undefined => out.push("Undefined"),
        Py::None => out.push("None"),
        Py::Bool(true) => out.push("True"),
        Py::Bool(false) => out.push("False"),
        Py::Int(n) => out.push(&n.to_string()),
        Py::Float(x) => out.push(&float(x)),
        Py::Str(s) => write_str_repr(out, s),
        Py::Seq(seq) => write_seq(out, seq),
        Py::Dict(dict) => {
            out.push("{")?;
            for (i, (key, value)) in dict.map.iter().enumerate() {
                if i > 0 {
                    out.push(", ")?;
                }
                write_repr(out, key)?;
                out.push(": ")?;
                write_repr(out, value)?;
            }
            out.push("}")
        }
        Py::Other => out.push(&format!("<{} object>", type_name(value))),
    }
}

fn write_seq(out: &mut Text, seq: &PySeq) -> Result<(), Error> {
    let (open, close) = match seq.kind {
        SeqKind::List => ("[", "]"),
        SeqKind::Tuple if seq.items().len() == 1 => ("(", ",)"),
        SeqKind::Tuple | SeqKind::Group => ("(", ")"),
        SeqKind::Keys => ("dict_keys([", "])"),
        SeqKind::Values => ("dict_values([", "])"),
        SeqKind::Items => ("dict_items([", "])"),
        SeqKind::Range(start, stop, 1) => return out.push(&format!("range({start}, {stop})")),
        SeqKind::Range(start, stop, step) => {
            return out.push(&format!("range({start}, {stop}, {step})"));
        }
        // Python prints an address here, which no template can mean.
        SeqKind::Generator => return out.push("<generator object>"),
    };
    out.push(open)?;
    for (i, item) in seq.items().iter().enumerate() {
        if i > 0 {
            out.push(", ")?;
        }
        write_repr(out, item)?;
    }
    out.push(close)
}

fn write_str_repr(out: &mut Text, s: &str) -> Result<(), Error> {
    let quote = if s.contains('\'') && !s.contains('"') {
        '"'
    } else {
        '\''
    };
    out.push_char(quote)?;
    for c in s.chars() {
        match c {
            '\\' => out.push("\\\\")?,
            '\n' => out.push("\\n")?,
            '\r' => out.push("\\r")?,
            '\t' => out.push("\\t")?,
            c if c == quote => {
                out.push("\\")?;
                out.push_char(c)?;
            }
            ' '..='~' => out.push_char(c)?,
            c if c > '\u{ff}' && is_printable(c)
                || ('\u{a1}'..='\u{ff}').contains(&c) && c != '\u{ad}' =>
            {
                out.push_char(c)?
            }
            c if (c as u32) <= 0xff => out.push(&format!("\\x{:02x}", c as u32))?,
            c if (c as u32) <= 0xffff => out.push(&format!("\\u{:04x}", c as u32))?,
            c => out.push(&format!("\\U{:08x}", c as u32))?,
        }
    }
    out.push_char(quote)
}

/// Python's `str.isprintable` for one character. Rust's debug escape uses the same Unicode categories, except that it also
/// escapes a combining mark at the start of a string, hence the letter before it.
fn is_printable(c: char) -> bool {
    let mut pair = String::from("a");
    pair.push(c);
    pair.escape_debug().count() == 2
}

/// `repr(float)`: the shortest digits that read back the same, scientific from 1e16 and below 1e-4.
pub(super) fn float(x: f64) -> String {
    if x.is_nan() {
        return "nan".into();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{x:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') {
        plain
    } else {
        plain + ".0"
    }
}

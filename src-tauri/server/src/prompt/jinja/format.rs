//! Python's two ways to format: `format % values` and `str.format`.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, FormatStyle, format_filter};

use super::value::{Py, SeqKind, fail, py, string};
use super::{limits, text};

/// `format % values`
pub(super) fn printf(format: &str, values: &Value) -> Result<Value, Error> {
    let args = match py(values) {
        Py::Seq(seq) if seq.kind == SeqKind::Tuple => {
            check_conversions(format, seq.items().len())?;
            seq.items()
                .iter()
                .map(printable)
                .collect::<Result<_, _>>()?
        }
        Py::Dict(dict) => {
            let named = dict
                .map
                .iter()
                .filter_map(|(key, value)| Some((key.as_str()?.to_owned(), value)));
            let named = named
                .map(|(key, value)| Ok((key, printable(value)?)))
                .collect::<Result<Vec<_>, Error>>()?;
            vec![Value::from(named.into_iter().collect::<Kwargs>())]
        }
        Py::Seq(_) => vec![printable(values)?],
        _ => {
            check_conversions(format, 1)?;
            vec![printable(values)?]
        }
    };
    format_with(FormatStyle::Printf, format, &args)
}

/// Refuses more values than a printf format takes; too few are refused by the formatting itself.
pub(super) fn check_conversions(format: &str, values: usize) -> Result<(), Error> {
    let fields: usize = format
        .split("%%")
        .map(|part| part.matches('%').count())
        .sum();
    if values > fields {
        Err(fail("not all arguments converted during string formatting"))
    } else {
        Ok(())
    }
}

/// Formats in one of Python's two styles, through minijinja.
pub(super) fn format_with(
    style: FormatStyle,
    format: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let digits_in_a_row = format
        .as_bytes()
        .windows(5)
        .any(|window| window.iter().all(u8::is_ascii_digit));
    if digits_in_a_row || format.contains('*') {
        return Err(fail(
            "a width in a format string is too large or not a plain number",
        ));
    }
    // Every field prints one argument, padded to the width its field asks for.
    let fields = format.matches(['%', '{']).count();
    let longest = args
        .iter()
        .map(|arg| arg.as_str().map_or(64, str::len))
        .max()
        .unwrap_or(0);
    let widest = if format
        .as_bytes()
        .windows(3)
        .any(|window| window.iter().all(u8::is_ascii_digit))
    {
        9999
    } else {
        99
    };
    limits::count_string(
        format
            .len()
            .saturating_add(fields.saturating_mul(longest.saturating_add(widest).min(1 << 24))),
    )?;
    string(format_filter(style, format, args)?)
}

/// A value that minijinja's formatting prints as Python's does: numbers and strings as they are, the rest as its `str()`.
pub(super) fn printable(value: &Value) -> Result<Value, Error> {
    match py(value) {
        Py::Int(_) | Py::Str(_) => Ok(value.clone()),
        Py::Float(x) if (-4..16).contains(&exponent(x)) => Ok(value.clone()),
        Py::Undefined => Ok(Value::from("")),
        _ => string(text::str(value)?.into_owned()),
    }
}

fn exponent(x: f64) -> i32 {
    format!("{x:e}")
        .split_once('e')
        .and_then(|(_, e)| e.parse().ok())
        .unwrap_or(i32::MAX)
}

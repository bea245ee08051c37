//! Filters on strings and numbers.

use std::fmt::Write as _;

use minijinja::value::Value;
use minijinja::{Error, FormatStyle, State};

use super::super::args::{Args, flag, integer, optional_integer, required};
use super::super::lexer::is_space;
use super::super::value::{Py, fail, int as int_value, iterate, py, string as counted, type_name};
use super::super::{format as format_value, limits, ops, splitting, strings, text};

type Result<T = Value> = std::result::Result<T, Error>;

/// `str(value)`
pub(super) fn string(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    if value.as_str().is_some() {
        Ok(value.clone())
    } else {
        counted(text::str(value)?.into_owned())
    }
}

pub(super) fn upper(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    counted(text::str(value)?.to_uppercase())
}

pub(super) fn lower(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    counted(text::str(value)?.to_lowercase())
}

pub(super) fn capitalize(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    counted(strings::capitalize(&text::str(value)?))
}

/// Jinja2's own idea of a title: words begin after white space, a hyphen or an opening bracket, but not after an apostrophe.
pub(super) fn title(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    let mut out = String::new();
    let mut begins = true;
    for c in text::str(value)?.chars() {
        let separates = is_space(c) || "-({[<".contains(c);
        if begins || separates {
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
        begins = separates;
    }
    counted(out)
}

pub(super) fn trim(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [chars] = args.bind(["chars"])?;
    strings::strip(&text::str(value)?, true, true, chars.as_ref())
}

pub(super) fn center(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [width] = args.bind(["width"])?;
    strings::pad(
        &text::str(value)?,
        "center",
        optional_integer(width, "width")?.unwrap_or(80),
        ' ',
    )
}

pub(super) fn replace(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [old, new, count] = args.bind(["old", "new", "count"])?;
    let (old, new) = (required(old, "old")?, required(new, "new")?);
    strings::replace(
        &text::str(value)?,
        &text::str(&old)?,
        &text::str(&new)?,
        optional_integer(count, "count")?,
    )
}

pub(super) fn default(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [default, boolean] = args.bind(["default_value", "boolean"])?;
    if value.is_undefined() || flag(boolean, false) && !value.is_true() {
        Ok(default.unwrap_or_else(|| Value::from("")))
    } else {
        Ok(value.clone())
    }
}

/// HTML escaping. With autoescape off, as in chat templates, the result is an ordinary string.
pub(super) fn escape(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    let mut out = limits::Text::default();
    for c in text::str(value)?.chars() {
        match c {
            '&' => out.push("&amp;")?,
            '<' => out.push("&lt;")?,
            '>' => out.push("&gt;")?,
            '"' => out.push("&#34;")?,
            '\'' => out.push("&#39;")?,
            c => out.push_char(c)?,
        }
    }
    Ok(Value::from(out.into_string()))
}

/// `"%s" | format(value)`
pub(super) fn format(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let format = text::str(value)?;
    let values = if args.named.is_empty() {
        format_value::check_conversions(&format, args.positional.len())?;
        args.positional
            .iter()
            .map(format_value::printable)
            .collect::<Result<Vec<_>>>()?
    } else if args.positional.is_empty() {
        let named = args
            .named
            .iter()
            .map(|(name, value)| Ok((name.clone(), format_value::printable(value)?)));
        vec![Value::from(
            named
                .collect::<Result<Vec<_>>>()?
                .into_iter()
                .collect::<minijinja::value::Kwargs>(),
        )]
    } else {
        return Err(fail(
            "can't handle positional and keyword arguments at the same time",
        ));
    };
    format_value::format_with(FormatStyle::Printf, &format, &values)
}

pub(super) fn indent(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [width, first, blank] = args.bind(["width", "first", "blank"])?;
    let Some(s) = value.as_str() else {
        return Err(fail(format!(
            "unsupported operand types for +=: '{}' and 'str'",
            type_name(value)
        )));
    };
    let indention = match width.as_ref().map(py) {
        Some(Py::Str(s)) => s.to_owned(),
        _ => {
            let width =
                usize::try_from(optional_integer(width, "width")?.unwrap_or(4)).unwrap_or(0);
            limits::count_string(width)?;
            " ".repeat(width)
        }
    };
    let (first, blank) = (flag(first, false), flag(blank, false));
    // The quirk of Jinja2: one more newline, so that a last empty line is a line.
    let text = format!("{s}\n");
    let mut out = limits::Text::default();
    for (i, line) in splitting::lines(&text, false).into_iter().enumerate() {
        if i > 0 {
            out.push("\n")?;
        }
        if if i == 0 {
            first
        } else {
            blank || !line.is_empty()
        } {
            out.push(&indention)?;
        }
        out.push(line)?;
    }
    Ok(Value::from(out.into_string()))
}

pub(super) fn truncate(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [length, killwords, end, leeway] = args.bind(["length", "killwords", "end", "leeway"])?;
    let Some(s) = value.as_str() else {
        return Err(fail(format!(
            "'{}' object cannot be truncated",
            type_name(value)
        )));
    };
    let length = usize::try_from(optional_integer(length, "length")?.unwrap_or(255)).unwrap_or(0);
    let leeway = usize::try_from(optional_integer(leeway, "leeway")?.unwrap_or(5)).unwrap_or(0);
    let end = end.unwrap_or_else(|| Value::from("..."));
    let end = text::str(&end)?;
    let end_len = end.chars().count();
    if length < end_len {
        return Err(fail(format!("expected length >= {end_len}, got {length}")));
    }
    if s.chars().count() <= length.saturating_add(leeway) {
        return Ok(value.clone());
    }
    let kept: String = s.chars().take(length - end_len).collect();
    let kept = if flag(killwords, false) {
        kept.as_str()
    } else {
        kept.rsplit_once(' ')
            .map_or(kept.as_str(), |(words, _)| words)
    };
    counted(format!("{kept}{end}"))
}

pub(super) fn wordcount(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    let s = text::str(value)?;
    Ok(Value::from(
        s.split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .count(),
    ))
}

pub(super) fn urlencode(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    let quote = |value: &Value, in_query: bool| -> Result<String> {
        let mut out = String::new();
        for byte in text::str(value)?.bytes() {
            match byte {
                b'/' if !in_query => out.push('/'),
                b' ' if in_query => out.push('+'),
                b if b.is_ascii_alphanumeric() || b"_.-~".contains(&b) => out.push(char::from(b)),
                b => _ = write!(out, "%{b:02X}"),
            }
        }
        Ok(out)
    };
    let pairs = match py(value) {
        Py::Dict(dict) => super::super::access::pairs(dict)?,
        Py::Seq(_) => iterate(value)?,
        _ => return counted(quote(value, false)?),
    };
    let mut parts = Vec::with_capacity(pairs.len());
    for pair in pairs {
        let pair = iterate(&pair)?;
        let [key, value] = pair.as_slice() else {
            return Err(fail("urlencode needs pairs of a key and a value"));
        };
        parts.push(format!("{}={}", quote(key, true)?, quote(value, true)?));
    }
    counted(parts.join("&"))
}

pub(super) fn abs(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    if ops::compare("lt", value, &Value::from(0))? {
        ops::neg(value)
    } else {
        ops::pos(value)
    }
}

pub(super) fn int(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    refuse_undefined(value)?;
    let [default, base] = args.bind(["default", "base"])?;
    let default = default.unwrap_or_else(|| Value::from(0));
    let base = u32::try_from(optional_integer(base, "base")?.unwrap_or(10))
        .ok()
        .filter(|base| (2..=36).contains(base));
    let base = base.ok_or_else(|| fail("the base of 'int' must be between 2 and 36"))?;
    Ok(match py(value) {
        Py::Bool(b) => Value::from(i64::from(b)),
        Py::Int(n) => int_value(n),
        Py::Float(x) => float_to_int(x).unwrap_or(default),
        Py::Str(s) => {
            let digits = s
                .trim_matches(is_space)
                .replace('_', "")
                .to_ascii_lowercase();
            let prefix = match base {
                2 => "0b",
                8 => "0o",
                16 => "0x",
                _ => "",
            };
            let (sign, unsigned) = match digits.strip_prefix('-') {
                Some(rest) => ("-", rest),
                None => ("", digits.strip_prefix('+').unwrap_or(&digits)),
            };
            let unsigned = unsigned.strip_prefix(prefix).unwrap_or(unsigned);
            let starts_well = unsigned.starts_with(|c: char| c.is_ascii_alphanumeric());
            let parsed = starts_well
                .then(|| i128::from_str_radix(&format!("{sign}{unsigned}"), base).ok())
                .flatten();
            match parsed {
                Some(n) => int_value(n),
                // So that "42.23"|int is 42.
                None => parse_float(s).and_then(float_to_int).unwrap_or(default),
            }
        }
        _ => default,
    })
}

#[allow(clippy::cast_possible_truncation)] // the range is checked
fn float_to_int(x: f64) -> Option<Value> {
    (x.is_finite() && x.abs() < 1e38).then(|| int_value(x as i128))
}

/// `float(str)`
fn parse_float(s: &str) -> Option<f64> {
    s.trim_matches(is_space).replace('_', "").parse().ok()
}

fn refuse_undefined(value: &Value) -> Result<()> {
    if value.is_undefined() {
        Err(fail("an undefined value is not a number"))
    } else {
        Ok(())
    }
}

pub(super) fn float(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    refuse_undefined(value)?;
    let [default] = args.bind(["default"])?;
    let parsed = match py(value) {
        Py::Str(s) => parse_float(s),
        Py::Float(x) => Some(x),
        Py::Int(_) | Py::Bool(_) => f64::try_from(ops::mul(value, &Value::from(1.0))?).ok(),
        _ => None,
    };
    Ok(parsed.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from))
}

pub(super) fn round(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [precision, method] = args.bind(["precision", "method"])?;
    let precision = precision.map_or(Ok(0), |p| integer(&p, "precision"))?;
    let precision = i32::try_from(precision)
        .ok()
        .filter(|p| p.abs() <= 300)
        .ok_or_else(|| fail("the precision of 'round' is too large"))?;
    let method = method.unwrap_or_else(|| Value::from("common"));
    let x = f64::try_from(ops::mul(value, &Value::from(1.0))?).unwrap_or(f64::NAN);
    let scale = 10_f64.powi(precision);
    match method.as_str() {
        // Python rounds an int to an int, and a float by its exact decimal value, ties to even: so does Rust's formatting.
        Some("common") if matches!(py(value), Py::Int(_) | Py::Bool(_)) && precision >= 0 => {
            ops::pos(value)
        }
        Some("common") if precision >= 0 => {
            let digits = usize::try_from(precision).unwrap_or(0);
            Ok(Value::from(
                format!("{x:.digits$}").parse::<f64>().unwrap_or(x),
            ))
        }
        Some("common") => {
            let rounded = (x * scale).round_ties_even() / scale;
            if matches!(py(value), Py::Int(_)) {
                Ok(float_to_int(rounded).unwrap_or_default())
            } else {
                Ok(Value::from(rounded))
            }
        }
        Some("ceil") => Ok(Value::from((x * scale).ceil() / scale)),
        Some("floor") => Ok(Value::from((x * scale).floor() / scale)),
        _ => Err(fail("method must be common, ceil or floor")),
    }
}

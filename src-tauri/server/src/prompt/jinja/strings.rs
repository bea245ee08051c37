//! The methods of Python's `str`.

use minijinja::value::Value;
use minijinja::{Error, FormatStyle};

use super::args::{Args, flag, integer, optional_integer, required, string as string_arg};
use super::lexer::is_space;
use super::value::{Py, SeqKind, fail, iterate, list, py, string, type_name};
use super::{format, limits, splitting};

/// Every method offered.
pub(super) const METHODS: [&str; 42] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];

/// `s.name(args)`
pub(super) fn call(s: &str, name: &str, args: Args) -> Result<Value, Error> {
    limits::count_work(s.len())?;
    match name {
        "upper" => args.none().and_then(|()| string(s.to_uppercase())),
        "lower" | "casefold" => args.none().and_then(|()| string(s.to_lowercase())),
        "capitalize" => args.none().and_then(|()| string(capitalize(s))),
        "title" => args.none().and_then(|()| string(title(s))),
        "swapcase" => args.none().and_then(|()| {
            string(
                s.chars()
                    .flat_map(|c| {
                        if c.is_uppercase() {
                            c.to_lowercase().collect::<Vec<_>>()
                        } else {
                            c.to_uppercase().collect()
                        }
                    })
                    .collect(),
            )
        }),
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(["chars"])?;
            strip(s, name != "rstrip", name != "lstrip", chars.as_ref())
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(["affix"])?;
            let affix = required(affix, "affix")?;
            let affix = string_arg(&affix, "affix")?;
            let rest = if name == "removeprefix" {
                s.strip_prefix(affix)
            } else {
                s.strip_suffix(affix)
            };
            string(rest.unwrap_or(s).to_owned())
        }
        "split" | "rsplit" => {
            let [sep, maxsplit] = args.bind(["sep", "maxsplit"])?;
            splitting::split(
                s,
                sep.as_ref(),
                optional_integer(maxsplit, "maxsplit")?,
                name == "rsplit",
            )
        }
        "splitlines" => {
            let [keepends] = args.bind(["keepends"])?;
            let lines = splitting::lines(s, flag(keepends, false));
            list(lines.into_iter().map(Value::from).collect())
        }
        "partition" | "rpartition" => {
            let [sep] = args.bind(["sep"])?;
            let sep = required(sep, "sep")?;
            splitting::partition(s, string_arg(&sep, "sep")?, name == "rpartition")
        }
        "startswith" | "endswith" => affix(s, name, args),
        "replace" => {
            let [old, new, count] = args.bind(["old", "new", "count"])?;
            let (old, new) = (required(old, "old")?, required(new, "new")?);
            replace(
                s,
                string_arg(&old, "old")?,
                string_arg(&new, "new")?,
                optional_integer(count, "count")?,
            )
        }
        "find" | "rfind" | "index" | "rindex" | "count" => search(s, name, args),
        "join" => {
            let [items] = args.bind(["iterable"])?;
            join(s, &required(items, "iterable")?)
        }
        "center" | "ljust" | "rjust" => {
            let [width, fill] = args.bind(["width", "fillchar"])?;
            let fill = fill.unwrap_or_else(|| Value::from(" "));
            let fill = string_arg(&fill, "fillchar")?;
            let mut chars = fill.chars();
            let (Some(fill), None) = (chars.next(), chars.next()) else {
                return Err(fail(
                    "the fill character must be exactly one character long",
                ));
            };
            pad(s, name, integer(&required(width, "width")?, "width")?, fill)
        }
        "zfill" => {
            let [width] = args.bind(["width"])?;
            let (sign, digits) = match s.chars().next() {
                Some('+' | '-') => s.split_at(1),
                _ => ("", s),
            };
            let width = integer(&required(width, "width")?, "width")?;
            let padded = pad(
                digits,
                "rjust",
                width.saturating_sub(i64::from(!sign.is_empty())),
                '0',
            )?;
            string(format!("{sign}{}", padded.as_str().unwrap_or_default()))
        }
        "expandtabs" => {
            let [tabsize] = args.bind(["tabsize"])?;
            expand_tabs(
                s,
                usize::try_from(optional_integer(tabsize, "tabsize")?.unwrap_or(8)).unwrap_or(0),
            )
        }
        "format" => {
            let mut values = args
                .positional
                .iter()
                .map(format::printable)
                .collect::<Result<Vec<_>, _>>()?;
            if !args.named.is_empty() {
                let named = args
                    .named
                    .iter()
                    .map(|(name, value)| Ok((name.clone(), format::printable(value)?)));
                let named = named.collect::<Result<Vec<_>, Error>>()?;
                values.push(Value::from(
                    named.into_iter().collect::<minijinja::value::Kwargs>(),
                ));
            }
            format::format_with(FormatStyle::StrFormat, s, &values)
        }
        _ => args.none().map(|()| Value::from(classify(s, name))),
    }
}

/// `str.isalpha` and its siblings.
fn classify(s: &str, name: &str) -> bool {
    let all = |test: fn(char) -> bool| !s.is_empty() && s.chars().all(test);
    match name {
        "isascii" => s.is_ascii(),
        "isspace" => all(is_space),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        // Outside ASCII, Rust knows only the widest of the three classes.
        "isdigit" | "isdecimal" => all(|c| c.is_ascii_digit() || !c.is_ascii() && c.is_numeric()),
        "isnumeric" => all(char::is_numeric),
        "islower" => is_lower(s),
        "isupper" => is_upper(s),
        "istitle" => s.chars().any(char::is_alphabetic) && title(s) == s,
        _ => {
            s.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && s.chars().all(|c| c.is_alphanumeric() || c == '_')
        }
    }
}

/// `s.islower()`: some cased character, and none that is not lower case.
pub(super) fn is_lower(s: &str) -> bool {
    s.chars().any(char::is_lowercase) && !s.chars().any(char::is_uppercase)
}

/// `s.isupper()`
pub(super) fn is_upper(s: &str) -> bool {
    s.chars().any(char::is_uppercase) && !s.chars().any(char::is_lowercase)
}

/// `s.capitalize()`
pub(super) fn capitalize(s: &str) -> String {
    let mut chars = s.chars();
    chars.next().map_or_else(String::new, |first| {
        first
            .to_uppercase()
            .chain(chars.as_str().to_lowercase().chars())
            .collect()
    })
}

/// `s.title()`: every run of letters begins with a capital.
fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut in_word = false;
    for c in s.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        in_word = c.is_alphabetic();
    }
    out
}

/// `s.strip(chars)` on the sides asked for.
pub(super) fn strip(
    s: &str,
    start: bool,
    end: bool,
    chars: Option<&Value>,
) -> Result<Value, Error> {
    let set: Option<Vec<char>> = match chars.map(py) {
        None | Some(Py::None) => None,
        Some(Py::Str(chars)) => Some(chars.chars().collect()),
        Some(_) => return Err(fail("strip arg must be None or str")),
    };
    let stripped = |c: char| {
        set.as_ref()
            .map_or_else(|| is_space(c), |set| set.contains(&c))
    };
    let mut rest = s;
    if start {
        rest = rest.trim_start_matches(stripped);
    }
    if end {
        rest = rest.trim_end_matches(stripped);
    }
    string(rest.to_owned())
}

/// The part of `s` between two optional character positions, and how many characters come before it.
fn window(s: &str, start: Option<i64>, end: Option<i64>) -> Option<(&str, usize)> {
    if start.is_none() && end.is_none() {
        return Some((s, 0));
    }
    let len = i64::try_from(s.chars().count()).unwrap_or(i64::MAX);
    let position = |i: i64| {
        if i < 0 {
            i.saturating_add(len).max(0)
        } else {
            i
        }
    };
    let (start, end) = (
        position(start.unwrap_or(0)),
        position(end.unwrap_or(len)).min(len),
    );
    if start > end {
        return None;
    }
    let byte = |i: i64| {
        s.char_indices()
            .nth(usize::try_from(i).unwrap_or(usize::MAX))
            .map_or(s.len(), |(i, _)| i)
    };
    Some((
        &s[byte(start)..byte(end)],
        usize::try_from(start).unwrap_or(0),
    ))
}

fn affix(s: &str, name: &str, args: Args) -> Result<Value, Error> {
    let [affix, start, end] = args.bind(["prefix", "start", "end"])?;
    let affix = required(affix, "prefix")?;
    let window = window(
        s,
        optional_integer(start, "start")?,
        optional_integer(end, "end")?,
    );
    let test = |affix: &str| {
        window.is_some_and(|(s, _)| {
            if name == "startswith" {
                s.starts_with(affix)
            } else {
                s.ends_with(affix)
            }
        })
    };
    let wrong = |value: &Value| {
        fail(format!(
            "{name} first arg must be str or a tuple of str, not {}",
            type_name(value)
        ))
    };
    match py(&affix) {
        Py::Str(affix) => Ok(Value::from(test(affix))),
        Py::Seq(tuple) if matches!(tuple.kind, SeqKind::Tuple | SeqKind::Group) => {
            for affix in tuple.items() {
                if test(affix.as_str().ok_or_else(|| wrong(affix))?) {
                    return Ok(Value::from(true));
                }
            }
            Ok(Value::from(false))
        }
        _ => Err(wrong(&affix)),
    }
}

/// `s.replace(old, new, count)`
pub(super) fn replace(s: &str, old: &str, new: &str, count: Option<i64>) -> Result<Value, Error> {
    let most = count
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX);
    let found = s.matches(old).count().min(most);
    limits::count_string(s.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(Value::from(s.replacen(old, new, most)))
}

fn search(s: &str, name: &str, args: Args) -> Result<Value, Error> {
    let [sub, start, end] = args.bind(["sub", "start", "end"])?;
    let sub = required(sub, "sub")?;
    let sub = string_arg(&sub, "sub")?;
    let window = window(
        s,
        optional_integer(start, "start")?,
        optional_integer(end, "end")?,
    );
    if name == "count" {
        // Rust and Python agree: an empty string is found between all characters.
        return Ok(Value::from(
            window.map_or(0, |(s, _)| s.matches(sub).count()),
        ));
    }
    let found = window.and_then(|(s, before)| {
        let byte = if name.starts_with('r') {
            s.rfind(sub)
        } else {
            s.find(sub)
        };
        byte.map(|byte| before + s[..byte].chars().count())
    });
    match found {
        Some(position) => Ok(Value::from(position)),
        None if name.ends_with("find") => Ok(Value::from(-1)),
        None => Err(fail("substring not found")),
    }
}

fn join(sep: &str, items: &Value) -> Result<Value, Error> {
    let mut out = limits::Text::default();
    for (i, item) in iterate(items)?.iter().enumerate() {
        if i > 0 {
            out.push(sep)?;
        }
        let Some(text) = item.as_str() else {
            return Err(fail(format!(
                "sequence item {i}: expected str instance, {} found",
                type_name(item)
            )));
        };
        out.push(text)?;
    }
    Ok(Value::from(out.into_string()))
}

/// `s.center(width, fill)`, `ljust`, `rjust`
pub(super) fn pad(s: &str, name: &str, width: i64, fill: char) -> Result<Value, Error> {
    let len = s.chars().count();
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(len);
    limits::count_string(
        s.len()
            .saturating_add(missing.saturating_mul(fill.len_utf8())),
    )?;
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        // CPython's rounding.
        _ => missing / 2 + (missing & (len + missing) & 1),
    };
    let spaces = |n: usize| std::iter::repeat_n(fill, n);
    Ok(Value::from(
        spaces(left)
            .chain(s.chars())
            .chain(spaces(missing - left))
            .collect::<String>(),
    ))
}

fn expand_tabs(s: &str, tab_size: usize) -> Result<Value, Error> {
    let mut out = limits::Text::default();
    let mut column = 0;
    for c in s.chars() {
        match c {
            '\t' => {
                for _ in
                    0..tab_size.saturating_sub(if tab_size == 0 { 0 } else { column % tab_size })
                {
                    out.push(" ")?;
                    column += 1;
                }
            }
            c => {
                out.push_char(c)?;
                column = if matches!(c, '\n' | '\r') {
                    0
                } else {
                    column + 1
                };
            }
        }
    }
    Ok(Value::from(out.into_string()))
}

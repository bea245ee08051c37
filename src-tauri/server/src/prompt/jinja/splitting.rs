//! `str.split`, `rsplit`, `splitlines` and `partition`.

use minijinja::Error;
use minijinja::value::Value;

use super::lexer::is_space;
use super::value::{Py, SeqKind, fail, list, py, seq, type_name};

pub(super) fn split(
    s: &str,
    sep: Option<&Value>,
    maxsplit: Option<i64>,
    from_right: bool,
) -> Result<Value, Error> {
    let most = maxsplit
        .and_then(|n| usize::try_from(n).ok())
        .unwrap_or(usize::MAX);
    let parts: Vec<&str> = match sep.map(py) {
        None | Some(Py::None) if from_right => split_space_from_right(s, most),
        None | Some(Py::None) => split_space(s, most),
        Some(Py::Str("")) => return Err(fail("empty separator")),
        Some(Py::Str(sep)) if from_right => {
            let mut parts: Vec<&str> = s.rsplitn(most.saturating_add(1), sep).collect();
            parts.reverse();
            parts
        }
        Some(Py::Str(sep)) => s.splitn(most.saturating_add(1), sep).collect(),
        Some(_) => {
            return Err(fail(format!(
                "must be str or None, not {}",
                sep.map_or("None", type_name)
            )));
        }
    };
    list(parts.into_iter().map(Value::from).collect())
}

fn split_space(s: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = s.trim_start_matches(is_space);
    while !rest.is_empty() {
        match rest.find(is_space).filter(|_| parts.len() < most) {
            Some(end) => {
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start_matches(is_space);
            }
            None => {
                parts.push(rest);
                break;
            }
        }
    }
    parts
}

fn split_space_from_right(s: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = s.trim_end_matches(is_space);
    while !rest.is_empty() {
        match rest
            .char_indices()
            .rfind(|&(_, c)| is_space(c))
            .filter(|_| parts.len() < most)
        {
            Some((space, c)) => {
                parts.push(&rest[space + c.len_utf8()..]);
                rest = rest[..space].trim_end_matches(is_space);
            }
            None => {
                parts.push(rest);
                break;
            }
        }
    }
    parts.reverse();
    parts
}

/// `s.splitlines(keepends)`
pub(super) fn lines(s: &str, keepends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut rest = s;
    while !rest.is_empty() {
        let end = rest.find(|c| {
            matches!(
                c,
                '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                    ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
            )
        });
        let Some(end) = end else {
            lines.push(rest);
            break;
        };
        let break_len = if rest[end..].starts_with("\r\n") {
            2
        } else {
            rest[end..].chars().next().map_or(1, char::len_utf8)
        };
        lines.push(&rest[..if keepends { end + break_len } else { end }]);
        rest = &rest[end + break_len..];
    }
    lines
}

pub(super) fn partition(s: &str, sep: &str, from_right: bool) -> Result<Value, Error> {
    if sep.is_empty() {
        return Err(fail("empty separator"));
    }
    let parts = match if from_right {
        s.rsplit_once(sep)
    } else {
        s.split_once(sep)
    } {
        Some((before, after)) => [before, sep, after],
        None if from_right => ["", "", s],
        None => [s, "", ""],
    };
    seq(SeqKind::Tuple, parts.into_iter().map(Value::from).collect())
}

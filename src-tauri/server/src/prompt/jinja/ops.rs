//! Python's operators.

use std::cmp::Ordering;

use minijinja::value::Value;
use minijinja::{Error, FormatStyle, format_filter};

use super::value::{
    Py, SeqKind, dict, fail, from_range, insert, int, iterate, py, seq, string, type_name,
};
use super::{limits, text};

/// Numbers as Python's arithmetic sees them: a bool is an int.
enum Number {
    Int(i128),
    Float(f64),
}

fn number(value: &Value) -> Option<Number> {
    match py(value) {
        Py::Bool(b) => Some(Number::Int(i128::from(b))),
        Py::Int(n) => Some(Number::Int(n)),
        Py::Float(x) => Some(Number::Float(x)),
        _ => None,
    }
}

impl Number {
    #[allow(clippy::cast_precision_loss)] // Python's `float(int)` rounds as well
    fn as_f64(&self) -> f64 {
        match *self {
            Self::Int(n) => n as f64,
            Self::Float(x) => x,
        }
    }
}

fn unsupported(op: &str, a: &Value, b: &Value) -> Error {
    for operand in [a, b] {
        if operand.is_undefined() {
            return fail(format!("an operand of '{op}' is undefined"));
        }
    }
    match (a.as_str(), op) {
        (Some(_), "+") => fail(format!(
            "can only concatenate str (not \"{}\") to str",
            type_name(b)
        )),
        _ => fail(format!(
            "unsupported operand types for {op}: '{}' and '{}'",
            type_name(a),
            type_name(b)
        )),
    }
}

fn overflow() -> Error {
    fail("a number in the chat template is too large")
}

/// `a ~ b`: the operands as `str()` prints them.
pub(super) fn concat(first: &Value, rest: &[Value]) -> Result<Value, Error> {
    let mut out = limits::Text::default();
    for value in std::iter::once(first).chain(rest) {
        out.push(&text::str(value)?)?;
    }
    Ok(Value::from(out.into_string()))
}

/// `a + b`
pub(super) fn add(a: &Value, b: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        limits::count_string(a.len() + b.len())?;
        return Ok(Value::from([a, b].concat()));
    }
    match (number(a), number(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            return a.checked_add(b).map(int).ok_or_else(overflow);
        }
        (Some(a), Some(b)) => return Ok(Value::from(a.as_f64() + b.as_f64())),
        _ => {}
    }
    match (py(a), py(b)) {
        (Py::Seq(x), Py::Seq(y))
            if x.kind == y.kind && matches!(x.kind, SeqKind::List | SeqKind::Tuple) =>
        {
            seq(x.kind, [x.items(), y.items()].concat())
        }
        _ => Err(unsupported("+", a, b)),
    }
}

/// `a - b`
pub(super) fn sub(a: &Value, b: &Value) -> Result<Value, Error> {
    match (number(a), number(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            a.checked_sub(b).map(int).ok_or_else(overflow)
        }
        (Some(a), Some(b)) => Ok(Value::from(a.as_f64() - b.as_f64())),
        _ => Err(unsupported("-", a, b)),
    }
}

/// `a * b`, also of a string or list and an int
pub(super) fn mul(a: &Value, b: &Value) -> Result<Value, Error> {
    match (number(a), number(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            return a.checked_mul(b).map(int).ok_or_else(overflow);
        }
        (Some(a), Some(b)) => return Ok(Value::from(a.as_f64() * b.as_f64())),
        _ => {}
    }
    let (repeated, times) = match (number(a), number(b)) {
        (None, Some(Number::Int(n))) => (a, n),
        (Some(Number::Int(n)), None) => (b, n),
        _ => return Err(unsupported("*", a, b)),
    };
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    match py(repeated) {
        Py::Str(s) => {
            limits::count_string(s.len().saturating_mul(times))?;
            Ok(Value::from(s.repeat(if s.is_empty() { 0 } else { times })))
        }
        Py::Seq(x) if matches!(x.kind, SeqKind::List | SeqKind::Tuple) => {
            limits::count_items(x.items().len().saturating_mul(times))?;
            let times = if x.items().is_empty() { 0 } else { times };
            seq(
                x.kind,
                std::iter::repeat_n(x.items(), times)
                    .flatten()
                    .cloned()
                    .collect(),
            )
        }
        _ => Err(unsupported("*", a, b)),
    }
}

/// `a / b`, always a float
pub(super) fn div(a: &Value, b: &Value) -> Result<Value, Error> {
    match (number(a), number(b)) {
        (Some(_), Some(b)) if b.as_f64() == 0.0 => Err(fail("division by zero")),
        (Some(a), Some(b)) => Ok(Value::from(a.as_f64() / b.as_f64())),
        _ => Err(unsupported("/", a, b)),
    }
}

/// `a // b`, rounded down
pub(super) fn floordiv(a: &Value, b: &Value) -> Result<Value, Error> {
    match (number(a), number(b)) {
        (Some(_), Some(b)) if b.as_f64() == 0.0 => Err(fail("integer division or modulo by zero")),
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            let quotient = a.checked_div(b).ok_or_else(overflow)?;
            Ok(int(quotient - i128::from(a % b != 0 && (a < 0) != (b < 0))))
        }
        (Some(a), Some(b)) => Ok(Value::from((a.as_f64() / b.as_f64()).floor())),
        _ => Err(unsupported("//", a, b)),
    }
}

/// `a % b`: the remainder with the sign of `b`, or printf formatting
pub(super) fn modulo(a: &Value, b: &Value) -> Result<Value, Error> {
    if let Some(format) = a.as_str() {
        return printf(format, b);
    }
    match (number(a), number(b)) {
        (Some(_), Some(b)) if b.as_f64() == 0.0 => Err(fail("integer division or modulo by zero")),
        (Some(Number::Int(a)), Some(Number::Int(b))) => {
            let rest = a.checked_rem(b).ok_or_else(overflow)?;
            Ok(int(if rest != 0 && (rest < 0) != (b < 0) {
                rest + b
            } else {
                rest
            }))
        }
        (Some(a), Some(b)) => {
            let (a, b) = (a.as_f64(), b.as_f64());
            let rest = a % b;
            Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (b < 0.0) {
                rest + b
            } else {
                rest
            }))
        }
        _ => Err(unsupported("%", a, b)),
    }
}

/// `a ** b`
pub(super) fn pow(a: &Value, b: &Value) -> Result<Value, Error> {
    match (number(a), number(b)) {
        (Some(Number::Int(a)), Some(Number::Int(b))) if b >= 0 => u32::try_from(b)
            .ok()
            .and_then(|b| a.checked_pow(b))
            .map(int)
            .ok_or_else(overflow),
        (Some(a), Some(b)) => Ok(Value::from(a.as_f64().powf(b.as_f64()))),
        _ => Err(unsupported("**", a, b)),
    }
}

/// `-a`
pub(super) fn neg(a: &Value) -> Result<Value, Error> {
    match number(a) {
        Some(Number::Int(n)) => n.checked_neg().map(int).ok_or_else(overflow),
        Some(Number::Float(x)) => Ok(Value::from(-x)),
        None => Err(fail(format!(
            "bad operand type for unary -: '{}'",
            type_name(a)
        ))),
    }
}

/// `+a`
pub(super) fn pos(a: &Value) -> Result<Value, Error> {
    match number(a) {
        Some(Number::Int(n)) => Ok(int(n)),
        Some(Number::Float(x)) => Ok(Value::from(x)),
        None => Err(fail(format!(
            "bad operand type for unary +: '{}'",
            type_name(a)
        ))),
    }
}

/// One comparison by the name of its operator.
pub(super) fn compare(op: &str, a: &Value, b: &Value) -> Result<bool, Error> {
    match op {
        "eq" => equal(a, b),
        "ne" => Ok(!equal(a, b)?),
        "in" => contains(b, a),
        "notin" => Ok(!contains(b, a)?),
        "lt" => Ok(order(a, b, "<")? == Some(Ordering::Less)),
        "le" => Ok(matches!(
            order(a, b, "<=")?,
            Some(Ordering::Less | Ordering::Equal)
        )),
        "gt" => Ok(order(a, b, ">")? == Some(Ordering::Greater)),
        _ => Ok(matches!(
            order(a, b, ">=")?,
            Some(Ordering::Greater | Ordering::Equal)
        )),
    }
}

/// `a == b`. Values of unlike types are unequal, except that numbers compare by value.
pub(super) fn equal(a: &Value, b: &Value) -> Result<bool, Error> {
    if let (Some(x), Some(y)) = (number(a), number(b)) {
        return Ok(match (x, y) {
            (Number::Int(x), Number::Int(y)) => x == y,
            (x, y) => x.as_f64() == y.as_f64(),
        });
    }
    Ok(match (py(a), py(b)) {
        (Py::Undefined, Py::Undefined) | (Py::None, Py::None) => true,
        (Py::Str(x), Py::Str(y)) => {
            if x.len() == y.len() {
                limits::count_work(x.len())?;
            }
            x == y
        }
        (Py::Seq(x), Py::Seq(y)) => {
            if std::ptr::eq(x, y) {
                return Ok(true);
            }
            let tuple = |kind| {
                if kind == SeqKind::Group {
                    SeqKind::Tuple
                } else {
                    kind
                }
            };
            let same_kind = match (x.kind, y.kind) {
                (SeqKind::Generator | SeqKind::Values, _) => false,
                (SeqKind::Range(..), SeqKind::Range(..)) => true,
                (x, y) => tuple(x) == tuple(y),
            };
            if !same_kind || x.items().len() != y.items().len() {
                return Ok(false);
            }
            limits::count_items(x.items().len())?;
            for (x, y) in x.items().iter().zip(y.items()) {
                if !equal(x, y)? {
                    return Ok(false);
                }
            }
            true
        }
        (Py::Dict(x), Py::Dict(y)) => {
            if x.map.len() != y.map.len() {
                return Ok(false);
            }
            limits::count_items(x.map.len())?;
            for (key, x) in &x.map {
                match y.get(key) {
                    Some(y) if equal(x, y)? => {}
                    _ => return Ok(false),
                }
            }
            true
        }
        (Py::Other, Py::Other) => a == b,
        _ => false,
    })
}

/// Order of two values; `None` where neither comes first (NaN). `TypeError` for what Python does not order.
fn order(a: &Value, b: &Value, op: &str) -> Result<Option<Ordering>, Error> {
    if let (Some(x), Some(y)) = (number(a), number(b)) {
        return Ok(match (x, y) {
            (Number::Int(x), Number::Int(y)) => Some(x.cmp(&y)),
            (x, y) => x.as_f64().partial_cmp(&y.as_f64()),
        });
    }
    match (py(a), py(b)) {
        (Py::Str(x), Py::Str(y)) => {
            limits::count_work(x.len().min(y.len()))?;
            Ok(Some(x.cmp(y)))
        }
        (Py::Seq(x), Py::Seq(y))
            if x.kind == y.kind && matches!(x.kind, SeqKind::List | SeqKind::Tuple) =>
        {
            limits::count_items(x.items().len().min(y.items().len()))?;
            for (x, y) in x.items().iter().zip(y.items()) {
                if !equal(x, y)? {
                    return order(x, y, op);
                }
            }
            Ok(Some(x.items().len().cmp(&y.items().len())))
        }
        (Py::Undefined, _) | (_, Py::Undefined) => Err(unsupported(op, a, b)),
        _ => Err(fail(format!(
            "'{op}' not supported between instances of '{}' and '{}'",
            type_name(a),
            type_name(b)
        ))),
    }
}

/// `a < b`, for sorting
pub(super) fn less(a: &Value, b: &Value) -> Result<bool, Error> {
    compare("lt", a, b)
}

/// `value in container`
pub(super) fn contains(container: &Value, value: &Value) -> Result<bool, Error> {
    match py(container) {
        Py::Undefined => Ok(false),
        Py::Str(text) => match value.as_str() {
            Some(part) => {
                limits::count_work(text.len())?;
                Ok(text.contains(part))
            }
            None if value.is_undefined() => Err(fail("the left operand of 'in' is undefined")),
            None => Err(fail(format!(
                "'in <string>' requires string as left operand, not {}",
                type_name(value)
            ))),
        },
        Py::Dict(dict) => Ok(dict.get(hashable(value)?).is_some()),
        Py::Seq(seq) => {
            limits::count_items(seq.items().len())?;
            for item in seq.pass() {
                if equal(item, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        Py::Other if container.as_object().is_some() => {
            for item in iterate(container)? {
                if equal(&item, value)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Err(fail(format!(
            "argument of type '{}' is not iterable",
            type_name(container)
        ))),
    }
}

/// Refuses what Python cannot use as a key.
pub(super) fn hashable(value: &Value) -> Result<&Value, Error> {
    match py(value) {
        Py::Dict(_) => Err(fail("unhashable type: 'dict'")),
        Py::Seq(seq) if seq.kind == SeqKind::List => Err(fail("unhashable type: 'list'")),
        _ => Ok(value),
    }
}

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
            vec![Value::from(
                named.into_iter().collect::<minijinja::value::Kwargs>(),
            )]
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
    // Every field prints one argument, padded to at most 9999 characters.
    let fields = format.matches(['%', '{']).count();
    let longest = args
        .iter()
        .map(|arg| arg.as_str().map_or(64, str::len))
        .max()
        .unwrap_or(0);
    limits::count_string(
        format
            .len()
            .saturating_add(fields.saturating_mul(longest.saturating_add(10_000).min(1 << 24))),
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

/// `value[start:stop:step]`
pub(super) fn slice(value: &Value, bounds: [&Value; 3]) -> Result<Value, Error> {
    let bound = |value: &Value| match py(value) {
        Py::None => Ok(None),
        Py::Int(n) => Ok(Some(n)),
        Py::Bool(b) => Ok(Some(i128::from(b))),
        _ => Err(fail("slice indices must be integers or None")),
    };
    let [start, stop, step] = [bound(bounds[0])?, bound(bounds[1])?, bound(bounds[2])?];
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(fail("slice step cannot be zero"));
    }
    match py(value) {
        Py::Str(s) => {
            limits::count_work(s.len())?;
            if s.is_ascii() && step == 1 {
                let range = slice_range(s.len(), start, stop, step);
                let (from, len) = (range.first, range.len);
                return Ok(Value::from(&s[from..from + len]));
            }
            limits::count_items(s.len())?;
            let chars: Vec<char> = s.chars().collect();
            let range = slice_range(chars.len(), start, stop, step);
            string(range.map(|i| chars[i]).collect())
        }
        Py::Seq(x) => match x.kind {
            SeqKind::List | SeqKind::Tuple | SeqKind::Group => {
                let kind = if x.kind == SeqKind::List {
                    SeqKind::List
                } else {
                    SeqKind::Tuple
                };
                seq(
                    kind,
                    slice_range(x.items().len(), start, stop, step)
                        .map(|i| x.items()[i].clone())
                        .collect(),
                )
            }
            SeqKind::Range(first, _, gap) => {
                let range = slice_range(x.items().len(), start, stop, step);
                let gap_of_slice = i128::from(gap).saturating_mul(step);
                let begin = i128::from(first) + i128::from(gap) * range.first as i128;
                from_range(
                    begin,
                    begin.saturating_add(gap_of_slice.saturating_mul(range.len as i128)),
                    gap_of_slice,
                )
            }
            _ => Err(fail(format!(
                "'{}' object is not subscriptable",
                type_name(value)
            ))),
        },
        _ => Err(fail(format!(
            "'{}' object is not subscriptable",
            type_name(value)
        ))),
    }
}

/// The indices of a slice.
struct SliceRange {
    first: usize,
    len: usize,
    step: i128,
}

impl Iterator for SliceRange {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.len = self.len.checked_sub(1)?;
        let index = self.first;
        self.first = usize::try_from((index as i128).saturating_add(self.step)).unwrap_or(0);
        Some(index)
    }
}

fn slice_range(len: usize, start: Option<i128>, stop: Option<i128>, step: i128) -> SliceRange {
    let len = len as i128;
    // A negative step may stop before the first item, hence -1.
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let clamp = |i: i128| {
        if i < 0 {
            i.saturating_add(len).max(lowest)
        } else {
            i.min(highest)
        }
    };
    let start = start.map_or(if step > 0 { lowest } else { highest }, clamp);
    let stop = stop.map_or(if step > 0 { highest } else { lowest }, clamp);
    let span = if step > 0 { stop - start } else { start - stop };
    let count = if span > 0 {
        (span - 1) / step.saturating_abs() + 1
    } else {
        0
    };
    SliceRange {
        first: usize::try_from(start).unwrap_or(0),
        len: usize::try_from(count).unwrap_or(0),
        step,
    }
}

/// `{k: v}` from a flat list of keys and values.
pub(super) fn dict_of(flat: &[Value]) -> Result<Value, Error> {
    let mut map = indexmap::IndexMap::with_capacity(flat.len() / 2);
    for pair in flat.chunks_exact(2) {
        insert(&mut map, hashable(&pair[0])?.clone(), pair[1].clone());
    }
    dict(map)
}

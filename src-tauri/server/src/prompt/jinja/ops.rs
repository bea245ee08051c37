//! Python's operators.

use std::cmp::Ordering;

use minijinja::Error;
use minijinja::value::Value;

use super::value::{Py, SeqKind, dict, fail, insert, int, iterate, py, seq, type_name};
use super::{format, limits, text};

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
        return format::printf(format, b);
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

/// `{k: v}` from a flat list of keys and values.
pub(super) fn dict_of(flat: &[Value]) -> Result<Value, Error> {
    let mut map = indexmap::IndexMap::with_capacity(flat.len() / 2);
    for pair in flat.chunks_exact(2) {
        insert(&mut map, hashable(&pair[0])?.clone(), pair[1].clone());
    }
    dict(map)
}

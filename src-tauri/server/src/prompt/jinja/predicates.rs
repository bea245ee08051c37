//! Jinja2's tests (`x is defined`), with Python's notion of types.

use minijinja::value::ValueKind;
use minijinja::{Error, Value};

use super::args::{Args, required};
use super::value::{Py, SeqKind, py, type_name};
use super::{filters, ops, strings, text};

/// Every test: its name and how many arguments it takes besides the value.
const TESTS: [(&str, usize); 39] = [
    ("boolean", 0),
    ("callable", 0),
    ("defined", 0),
    ("divisibleby", 1),
    ("eq", 1),
    ("==", 1),
    ("equalto", 1),
    ("escaped", 0),
    ("even", 0),
    ("false", 0),
    ("filter", 0),
    ("float", 0),
    ("ge", 1),
    (">=", 1),
    ("greaterthan", 1),
    ("gt", 1),
    (">", 1),
    ("in", 1),
    ("integer", 0),
    ("iterable", 0),
    ("le", 1),
    ("<=", 1),
    ("lessthan", 1),
    ("lower", 0),
    ("lt", 1),
    ("<", 1),
    ("mapping", 0),
    ("ne", 1),
    ("!=", 1),
    ("none", 0),
    ("number", 0),
    ("odd", 0),
    ("sameas", 1),
    ("sequence", 0),
    ("string", 0),
    ("test", 0),
    ("true", 0),
    ("undefined", 0),
    ("upper", 0),
];

/// All tests.
pub(super) fn all() -> impl Iterator<Item = (&'static str, usize)> {
    TESTS.into_iter()
}

/// Whether a test of this name exists.
pub(super) fn is_known(name: &str) -> bool {
    all().any(|(known, _)| known == name)
}

/// `value is name(args)`
pub(super) fn run(name: &str, value: &Value, args: Args) -> Result<bool, Error> {
    let takes_argument = all().any(|(known, count)| known == name && count == 1);
    if takes_argument {
        let [other] = args.bind([if name == "sameas" { "other" } else { "value" }])?;
        return binary(name, value, &required(other, name)?);
    }
    args.none()?;
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => value.is_none(),
        "boolean" => matches!(py(value), Py::Bool(_)),
        "true" => matches!(py(value), Py::Bool(true)),
        "false" => matches!(py(value), Py::Bool(false)),
        "integer" => matches!(py(value), Py::Int(_)),
        "float" => matches!(py(value), Py::Float(_)),
        "number" => matches!(py(value), Py::Int(_) | Py::Float(_) | Py::Bool(_)),
        "string" => matches!(py(value), Py::Str(_)),
        "mapping" => matches!(py(value), Py::Dict(_)),
        // Whatever has a length and items by index: dicts and strings too, and Jinja2's undefined.
        "sequence" => match py(value) {
            Py::Str(_) | Py::Dict(_) | Py::Undefined => true,
            Py::Seq(seq) => matches!(
                seq.kind,
                SeqKind::List | SeqKind::Tuple | SeqKind::Group | SeqKind::Range(..)
            ),
            _ => false,
        },
        "iterable" => match py(value) {
            Py::Str(_) | Py::Dict(_) | Py::Seq(_) | Py::Undefined => true,
            Py::Other => matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable),
            _ => false,
        },
        // Jinja2's undefined has a `__call__`, which raises.
        "callable" => match py(value) {
            Py::Undefined => true,
            Py::Other => !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable),
            _ => false,
        },
        "escaped" => false,
        "odd" => ops::equal(&ops::modulo(value, &Value::from(2))?, &Value::from(1))?,
        "even" => ops::equal(&ops::modulo(value, &Value::from(2))?, &Value::from(0))?,
        "lower" => strings::is_lower(&text::str(value)?),
        "upper" => strings::is_upper(&text::str(value)?),
        "filter" => value.as_str().is_some_and(filters::is_known),
        _ => value.as_str().is_some_and(is_known),
    })
}

fn binary(name: &str, value: &Value, other: &Value) -> Result<bool, Error> {
    match name {
        "eq" | "==" | "equalto" => ops::compare("eq", value, other),
        "ne" | "!=" => ops::compare("ne", value, other),
        "lt" | "<" | "lessthan" => ops::compare("lt", value, other),
        "le" | "<=" => ops::compare("le", value, other),
        "gt" | ">" | "greaterthan" => ops::compare("gt", value, other),
        "ge" | ">=" => ops::compare("ge", value, other),
        "in" => ops::compare("in", value, other),
        "divisibleby" => ops::equal(&ops::modulo(value, other)?, &Value::from(0)),
        // Identity: what Python keeps once (None, True, False, small numbers, short strings) or the very same object.
        _ => match (py(value), py(other)) {
            (Py::Seq(a), Py::Seq(b)) => Ok(std::ptr::eq(a, b)),
            (Py::Dict(a), Py::Dict(b)) => Ok(std::ptr::eq(a, b)),
            _ => Ok(type_name(value) == type_name(other) && ops::equal(value, other)?),
        },
    }
}

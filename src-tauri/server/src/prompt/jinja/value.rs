//! Python's values on top of minijinja's: lists, tuples, dicts and iterators that print, compare and nest as Python's do.
//!
//! Every container a template can reach is one of these (the environment registers no function that makes another kind), which
//! lets the nesting be bounded where a container is made: a chain of a million one-element lists would otherwise overflow the
//! stack when it is dropped.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indexmap::IndexMap;
use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr, Value, ValueKind};
use minijinja::{Error, ErrorKind};
use serde_json::Value as Json;

use super::{limits, text};

/// Deepest nesting of lists and dicts.
const MAX_DEPTH: u16 = 400;

/// Which Python type a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeqKind {
    List,
    Tuple,
    /// `range(start, stop, step)`
    Range(i64, i64, i64),
    /// `dict.keys()`, `dict.values()`, `dict.items()`
    Keys,
    Values,
    Items,
    /// One entry of `groupby`: a tuple whose fields are also called `grouper` and `list`.
    Group,
    /// What `map`, `select` and the like return: always true, without a length, gone after one pass.
    Generator,
}

/// A Python sequence or iterator.
#[derive(Debug)]
pub(super) struct PySeq {
    pub(super) kind: SeqKind,
    items: Vec<Value>,
    shape: Shape,
    used_up: AtomicBool,
}

impl PySeq {
    /// The items, without using a generator up.
    pub(super) fn items(&self) -> &[Value] {
        if self.kind == SeqKind::Generator && self.used_up.load(Ordering::Relaxed) {
            return &[];
        }
        &self.items
    }

    /// The items of one pass: a generator has none left afterwards.
    pub(super) fn pass(&self) -> &[Value] {
        if self.kind == SeqKind::Generator && self.used_up.swap(true, Ordering::Relaxed) {
            return &[];
        }
        &self.items
    }
}

impl Object for PySeq {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.kind == SeqKind::Generator || !self.items.is_empty()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::repr(&Value::from_dyn_object(self.clone())).map_err(|_| fmt::Error)?)
    }
}

/// A Python dict: keys in the order of their first insertion.
#[derive(Debug)]
pub(super) struct PyDict {
    pub(super) map: IndexMap<Value, Value>,
    shape: Shape,
}

impl PyDict {
    pub(super) fn get(&self, key: &Value) -> Option<&Value> {
        self.map.get(key).or_else(|| self.map.get(&twin(key)?))
    }
}

/// The other form of a key that Python takes for the same: `True` and 1, `False` and 0.
fn twin(key: &Value) -> Option<Value> {
    match py(key) {
        Py::Bool(b) => Some(Value::from(i64::from(b))),
        Py::Int(0) => Some(Value::from(false)),
        Py::Int(1) => Some(Value::from(true)),
        Py::Float(x) if x == 0.0 || x == 1.0 => Some(Value::from(x == 1.0)),
        _ => None,
    }
}

/// Sets an entry as Python does: an equal key stays as it was first written.
pub(super) fn insert(map: &mut IndexMap<Value, Value>, key: Value, value: Value) {
    let twin = if map.contains_key(&key) {
        None
    } else {
        twin(&key).filter(|twin| map.contains_key(twin))
    };
    map.insert(twin.unwrap_or(key), value);
}

impl Object for PyDict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(key).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| Box::new(this.map.keys().cloned()))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.map.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::repr(&Value::from_dyn_object(self.clone())).map_err(|_| fmt::Error)?)
    }
}

/// A value seen with Python's eyes.
pub(super) enum Py<'a> {
    Undefined,
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(&'a str),
    Seq(&'a PySeq),
    Dict(&'a PyDict),
    /// A function, macro, namespace or loop object.
    Other,
}

/// Classifies a value.
pub(super) fn py(value: &Value) -> Py<'_> {
    match value.kind() {
        ValueKind::Undefined => Py::Undefined,
        ValueKind::None => Py::None,
        ValueKind::Bool => Py::Bool(value.is_true()),
        ValueKind::String => value.as_str().map_or(Py::Other, Py::Str),
        ValueKind::Number if value.is_integer() => {
            i128::try_from(value.clone()).map_or(Py::Other, Py::Int)
        }
        ValueKind::Number => f64::try_from(value.clone()).map_or(Py::Other, Py::Float),
        _ => {
            if let Some(seq) = value.downcast_object_ref::<PySeq>() {
                Py::Seq(seq)
            } else if let Some(dict) = value.downcast_object_ref::<PyDict>() {
                Py::Dict(dict)
            } else {
                Py::Other
            }
        }
    }
}

/// Python's name of the value's type, for messages.
pub(super) fn type_name(value: &Value) -> &'static str {
    match py(value) {
        Py::Undefined => "Undefined",
        Py::None => "NoneType",
        Py::Bool(_) => "bool",
        Py::Int(_) => "int",
        Py::Float(_) => "float",
        Py::Str(_) => "str",
        Py::Seq(seq) => match seq.kind {
            SeqKind::List => "list",
            SeqKind::Tuple | SeqKind::Group => "tuple",
            SeqKind::Range(..) => "range",
            SeqKind::Keys => "dict_keys",
            SeqKind::Values => "dict_values",
            SeqKind::Items => "dict_items",
            SeqKind::Generator => "generator",
        },
        Py::Dict(_) => "dict",
        Py::Other => "object",
    }
}

/// A Python `TypeError` or the like.
pub(super) fn fail(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// What a container holds, all the way down; known without walking it again.
#[derive(Debug, Clone, Copy)]
struct Shape {
    depth: u16,
    is_data: bool,
}

fn shape(value: &Value) -> Shape {
    match py(value) {
        Py::Seq(seq) => seq.shape,
        Py::Dict(dict) => dict.shape,
        Py::Other => Shape {
            depth: 0,
            is_data: false,
        },
        _ => Shape {
            depth: 0,
            is_data: true,
        },
    }
}

fn outer_shape<'a>(children: impl Iterator<Item = &'a Value>) -> Result<Shape, Error> {
    let mut outer = Shape {
        depth: 1,
        is_data: true,
    };
    for child in children.map(shape) {
        outer.depth = outer.depth.max(child.depth + 1);
        outer.is_data &= child.is_data;
    }
    if outer.depth > MAX_DEPTH {
        return Err(fail(format!(
            "lists and dicts are nested more than {MAX_DEPTH} deep"
        )));
    }
    Ok(outer)
}

/// Whether a template may keep the value in a namespace: anything but namespaces, macros and the like, which could form chains
/// and rings that no bound on nesting sees.
pub(super) fn is_data(value: &Value) -> bool {
    shape(value).is_data
}

/// A sequence of the given Python type.
pub(super) fn seq(kind: SeqKind, items: Vec<Value>) -> Result<Value, Error> {
    limits::count_items(items.len())?;
    let shape = outer_shape(items.iter())?;
    Ok(Value::from_object(PySeq {
        kind,
        items,
        shape,
        used_up: AtomicBool::new(false),
    }))
}

/// A list.
pub(super) fn list(items: Vec<Value>) -> Result<Value, Error> {
    seq(SeqKind::List, items)
}

/// A dict.
pub(super) fn dict(map: IndexMap<Value, Value>) -> Result<Value, Error> {
    limits::count_items(map.len().saturating_mul(4))?;
    let shape = outer_shape(map.keys().chain(map.values()))?;
    Ok(Value::from_object(PyDict { map, shape }))
}

/// `range(start, stop, step)`, at most 100,000 long like in Jinja2's sandbox; `step` is not 0.
pub(super) fn from_range(start: i128, stop: i128, step: i128) -> Result<Value, Error> {
    const LONGEST: i128 = 100_000;
    let span = if step > 0 {
        stop.saturating_sub(start)
    } else {
        start.saturating_sub(stop)
    };
    let count = if span > 0 {
        (span - 1) / step.saturating_abs() + 1
    } else {
        0
    };
    if count > LONGEST {
        return Err(fail(format!(
            "a range of {count} items is too long, the most is {LONGEST}"
        )));
    }
    let bound = |n: i128| i64::try_from(n).map_err(|_| fail("a bound of a range is too large"));
    let kind = SeqKind::Range(bound(start)?, bound(stop)?, bound(step)?);
    seq(
        kind,
        (0..count)
            .map(|i| int(start.saturating_add(i.saturating_mul(step))))
            .collect(),
    )
}

/// A string; counted.
pub(super) fn string(text: String) -> Result<Value, Error> {
    limits::count_string(text.len())?;
    Ok(Value::from(text))
}

/// Stands for an undefined value while it is an argument.
#[derive(Debug)]
struct GivenUndefined;

impl Object for GivenUndefined {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// An undefined value in disguise: see [`receive`].
pub(super) fn given_undefined() -> Value {
    Value::from_object(GivenUndefined)
}

/// The argument itself.
pub(super) fn receive(value: Value) -> Value {
    if value.downcast_object_ref::<GivenUndefined>().is_some() {
        Value::UNDEFINED
    } else {
        value
    }
}

/// An integer, in the smallest representation.
pub(super) fn int(n: i128) -> Value {
    i64::try_from(n).map_or_else(|_| Value::from(n), Value::from)
}

/// Converts JSON, as `json.loads` would.
pub(super) fn from_json(json: &Json) -> Result<Value, Error> {
    Ok(match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(n), _, _) => Value::from(n),
            (_, Some(n), _) => Value::from(n),
            (_, _, Some(n)) => Value::from(n),
            _ => return Err(fail(format!("the number {n} is out of range"))),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => list(items.iter().map(from_json).collect::<Result<_, _>>()?)?,
        Json::Object(fields) => dict(
            fields
                .iter()
                .map(|(key, value)| Ok((Value::from(key.as_str()), from_json(value)?)))
                .collect::<Result<_, Error>>()?,
        )?,
    })
}

/// The items of one pass over a value, as `iter(value)` gives them; `TypeError` for what Python cannot iterate.
pub(super) fn iterate(value: &Value) -> Result<Vec<Value>, Error> {
    let items: Vec<Value> = match py(value) {
        Py::Undefined => Vec::new(),
        Py::Seq(seq) => seq.pass().to_vec(),
        Py::Dict(dict) => dict.map.keys().cloned().collect(),
        Py::Str(s) => {
            limits::count_items(s.len())?;
            s.chars().map(Value::from).collect()
        }
        // Lists that the virtual machine makes itself, such as a macro's `arguments`.
        Py::Other if matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) => {
            value.try_iter()?.collect()
        }
        _ => {
            return Err(fail(format!(
                "'{}' object is not iterable",
                type_name(value)
            )));
        }
    };
    limits::count_items(items.len())?;
    Ok(items)
}

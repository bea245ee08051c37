//! Attributes, items and method calls, as Jinja2's sandbox resolves them: `a.b` looks for an attribute of the Python type first,
//! then for the item `'b'`; `a['b']` the other way round.

use std::fmt;
use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, Value};
use minijinja::{Error, State};

use super::args::{Args, required};
use super::value::{Py, PySeq, SeqKind, fail, py, seq, type_name};
use super::{ops, strings};

const DICT_METHODS: [&str; 11] = [
    "clear",
    "copy",
    "fromkeys",
    "get",
    "items",
    "keys",
    "pop",
    "popitem",
    "setdefault",
    "update",
    "values",
];
const LIST_METHODS: [&str; 11] = [
    "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse",
    "sort",
];
const TUPLE_METHODS: [&str; 2] = ["count", "index"];

/// A method that is mentioned but not called: true and defined, as in Python.
#[derive(Debug)]
struct BoundMethod {
    owner: Value,
    name: String,
}

impl Object for BoundMethod {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        call(state, &self.owner, &self.name, "", args)
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "<built-in method {} of {} object>",
            self.name,
            type_name(&self.owner)
        )
    }
}

fn has_method(value: &Value, name: &str) -> bool {
    match py(value) {
        Py::Str(_) => strings::METHODS.contains(&name),
        Py::Dict(_) => DICT_METHODS.contains(&name),
        Py::Seq(seq) => match seq.kind {
            SeqKind::List => LIST_METHODS.contains(&name),
            SeqKind::Tuple | SeqKind::Group | SeqKind::Range(..) => TUPLE_METHODS.contains(&name),
            _ => false,
        },
        _ => false,
    }
}

fn method(value: &Value, name: &str) -> Option<Value> {
    has_method(value, name).then(|| {
        Value::from_object(BoundMethod {
            owner: value.clone(),
            name: name.to_owned(),
        })
    })
}

fn group_field(seq: &PySeq, name: &str) -> Option<Value> {
    let index = ["grouper", "list"]
        .iter()
        .position(|field| *field == name)?;
    if seq.kind == SeqKind::Group {
        seq.items().get(index).cloned()
    } else {
        None
    }
}

fn undefined(path: &str) -> Error {
    if path.is_empty() {
        fail("a value that the chat template reads from is undefined")
    } else {
        fail(format!("'{path}' is undefined"))
    }
}

/// `value.name`; `path` is how the template wrote `value`.
pub(super) fn attribute(value: &Value, name: &str, path: &str) -> Result<Value, Error> {
    if let Some(method) = method(value, name) {
        return Ok(method);
    }
    Ok(match py(value) {
        Py::Undefined => return Err(undefined(path)),
        Py::Dict(dict) => dict.get(&Value::from(name)).cloned().unwrap_or_default(),
        Py::Seq(seq) => group_field(seq, name).unwrap_or_default(),
        Py::Other => value.get_attr(name).unwrap_or_default(),
        _ => Value::UNDEFINED,
    })
}

/// `value[key]`
pub(super) fn item(value: &Value, key: &Value, path: &str) -> Result<Value, Error> {
    let found = match py(value) {
        Py::Undefined => return Err(undefined(path)),
        Py::Dict(dict) => match py(key) {
            // An unhashable key is a `TypeError`, which Jinja2 turns into undefined.
            Py::Dict(_) | Py::Seq(_) if ops::hashable(key).is_err() => None,
            _ => dict.get(key).cloned(),
        },
        Py::Seq(seq) => match seq.kind {
            SeqKind::List | SeqKind::Tuple | SeqKind::Group | SeqKind::Range(..) => {
                index(key, seq.items().len()).and_then(|i| seq.items().get(i).cloned())
            }
            _ => None,
        },
        Py::Str(s) => match py(key) {
            // Counting characters is for other than ASCII only.
            Py::Int(_) | Py::Bool(_) => {
                let len = if s.is_ascii() {
                    s.len()
                } else {
                    s.chars().count()
                };
                super::limits::count_work(s.len() / 8)?;
                index(key, len)
                    .and_then(|i| {
                        if s.is_ascii() {
                            s.as_bytes().get(i).map(|b| char::from(*b))
                        } else {
                            s.chars().nth(i)
                        }
                    })
                    .map(Value::from)
            }
            _ => None,
        },
        Py::Other => value
            .get_item(key)
            .ok()
            .filter(|found| !found.is_undefined()),
        _ => None,
    };
    match (found, key.as_str()) {
        (Some(found), _) => Ok(found),
        (None, Some(name)) => attribute(value, name, path),
        (None, None) => Ok(Value::UNDEFINED),
    }
}

/// A Python index: negative ones count from the end.
fn index(key: &Value, len: usize) -> Option<usize> {
    let i = match py(key) {
        Py::Int(i) => i,
        Py::Bool(b) => i128::from(b),
        _ => return None,
    };
    let i = if i < 0 {
        i.checked_add(len as i128)?
    } else {
        i
    };
    usize::try_from(i).ok().filter(|i| *i < len)
}

/// `value.name(args)`
pub(super) fn call(
    state: &State<'_, '_>,
    value: &Value,
    name: &str,
    path: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if has_method(value, name) {
        let bound = Args::new(name, args)?;
        return match py(value) {
            Py::Str(s) => strings::call(s, name, bound),
            Py::Dict(dict) => dict_method(value, dict, name, bound),
            Py::Seq(seq) => seq_method(seq, name, bound),
            _ => Err(fail(format!(
                "'{}' object has no method '{name}'",
                type_name(value)
            ))),
        };
    }
    match py(value) {
        Py::Undefined => Err(undefined(path)),
        Py::Other => value.call_method(state, name, args),
        _ => {
            let callee = attribute(value, name, path)?;
            if callee.is_undefined() {
                return Err(fail(format!(
                    "'{} object' has no attribute '{name}'",
                    type_name(value)
                )));
            }
            callee.call(state, args)
        }
    }
}

fn dict_method(
    value: &Value,
    dict: &super::value::PyDict,
    name: &str,
    args: Args,
) -> Result<Value, Error> {
    match name {
        "get" => {
            let [key, default] = args.bind(["key", "default"])?;
            let key = required(key, "key")?;
            Ok(dict
                .get(ops::hashable(&key)?)
                .cloned()
                .unwrap_or_else(|| default.unwrap_or_else(|| Value::from(()))))
        }
        "keys" => args
            .none()
            .and_then(|()| seq(SeqKind::Keys, dict.map.keys().cloned().collect())),
        "values" => args
            .none()
            .and_then(|()| seq(SeqKind::Values, dict.map.values().cloned().collect())),
        "items" => args.none().and_then(|()| seq(SeqKind::Items, pairs(dict)?)),
        "copy" => args.none().map(|()| value.clone()),
        _ => Err(unsafe_method("dict", name)),
    }
}

/// The entries of a dict as tuples.
pub(super) fn pairs(dict: &super::value::PyDict) -> Result<Vec<Value>, Error> {
    dict.map
        .iter()
        .map(|(key, value)| seq(SeqKind::Tuple, vec![key.clone(), value.clone()]))
        .collect()
}

fn seq_method(list: &PySeq, name: &str, args: Args) -> Result<Value, Error> {
    match name {
        "count" => {
            let [wanted] = args.bind(["value"])?;
            let wanted = required(wanted, "value")?;
            let mut count = 0_i64;
            for item in list.items() {
                count += i64::from(ops::equal(item, &wanted)?);
            }
            Ok(Value::from(count))
        }
        "index" => {
            let [wanted] = args.bind(["value"])?;
            let wanted = required(wanted, "value")?;
            for (i, item) in list.items().iter().enumerate() {
                if ops::equal(item, &wanted)? {
                    return Ok(Value::from(i));
                }
            }
            Err(fail(
                "a value that the chat template looks for is not in the list",
            ))
        }
        "copy" => args
            .none()
            .and_then(|()| seq(SeqKind::List, list.items().to_vec())),
        _ => Err(unsafe_method("list", name)),
    }
}

/// The environment of `apply_chat_template` is the immutable sandbox.
fn unsafe_method(owner: &str, name: &str) -> Error {
    fail(format!(
        "access to attribute '{name}' of '{owner}' object is unsafe"
    ))
}

//! Binds the arguments of a call to parameter names, as Python does.

use minijinja::value::{Kwargs, Value, from_args};
use minijinja::{Error, ErrorKind};

use super::value::{Py, fail, py, receive, type_name};

/// The arguments of one call.
pub(super) struct Args {
    callee: String,
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(String, Value)>,
}

impl Args {
    /// Splits the arguments that minijinja hands over; `callee` is named in messages.
    pub(super) fn new(callee: &str, values: &[Value]) -> Result<Self, Error> {
        let (positional, kwargs): (&[Value], Kwargs) = from_args(values)?;
        let named = kwargs
            .args()
            .map(|name| Ok((name.to_owned(), receive(kwargs.peek(name)?))))
            .collect::<Result<Vec<(String, Value)>, Error>>()?;
        Ok(Self {
            callee: callee.to_owned(),
            positional: positional.iter().cloned().map(receive).collect(),
            named,
        })
    }

    /// The values of `parameters`, in their order; `None` for one that was not given.
    pub(super) fn bind<const N: usize>(
        self,
        parameters: [&str; N],
    ) -> Result<[Option<Value>; N], Error> {
        if self.positional.len() > N {
            return Err(fail(format!(
                "{}() takes at most {N} arguments, {} were given",
                self.callee,
                self.positional.len()
            )));
        }
        let mut bound = [const { None }; N];
        for (slot, value) in bound.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.named {
            let Some(i) = parameters.iter().position(|p| *p == name) else {
                return Err(fail(format!("{}() has no argument '{name}'", self.callee)));
            };
            if bound[i].replace(value).is_some() {
                return Err(fail(format!(
                    "{}() got two values for the argument '{name}'",
                    self.callee
                )));
            }
        }
        Ok(bound)
    }

    /// Refuses any argument.
    pub(super) fn none(self) -> Result<(), Error> {
        self.bind([]).map(|[]| ())
    }
}

/// A required argument.
pub(super) fn required(value: Option<Value>, name: &str) -> Result<Value, Error> {
    value.ok_or_else(|| {
        Error::new(
            ErrorKind::MissingArgument,
            format!("the argument '{name}' is missing"),
        )
    })
}

/// An argument that must be an integer (a bool is one).
pub(super) fn integer(value: &Value, name: &str) -> Result<i64, Error> {
    match py(value) {
        Py::Int(n) => {
            i64::try_from(n).map_err(|_| fail(format!("the argument '{name}' is too large")))
        }
        Py::Bool(b) => Ok(i64::from(b)),
        _ => Err(fail(format!(
            "the argument '{name}' must be an int, not {}",
            type_name(value)
        ))),
    }
}

/// An integer, or `None` where the argument is missing or Python's `None`.
pub(super) fn optional_integer(value: Option<Value>, name: &str) -> Result<Option<i64>, Error> {
    value
        .filter(|v| !v.is_none())
        .map(|v| integer(&v, name))
        .transpose()
}

/// An argument that must be a string.
pub(super) fn string<'a>(value: &'a Value, name: &str) -> Result<&'a str, Error> {
    value.as_str().ok_or_else(|| {
        fail(format!(
            "the argument '{name}' must be a str, not {}",
            type_name(value)
        ))
    })
}

/// Truth of an optional argument.
pub(super) fn flag(value: Option<Value>, default: bool) -> bool {
    value.map_or(default, |v| v.is_true())
}

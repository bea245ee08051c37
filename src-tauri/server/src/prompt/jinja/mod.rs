//! Jinja2 with Python's semantics, on minijinja.
//!
//! Chat templates are written for, and tested with, the Jinja2 environment of transformers' `apply_chat_template`. minijinja runs
//! the same language with Rust's view of values: it prints `none` and `true`, joins them so with `~`, has one kind of sequence,
//! lets `for` run over nothing, and so on. Such differences rarely raise an error; they change a few tokens of the prompt.
//! So a template is first rewritten ([`stmt::lower`]): its text, blocks, loops, macros and scopes stay with minijinja, while every
//! operator, attribute, filter and test goes to the functions of this module, which give Python's results.
//!
//! `python_cases.py` renders small templates with the original; the tests compare. Known differences, none of which a template in
//! use was found to depend on:
//! - refused when the template is compiled: `include`, `import`, `extends`, `block`, `autoescape`; `varargs` and `kwargs` in
//!   macros; `break` and `continue` across a `with` block; names that are not ASCII; `\N{...}` in strings;
//! - refused when they are reached: the filters for HTML and debugging, `random`, namespaces and macros kept in a namespace;
//! - an iterator (the result of `map`, `select` and the like) does its work, and fails, when it is made, and not when it is used;
//! - a variable of the request that the template sets further on is already hidden, in Jinja2, from the inner blocks before that.

mod access;
mod args;
mod clock;
mod code;
mod cursor;
mod expr;
mod filters;
mod format;
mod json;
mod lexer;
mod limits;
mod ops;
mod predicates;
mod slices;
mod splitting;
mod stmt;
mod strings;
mod text;
mod value;

#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

use chrono::NaiveDateTime;
use indexmap::IndexMap;
use minijinja::value::{Kwargs, Rest, Value};
use minijinja::{Environment, Error, ErrorKind, State, functions};
use serde_json::{Map, Value as Json};

use args::{Args, integer, required};
pub use limits::Limits;
use value::{Py, SeqKind, fail, py};

/// The name under which the one template of an environment is stored.
const TEMPLATE: &str = "chat template";

/// Largest template accepted, in bytes. The largest in use are below 32 KiB.
const MAX_SOURCE: usize = 1 << 20;

/// Deepest recursion: a macro's call counts 4, a loop 1. The virtual machine uses the native stack for macros.
const MAX_RECURSION: usize = 400;

/// Why a template could not be compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CompileError {
    pub(super) line: usize,
    pub(super) message: String,
}

/// Why a template gave no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RenderError {
    /// The template called `raise_exception`; its own words.
    Raised(String),
    /// Anything else that went wrong, and the line if known.
    Failed {
        message: String,
        line: Option<usize>,
    },
}

/// A compiled template. Cheap to render many times, from many threads at once.
#[derive(Debug)]
pub(super) struct Program {
    env: Environment<'static>,
}

/// Carries the words of `raise_exception` through the virtual machine.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

impl Program {
    /// Compiles a template.
    pub(super) fn compile(source: &str) -> Result<Self, CompileError> {
        if source.len() > MAX_SOURCE {
            return Err(CompileError {
                line: 1,
                message: format!("it is larger than {MAX_SOURCE} bytes"),
            });
        }
        let lowered = stmt::lower(source)?;
        let mut env = environment();
        env.add_template_owned(TEMPLATE, lowered)
            .map_err(|error| CompileError {
                line: error.line().unwrap_or(1),
                message: error
                    .detail()
                    .map_or_else(|| error.to_string(), str::to_owned),
            })?;
        Ok(Self { env })
    }

    /// Renders with the given variables. `now` pins the clock.
    pub(super) fn render(
        &self,
        variables: &Map<String, Json>,
        limits: &Limits,
        now: Option<NaiveDateTime>,
    ) -> Result<String, RenderError> {
        let _scope = limits::enter(limits, now);
        let mut context = IndexMap::with_capacity(variables.len());
        for (name, value) in variables {
            context.insert(name.clone(), value::from_json(value).map_err(failed)?);
        }
        // The steps are counted in a copy of the environment, since they are a setting of it; the copy shares everything else.
        let mut env = self.env.clone();
        env.set_fuel(Some(limits.steps));
        // A template is untrusted input to a large virtual machine: should it ever panic, one request fails, not the server.
        let rendered = catch_unwind(AssertUnwindSafe(|| {
            env.get_template(TEMPLATE)?
                .render(Value::from_iter(context))
        }));
        match rendered {
            Ok(result) => result.map_err(failed),
            Err(_) => Err(RenderError::Failed {
                message: "the template engine failed internally".into(),
                line: None,
            }),
        }
    }
}

fn failed(error: Error) -> RenderError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref::<Raised>() {
            return RenderError::Raised(message.clone());
        }
        source = cause.source();
    }
    let message = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, None) => {
            "the chat template takes more steps than any prompt needs, so it was stopped".into()
        }
        (_, Some(detail)) => detail.to_owned(),
        (kind, None) => kind.to_string(),
    };
    RenderError::Failed {
        message,
        line: error.line(),
    }
}

/// The environment in which lowered templates run. It starts empty: nothing of minijinja's own filters is reachable.
fn environment() -> Environment<'static> {
    let mut env = Environment::empty();
    env.set_recursion_limit(MAX_RECURSION);
    env.set_formatter(|out, _, value| {
        let text = text::str(value)?;
        limits::count_output(text.len())?;
        out.write_str(&text).map_err(Error::from)
    });
    add_operators(&mut env);
    add_functions(&mut env);
    for (name, filter) in filters::all() {
        env.add_filter(
            name,
            move |state: &State, value: Value, rest: Rest<Value>| {
                filter(state, &value, Args::new(name, &rest)?)
            },
        );
    }
    for (name, _) in predicates::all() {
        env.add_filter(
            format!("is.{name}"),
            move |value: Value, rest: Rest<Value>| {
                predicates::run(name, &value, Args::new(name, &rest)?)
            },
        );
    }
    env
}

fn add_operators(env: &mut Environment<'static>) {
    type Binary = fn(&Value, &Value) -> Result<Value, Error>;
    let binary: [(&str, Binary); 7] = [
        ("py.add", ops::add),
        ("py.sub", ops::sub),
        ("py.mul", ops::mul),
        ("py.div", ops::div),
        ("py.floordiv", ops::floordiv),
        ("py.mod", ops::modulo),
        ("py.pow", ops::pow),
    ];
    for (name, op) in binary {
        env.add_filter(name, move |first: Value, rest: Rest<Value>| {
            rest.iter().try_fold(first, |left, right| op(&left, right))
        });
    }
    env.add_filter("py.neg", |value: Value| ops::neg(&value));
    env.add_filter("py.pos", |value: Value| ops::pos(&value));
    env.add_filter("py.cat", |first: Value, rest: Rest<Value>| {
        ops::concat(&first, &rest)
    });
    env.add_filter("py.compare", |a: Value, op: &str, b: Value| {
        ops::compare(op, &a, &b)
    });
    env.add_filter("py.chain", |operands: Value, operators: Rest<Value>| {
        chain(&operands, &operators)
    });
    env.add_filter("py.list", |items: Value| {
        value::list(items.try_iter()?.collect())
    });
    env.add_filter("py.tuple", |items: Value| {
        value::seq(SeqKind::Tuple, items.try_iter()?.collect())
    });
    env.add_filter("py.dict", |flat: Value| {
        ops::dict_of(&flat.try_iter()?.collect::<Vec<_>>())
    });
    env.add_filter("py.iter", |items: Value| {
        value::list(value::iterate(&items)?)
    });
    env.add_filter("py.attr", |value: Value, name: &str, path: &str| {
        access::attribute(&value, name, path)
    });
    env.add_filter("py.item", |value: Value, key: Value, path: &str| {
        access::item(&value, &key, path)
    });
    env.add_filter(
        "py.slice",
        |value: Value, start: Value, stop: Value, step: Value, path: &str| {
            if value.is_undefined() {
                access::item(&value, &start, path)
            } else {
                slices::slice(&value, [&start, &stop, &step])
            }
        },
    );
    env.add_filter(
        "py.call",
        |state: &State, value: Value, name: &str, path: &str, args: Rest<Value>| {
            access::call(state, &value, name, path, &args)
        },
    );
    env.add_filter("py.store", |value: Value| {
        if value::is_data(&value) {
            Ok(value)
        } else {
            Err(fail(
                "a namespace can hold data only, not macros or other namespaces",
            ))
        }
    });
    // An argument that is given but undefined keeps a macro from using the parameter's default, which minijinja cannot tell
    // from one that is not given: it is disguised while it is passed.
    env.add_filter("py.pass", |value: Value| {
        if value.is_undefined() {
            value::given_undefined()
        } else {
            value
        }
    });
    env.add_filter("py.receive", value::receive);
    env.add_filter(
        "py.unknown",
        |_: Value, message: &str| -> Result<Value, Error> { Err(fail(message)) },
    );
}

/// `a < b < c`
fn chain(operands: &Value, operators: &[Value]) -> Result<bool, Error> {
    let operands: Vec<Value> = operands.try_iter()?.collect();
    for (pair, op) in operands.windows(2).zip(operators) {
        if !ops::compare(op.as_str().unwrap_or_default(), &pair[0], &pair[1])? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn add_functions(env: &mut Environment<'static>) {
    env.add_function(
        "raise_exception",
        |rest: Rest<Value>| -> Result<Value, Error> {
            let [message] = Args::new("raise_exception", &rest)?.bind(["message"])?;
            let message = text::str(&required(message, "message")?)?.into_owned();
            Err(
                Error::new(ErrorKind::InvalidOperation, "raised by the template")
                    .with_source(Raised(message)),
            )
        },
    );
    env.add_function("strftime_now", |rest: Rest<Value>| {
        let [format] = Args::new("strftime_now", &rest)?.bind(["format"])?;
        let format = required(format, "format")?;
        value::string(clock::strftime(
            &limits::now(),
            args::string(&format, "format")?,
        ))
    });
    env.add_function("range", |rest: Rest<Value>| {
        let [first, second, step] = Args::new("range", &rest)?.bind(["start", "stop", "step"])?;
        let first = i128::from(integer(&required(first, "stop")?, "start")?);
        let step = step.map_or(Ok(1), |step| integer(&step, "step"))?;
        if step == 0 {
            return Err(fail("range() arg 3 must not be zero"));
        }
        match second {
            Some(stop) => {
                value::from_range(first, i128::from(integer(&stop, "stop")?), i128::from(step))
            }
            None => value::from_range(0, first, i128::from(step)),
        }
    });
    env.add_function("dict", |rest: Rest<Value>| {
        let args = Args::new("dict", &rest)?;
        let mut map = IndexMap::new();
        if let Some(from) = args.positional.first() {
            let pairs = match py(from) {
                Py::Dict(dict) => access::pairs(dict)?,
                _ => value::iterate(from)?,
            };
            for pair in pairs {
                match value::iterate(&pair)?.as_slice() {
                    [key, value] => {
                        value::insert(&mut map, ops::hashable(key)?.clone(), value.clone())
                    }
                    _ => return Err(fail("dict() needs pairs of a key and a value")),
                };
            }
        }
        map.extend(
            args.named
                .into_iter()
                .map(|(name, value)| (Value::from(name), value)),
        );
        value::dict(map)
    });
    env.add_function("namespace", |rest: Rest<Value>| {
        let args = Args::new("namespace", &rest)?;
        let mut fields = Vec::new();
        if let Some(from) = args.positional.first() {
            let Py::Dict(dict) = py(from) else {
                return Err(fail("namespace() takes a dict or named arguments"));
            };
            fields.extend(
                dict.map
                    .iter()
                    .filter_map(|(key, value)| Some((key.as_str()?.to_owned(), value.clone()))),
            );
        }
        fields.extend(args.named);
        if fields.iter().any(|(_, value)| !value::is_data(value)) {
            return Err(fail(
                "a namespace can hold data only, not macros or other namespaces",
            ));
        }
        functions::namespace(Some(Value::from(fields.into_iter().collect::<Kwargs>())))
    });
}

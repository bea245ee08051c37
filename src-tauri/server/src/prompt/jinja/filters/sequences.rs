//! Filters on lists, dicts and iterators.

use indexmap::IndexSet;
use minijinja::value::Value;
use minijinja::{Error, State};

use super::super::args::{Args, flag, optional_integer, required, string as string_arg};
use super::super::value::{Py, SeqKind, fail, iterate, list as new_list, py, seq, type_name};
use super::super::{access, limits, ops, text};

type Result<T = Value> = std::result::Result<T, Error>;

fn generator(items: Vec<Value>) -> Result {
    seq(SeqKind::Generator, items)
}

/// A stable sort whose comparison may fail; never panics, whatever the comparison says.
pub(crate) fn sorted<T: Clone>(
    items: Vec<T>,
    mut less: impl FnMut(&T, &T) -> Result<bool>,
) -> Result<Vec<T>> {
    let mut sorted = items;
    let mut width = 1;
    while width < sorted.len() {
        let mut merged = Vec::with_capacity(sorted.len());
        for pair in sorted.chunks(width * 2) {
            let (mut left, mut right) = pair.split_at(width.min(pair.len()));
            while let ([a, after_a @ ..], [b, after_b @ ..]) = (left, right) {
                if less(b, a)? {
                    merged.push(b.clone());
                    right = after_b;
                } else {
                    merged.push(a.clone());
                    left = after_a;
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        sorted = merged;
        width *= 2;
    }
    Ok(sorted)
}

/// `value` under the dotted path of an `attribute` argument; whole numbers in it are indices.
fn by_path(value: &Value, path: Option<&Value>, default: Option<&Value>) -> Result {
    let mut found = value.clone();
    let parts: Vec<Value> = match path.map(py) {
        None | Some(Py::None) => Vec::new(),
        Some(Py::Str(path)) => path
            .split('.')
            .map(|part| match part.parse::<i64>() {
                Ok(n) if part.bytes().all(|b| b.is_ascii_digit()) => Value::from(n),
                _ => Value::from(part),
            })
            .collect(),
        Some(_) => path.into_iter().cloned().collect(),
    };
    for part in parts {
        found = access::item(&found, &part, "")?;
        if let (true, Some(default)) = (found.is_undefined(), default) {
            found = default.clone();
        }
    }
    Ok(found)
}

/// The key by which values are sorted, grouped and told apart.
fn sort_key(
    value: &Value,
    path: Option<&Value>,
    case_sensitive: bool,
    default: Option<&Value>,
) -> Result {
    let key = by_path(value, path, default)?;
    match key.as_str() {
        Some(s) if !case_sensitive => {
            limits::count_string(s.len())?;
            Ok(Value::from(s.to_lowercase()))
        }
        _ => Ok(key),
    }
}

fn keyed(
    value: &Value,
    path: Option<&Value>,
    case_sensitive: bool,
    default: Option<&Value>,
) -> Result<Vec<(Value, Value)>> {
    iterate(value)?
        .into_iter()
        .map(|item| Ok((sort_key(&item, path, case_sensitive, default)?, item)))
        .collect()
}

fn sort_keyed(items: Vec<(Value, Value)>, reverse: bool) -> Result<Vec<(Value, Value)>> {
    // Python's reversed sort keeps equal items in their order.
    sorted(items, |a, b| {
        if reverse {
            ops::less(&b.0, &a.0)
        } else {
            ops::less(&a.0, &b.0)
        }
    })
}

pub(super) fn length(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    Ok(Value::from(match py(value) {
        Py::Undefined => 0,
        Py::Str(s) => {
            limits::count_work(s.len() / 8)?;
            s.chars().count()
        }
        Py::Dict(dict) => dict.map.len(),
        Py::Seq(seq) if seq.kind != SeqKind::Generator => seq.items().len(),
        Py::Other if value.len().is_some() && value.try_iter().is_ok() => value.len().unwrap_or(0),
        _ => {
            return Err(fail(format!(
                "object of type '{}' has no len()",
                type_name(value)
            )));
        }
    }))
}

pub(super) fn list(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    new_list(iterate(value)?)
}

pub(super) fn first(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    match py(value) {
        Py::Str(s) => Ok(s.chars().next().map(Value::from).unwrap_or_default()),
        Py::Seq(seq) => Ok(seq.items().first().cloned().unwrap_or_default()),
        _ => Ok(iterate(value)?.first().cloned().unwrap_or_default()),
    }
}

pub(super) fn last(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    match py(value) {
        Py::Str(s) => Ok(s.chars().next_back().map(Value::from).unwrap_or_default()),
        Py::Seq(seq) if seq.kind == SeqKind::Generator => {
            Err(fail("'generator' object is not reversible"))
        }
        Py::Seq(seq) => Ok(seq.items().last().cloned().unwrap_or_default()),
        _ => Ok(iterate(value)?.last().cloned().unwrap_or_default()),
    }
}

pub(super) fn reverse(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    if let Some(s) = value.as_str() {
        limits::count_string(s.len())?;
        return Ok(Value::from(s.chars().rev().collect::<String>()));
    }
    let mut items = iterate(value)?;
    items.reverse();
    generator(items)
}

pub(super) fn join(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [sep, attribute] = args.bind(["d", "attribute"])?;
    let sep = sep.unwrap_or_else(|| Value::from(""));
    let sep = text::str(&sep)?;
    let mut out = limits::Text::default();
    for (i, item) in iterate(value)?.iter().enumerate() {
        if i > 0 {
            out.push(&sep)?;
        }
        out.push(&text::str(&by_path(item, attribute.as_ref(), None)?)?)?;
    }
    Ok(Value::from(out.into_string()))
}

pub(super) fn items(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    args.none()?;
    match py(value) {
        Py::Undefined => generator(Vec::new()),
        Py::Dict(dict) => generator(access::pairs(dict)?),
        _ => Err(fail("Can only get item pairs from a mapping.")),
    }
}

pub(super) fn dictsort(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [case_sensitive, by, reverse] = args.bind(["case_sensitive", "by", "reverse"])?;
    let Py::Dict(dict) = py(value) else {
        return Err(fail(format!(
            "'{} object' has no attribute 'items'",
            type_name(value)
        )));
    };
    let index = match by.as_ref().map(|by| by.as_str()) {
        None | Some(Some("key")) => 0,
        Some(Some("value")) => 1,
        _ => return Err(fail("You can only sort by either \"key\" or \"value\"")),
    };
    let case_sensitive = flag(case_sensitive, false);
    let pairs = access::pairs(dict)?.into_iter();
    let keyed = pairs.map(|pair| {
        Ok((
            sort_key(&pair, Some(&Value::from(index)), case_sensitive, None)?,
            pair,
        ))
    });
    let sorted = sort_keyed(keyed.collect::<Result<_>>()?, flag(reverse, false))?;
    new_list(sorted.into_iter().map(|(_, pair)| pair).collect())
}

pub(super) fn sort(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [reverse, case_sensitive, attribute] =
        args.bind(["reverse", "case_sensitive", "attribute"])?;
    let case_sensitive = flag(case_sensitive, false);
    // Several attributes are compared one after the other.
    let paths: Vec<Value> = match attribute.as_ref().and_then(Value::as_str) {
        Some(paths) => paths.split(',').map(Value::from).collect(),
        None => vec![attribute.unwrap_or_default()],
    };
    let paths: Vec<Option<&Value>> = paths
        .iter()
        .map(|path| Some(path).filter(|path| !path.is_undefined()))
        .collect();
    let keyed = iterate(value)?.into_iter().map(|item| {
        let keys = paths
            .iter()
            .map(|path| sort_key(&item, *path, case_sensitive, None))
            .collect::<Result<Vec<_>>>()?;
        Ok((new_list(keys)?, item))
    });
    let sorted = sort_keyed(keyed.collect::<Result<_>>()?, flag(reverse, false))?;
    new_list(sorted.into_iter().map(|(_, item)| item).collect())
}

pub(super) fn unique(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [case_sensitive, attribute] = args.bind(["case_sensitive", "attribute"])?;
    let mut seen = IndexSet::new();
    let mut kept = Vec::new();
    for (key, item) in keyed(value, attribute.as_ref(), flag(case_sensitive, false), None)? {
        if seen.insert(ops::hashable(&key)?.clone()) {
            kept.push(item);
        }
    }
    generator(kept)
}

pub(super) fn min(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    extreme(value, args, ops::less)
}

pub(super) fn max(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    extreme(value, args, |a, b| ops::less(b, a))
}

fn extreme(value: &Value, args: Args, better: impl Fn(&Value, &Value) -> Result<bool>) -> Result {
    let [case_sensitive, attribute] = args.bind(["case_sensitive", "attribute"])?;
    let mut best: Option<(Value, Value)> = None;
    for (key, item) in keyed(value, attribute.as_ref(), flag(case_sensitive, false), None)? {
        if match &best {
            None => true,
            Some((best, _)) => better(&key, best)?,
        } {
            best = Some((key, item));
        }
    }
    Ok(best.map(|(_, item)| item).unwrap_or_default())
}

pub(super) fn sum(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [attribute, start] = args.bind(["attribute", "start"])?;
    let mut total = start.unwrap_or_else(|| Value::from(0));
    for item in iterate(value)? {
        total = ops::add(&total, &by_path(&item, attribute.as_ref(), None)?)?;
    }
    Ok(total)
}

pub(super) fn groupby(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [attribute, default, case_sensitive] =
        args.bind(["attribute", "default", "case_sensitive"])?;
    let attribute = required(attribute, "attribute")?;
    let keyed = keyed(
        value,
        Some(&attribute),
        flag(case_sensitive, false),
        default.as_ref(),
    )?;
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in sort_keyed(keyed, false)? {
        match groups.last_mut() {
            Some((last, members)) if ops::equal(last, &key)? => members.push(item),
            _ => groups.push((key, vec![item])),
        }
    }
    let groups = groups.into_iter().map(|(_, members)| {
        // The key as the first member has it, not in lower case.
        let grouper = members.first().map_or(Ok(Value::UNDEFINED), |item| {
            by_path(item, Some(&attribute), default.as_ref())
        })?;
        seq(SeqKind::Group, vec![grouper, new_list(members)?])
    });
    new_list(groups.collect::<Result<_>>()?)
}

pub(super) fn batch(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [linecount, fill_with] = args.bind(["linecount", "fill_with"])?;
    let size = optional_integer(Some(required(linecount, "linecount")?), "linecount")?;
    let size = size
        .and_then(|n| usize::try_from(n).ok())
        .filter(|n| *n > 0);
    let size = size.ok_or_else(|| fail("batch needs a size above 0"))?;
    let fill_with = fill_with.filter(|fill| !fill.is_none());
    let rows = iterate(value)?;
    let rows = rows.chunks(size).map(|row| {
        let mut row = row.to_vec();
        if let Some(fill) = &fill_with {
            limits::count_items(size)?;
            row.resize(size, fill.clone());
        }
        new_list(row)
    });
    generator(rows.collect::<Result<_>>()?)
}

pub(super) fn slice(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [slices, fill_with] = args.bind(["slices", "fill_with"])?;
    let slices = optional_integer(Some(required(slices, "slices")?), "slices")?;
    let slices = slices
        .and_then(|n| usize::try_from(n).ok())
        .filter(|n| *n > 0);
    let slices = slices.ok_or_else(|| fail("slice needs a number of slices above 0"))?;
    limits::count_items(slices)?;
    let fill_with = fill_with.filter(|fill| !fill.is_none());
    let items = iterate(value)?;
    let (each, longer) = (items.len() / slices, items.len() % slices);
    let mut rest = items.as_slice();
    let mut columns = Vec::with_capacity(slices);
    for i in 0..slices {
        let (column, after) = rest.split_at(each + usize::from(i < longer));
        rest = after;
        let mut column = column.to_vec();
        if let (Some(fill), true) = (&fill_with, i >= longer) {
            column.push(fill.clone());
        }
        columns.push(new_list(column)?);
    }
    generator(columns)
}

pub(super) fn attr(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    let [name] = args.bind(["name"])?;
    let name = required(name, "name")?;
    // Unlike `value.name`, an attribute only, never an item.
    match py(value) {
        Py::Undefined => Err(fail(
            "a value that the chat template reads from is undefined",
        )),
        Py::Dict(_) => Ok(Value::UNDEFINED),
        _ => access::attribute(value, string_arg(&name, "name")?, ""),
    }
}

pub(super) fn map(state: &State<'_, '_>, value: &Value, args: Args) -> Result {
    // As in Jinja2, nothing to map is not looked at, be it `none` or 0.
    if !value.is_true() {
        return generator(Vec::new());
    }
    let items = iterate(value)?;
    if let Some((_, attribute)) = args.named.iter().find(|(name, _)| name == "attribute") {
        let default = args
            .named
            .iter()
            .find(|(name, _)| name == "default")
            .map(|(_, value)| value);
        return generator(
            items
                .iter()
                .map(|item| by_path(item, Some(attribute), default))
                .collect::<Result<_>>()?,
        );
    }
    let Some((name, rest)) = args.positional.split_first() else {
        return Err(fail("map requires a filter argument"));
    };
    let name = string_arg(name, "filter")?;
    if !super::is_known(name) {
        return Err(fail(format!("No filter named '{name}'.")));
    }
    let mut values = vec![Value::UNDEFINED];
    values.extend_from_slice(rest);
    if !args.named.is_empty() {
        values.push(Value::from(
            args.named
                .iter()
                .cloned()
                .collect::<minijinja::value::Kwargs>(),
        ));
    }
    let mapped = items.into_iter().map(|item| {
        values[0] = item;
        state.apply_filter(name, &values)
    });
    generator(mapped.collect::<Result<_>>()?)
}

pub(super) fn select(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    choose(value, args, false, true)
}

pub(super) fn reject(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    choose(value, args, false, false)
}

pub(super) fn selectattr(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    choose(value, args, true, true)
}

pub(super) fn rejectattr(_: &State<'_, '_>, value: &Value, args: Args) -> Result {
    choose(value, args, true, false)
}

fn choose(value: &Value, args: Args, by_attribute: bool, wanted: bool) -> Result {
    if !value.is_true() {
        return generator(Vec::new());
    }
    let mut rest = args.positional.into_iter();
    let path = if by_attribute {
        Some(
            rest.next()
                .ok_or_else(|| fail("Missing parameter for attribute name"))?,
        )
    } else {
        None
    };
    let test = rest.next();
    let arguments: Vec<Value> = rest.collect();
    let mut kept = Vec::new();
    for item in iterate(value)? {
        let tested = by_path(&item, path.as_ref(), None)?;
        let holds = match &test {
            None => tested.is_true(),
            Some(name) => {
                let name = string_arg(name, "test")?;
                if !super::super::predicates::is_known(name) {
                    return Err(fail(format!("No test named '{name}'.")));
                }
                super::super::predicates::run(name, &tested, Args::new(name, &arguments)?)?
            }
        };
        if holds == wanted {
            kept.push(item);
        }
    }
    generator(kept)
}

//! Jinja2's filters, with Python's results.

mod sequences;
mod texts;

use minijinja::value::Value;
use minijinja::{Error, State};

use super::args::Args;
use super::json;

pub(super) use sequences::sorted;

/// A filter: the state, the value before the `|`, the arguments.
type Filter = fn(&State<'_, '_>, &Value, Args) -> Result<Value, Error>;

/// Every filter but those for HTML and debugging (`urlize`, `xmlattr`, `striptags`, `filesizeformat`, `wordwrap`, `pprint`) and
/// `random`, which would make a prompt irreproducible.
const FILTERS: [(&str, Filter); 47] = [
    ("abs", texts::abs),
    ("attr", sequences::attr),
    ("batch", sequences::batch),
    ("capitalize", texts::capitalize),
    ("center", texts::center),
    ("count", sequences::length),
    ("d", texts::default),
    ("default", texts::default),
    ("dictsort", sequences::dictsort),
    ("e", texts::escape),
    ("escape", texts::escape),
    ("first", sequences::first),
    ("float", texts::float),
    ("forceescape", texts::escape),
    ("format", texts::format),
    ("groupby", sequences::groupby),
    ("indent", texts::indent),
    ("int", texts::int),
    ("items", sequences::items),
    ("join", sequences::join),
    ("last", sequences::last),
    ("length", sequences::length),
    ("list", sequences::list),
    ("lower", texts::lower),
    ("map", sequences::map),
    ("max", sequences::max),
    ("min", sequences::min),
    ("reject", sequences::reject),
    ("rejectattr", sequences::rejectattr),
    ("replace", texts::replace),
    ("reverse", sequences::reverse),
    ("round", texts::round),
    ("safe", texts::string),
    ("select", sequences::select),
    ("selectattr", sequences::selectattr),
    ("slice", sequences::slice),
    ("sort", sequences::sort),
    ("string", texts::string),
    ("sum", sequences::sum),
    ("title", texts::title),
    ("tojson", |_, value, args| json::tojson(value, args)),
    ("trim", texts::trim),
    ("truncate", texts::truncate),
    ("unique", sequences::unique),
    ("upper", texts::upper),
    ("urlencode", texts::urlencode),
    ("wordcount", texts::wordcount),
];

/// All filters.
pub(super) fn all() -> impl Iterator<Item = (&'static str, Filter)> {
    FILTERS.into_iter()
}

/// Whether a filter of this name exists.
pub(super) fn is_known(name: &str) -> bool {
    FILTERS.iter().any(|(known, _)| *known == name)
}

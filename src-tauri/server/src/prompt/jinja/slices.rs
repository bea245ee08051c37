//! Python's slices.

use minijinja::Error;
use minijinja::value::Value;

use super::limits;
use super::value::{Py, SeqKind, fail, from_range, py, seq, string, type_name};

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

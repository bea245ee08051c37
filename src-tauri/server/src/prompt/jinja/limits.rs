//! What one rendering may cost, and the bookkeeping that enforces it.
//!
//! A chat template comes with a downloaded model, so it is untrusted. The virtual machine counts its own steps (fuel), but a
//! step may be a filter that doubles a string: bytes written and bytes copied are therefore counted here.
//!
//! The counters live in a thread-local scope, because filters get no per-rendering argument, and because a rendering runs on
//! one thread from start to end (macros included).

use std::cell::RefCell;

use chrono::NaiveDateTime;
use minijinja::{Error, ErrorKind};

/// Upper bounds for one rendering. The defaults are far above what a prompt of a million tokens needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Steps of the template's virtual machine.
    pub steps: u64,
    /// Bytes written (the prompt, macros and captured blocks together); also the longest string a template may build.
    pub output_bytes: usize,
    /// Bytes copied or searched by operators, filters and methods.
    pub work_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            steps: 50_000_000,
            output_bytes: 64 << 20,
            work_bytes: 2 << 30,
        }
    }
}

struct Scope {
    output_left: usize,
    longest: usize,
    work_left: u64,
    now: Option<NaiveDateTime>,
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Ends the scope on drop (also while unwinding) and brings the outer one back.
pub(super) struct Guard(Option<Scope>);

impl Drop for Guard {
    fn drop(&mut self) {
        let outer = self.0.take();
        SCOPE.with(|scope| *scope.borrow_mut() = outer);
    }
}

/// Opens the scope of one rendering. `now` pins the clock; `None` is the wall clock, read once at the first use.
pub(super) fn enter(limits: &Limits, now: Option<NaiveDateTime>) -> Guard {
    let scope = Scope {
        output_left: limits.output_bytes,
        longest: limits.output_bytes,
        work_left: limits.work_bytes,
        now,
    };
    Guard(SCOPE.with(|current| current.borrow_mut().replace(scope)))
}

/// The local time of this rendering; every call within one rendering gives the same.
pub(super) fn now() -> NaiveDateTime {
    let wall_clock = || chrono::Local::now().naive_local();
    SCOPE.with(|scope| match scope.borrow_mut().as_mut() {
        Some(scope) => *scope.now.get_or_insert_with(wall_clock),
        None => wall_clock(),
    })
}

/// Counts `bytes` of output.
pub(super) fn count_output(bytes: usize) -> Result<(), Error> {
    SCOPE.with(|scope| match scope.borrow_mut().as_mut() {
        Some(scope) => match scope.output_left.checked_sub(bytes) {
            Some(left) => {
                scope.output_left = left;
                Ok(())
            }
            None => Err(too_long()),
        },
        None => Ok(()),
    })
}

/// Counts `bytes` copied or searched.
pub(super) fn count_work(bytes: usize) -> Result<(), Error> {
    SCOPE.with(|scope| match scope.borrow_mut().as_mut() {
        Some(scope) => match scope.work_left.checked_sub(bytes as u64) {
            Some(left) => {
                scope.work_left = left;
                Ok(())
            }
            None => Err(Error::new(
                ErrorKind::OutOfFuel,
                "the chat template copies more text than any prompt needs, so it was stopped",
            )),
        },
        None => Ok(()),
    })
}

/// Counts the making of one string of `bytes`, before it is made.
pub(super) fn count_string(bytes: usize) -> Result<(), Error> {
    if bytes > longest_string() {
        return Err(too_long());
    }
    count_work(bytes)
}

fn longest_string() -> usize {
    SCOPE.with(|scope| scope.borrow().as_ref().map_or(usize::MAX, |s| s.longest))
}

/// Counts the making of a list of `items`, before it is made.
pub(super) fn count_items(items: usize) -> Result<(), Error> {
    count_work(items.saturating_mul(8))
}

fn too_long() -> Error {
    Error::new(
        ErrorKind::OutOfFuel,
        "the chat template builds a text longer than the limit of this server, so it was stopped",
    )
}

/// A string under construction that cannot outgrow the limit.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    /// Appends `part`. The work is counted as it is done: a list that holds one long string many times is small until printed.
    pub(super) fn push(&mut self, part: &str) -> Result<(), Error> {
        if self.0.len() + part.len() > longest_string() {
            return Err(too_long());
        }
        count_work(part.len())?;
        self.0.push_str(part);
        Ok(())
    }

    pub(super) fn push_char(&mut self, c: char) -> Result<(), Error> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }
}

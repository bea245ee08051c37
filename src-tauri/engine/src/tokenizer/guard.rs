//! Keeps panics of the `tokenizers` crate from ending the engine.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the `tokenizers` crate. It answers some damaged files with a panic (an unreadable character map, a
/// length of zero, a pattern that matches nothing); such a panic becomes an error with its message.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    // Unwind safety: on a panic, what `work` built is dropped, and a pipeline that it only read has no state to break
    // (its cache is replaced entry by entry).
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message(&*panic))
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("unknown failure").to_owned()
}

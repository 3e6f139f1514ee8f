//! Code of others that may panic on hostile input, run so that a panic is an error.
//!
//! The hook that prints panics is replaced once, by one that is silent on a thread inside a guard and otherwise calls the old.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use anyhow::{Result, anyhow};

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
}

static HOOK: Once = Once::new();

/// What `run` returns, or the text of its panic. State that it leaves half changed must not be used again.
pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T> {
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                before(panic);
            }
        }));
    });
    let outer = GUARDED.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    GUARDED.set(outer);
    outcome.map_err(|panic| anyhow!("{}", said(&*panic)))
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or(panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without words")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        assert_eq!(guarded(|| 5).unwrap(), 5);
        assert_eq!(guarded(|| -> u8 { panic!("no {}", "way") }).unwrap_err().to_string(), "no way");
        let index = guarded(|| Vec::<u8>::new()[std::hint::black_box(3)]).unwrap_err().to_string();
        assert!(index.contains("index out of bounds"), "{index}");
    }
}

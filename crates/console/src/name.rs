//! Name of the running program, which begins its lines on standard error.
//!
//! `program::run` sets the name once; every function that writes to standard error reads it.

use std::sync::OnceLock;

static NAME: OnceLock<&'static str> = OnceLock::new();

/// Sets the program's name. A second call has no effect.
pub(crate) fn set(name: &'static str) {
    NAME.get_or_init(|| name);
}

pub(crate) fn name() -> &'static str {
    NAME.get().copied().unwrap_or("millrace")
}

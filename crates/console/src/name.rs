//! The name under which a program speaks, with which its lines on standard error begin.
//!
//! Set once by `program::run`; asked by whatever writes there.

use std::sync::OnceLock;

static NAME: OnceLock<&'static str> = OnceLock::new();

/// Sets the program's name, unless it has one.
pub(crate) fn set(name: &'static str) {
    NAME.get_or_init(|| name);
}

/// The program's name.
pub(crate) fn name() -> &'static str {
    NAME.get().copied().unwrap_or("millrace")
}

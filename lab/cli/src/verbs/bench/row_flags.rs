//! Flags that apply only to rows of `bench`, and that other kinds of runs therefore exclude.
//!
//! This module owns the list of flags that all runs without rows (such as `--vm`) exclude. Each
//! kind of run adds a list of its own. The definitions of clap's arguments use both lists.

const LABORATORY: [&str; 12] = [
    "batch",
    "bounce",
    "descriptor",
    "inside",
    "interface",
    "iovecs",
    "irq",
    "kernel",
    "queue_plug",
    "readv",
    "request_lock",
    "unit",
];

/// Returns the arguments that a kind of run without rows excludes: `own` and [`LABORATORY`].
pub fn rows_only(own: &'static str) -> impl Iterator<Item = &'static str> {
    LABORATORY.into_iter().chain(own.split(' '))
}

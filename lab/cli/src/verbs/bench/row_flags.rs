//! Flags that apply only to rows, and that runs of other kinds exclude.
//!
//! This module owns the list of flags that all runs without rows exclude; each kind of run adds a
//! list of its own. The definitions of clap's arguments use it.

/// Arguments that only rows of --machine and --locks have.
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

/// Returns the arguments that a run of another kind than rows excludes: its own list, and
/// [`LABORATORY`].
pub fn rows_only(own: &'static str) -> impl Iterator<Item = &'static str> {
    LABORATORY.into_iter().chain(own.split(' '))
}

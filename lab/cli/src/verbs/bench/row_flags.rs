//! Flags that apply only to rows, and that runs of other kinds exclude.
//!
//! This module owns the list of flags that all such runs exclude; each kind adds its own list. It
//! is used where clap's arguments are defined.

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

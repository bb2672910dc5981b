//! Flags of rows that runs of other kinds exclude.
//!
//! Owns what all such runs exclude; each kind adds its own list. Called where clap's arguments are
//! defined.

/// Arguments of rows of --machine and --locks alone.
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

/// Arguments that a run of another kind than rows has no use for: its own list, and [`LABORATORY`].
pub fn rows_only(own: &'static str) -> impl Iterator<Item = &'static str> {
    LABORATORY.into_iter().chain(own.split(' '))
}

//! Flags that apply only if `bench` measures one workload for each row of its result table.
//!
//! Other kinds of runs, such as `--vm` and `--client`, exclude these flags. Each of these kinds
//! also has a list of further flags to exclude. The function `rows_only` joins the lists for clap's
//! `conflicts_with_all`.

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

/// Returns the arguments that conflict with a kind of run such as `--vm`: those in `own`, separated
/// by spaces, and those in [`LABORATORY`].
pub fn rows_only(own: &'static str) -> impl Iterator<Item = &'static str> {
    LABORATORY.into_iter().chain(own.split(' '))
}

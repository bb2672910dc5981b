//! Flags that apply only if `bench` measures one workload for each row of its result table.
//!
//! Other kinds of runs, such as `--vm` and `--client`, exclude these flags. Each kind of run adds a
//! list of its own. The definitions of clap's arguments use both lists.

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

/// Returns the arguments that a kind of run such as `--vm` excludes: the words of `own`, and
/// [`LABORATORY`].
pub fn rows_only(own: &'static str) -> impl Iterator<Item = &'static str> {
    LABORATORY.into_iter().chain(own.split(' '))
}

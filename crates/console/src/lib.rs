//! Shared parts of the command-line programs `millrace` and `millrace-lab`.
//!
//! This crate owns the output to users:
//! - results, and errors with their causes (`speech`);
//! - the log (`logging`);
//! - queues that keep a daemon from blocking on its output (`output_queue`);
//! - tables (`grid`), wrapped help texts (`help`) and a progress bar.
//!
//! The crate also owns the grammar of sizes, times and settings (`words`, `cache`), and a loop over
//! the events of a trace. Completions and manual pages are generated from a program's definition.
//! Only crates/cli and lab/cli call this crate.

pub mod cache;
pub mod completions;
mod events;
mod grid;
mod help;
mod lock_table;
pub mod logging;
pub mod man;
mod name;
pub mod output_queue;
mod program;
mod progress_bar;
mod speech;
mod visible;
pub mod words;

pub use events::{EventFlow, EventWalk, ReadDamage, for_each_event, is_gone};
pub use grid::{Column, Form, Side, TextGrid, WIDTH, fitted, shortened, wrapped};
pub use help::wrap_after_help;
pub use lock_table::lock_table;
pub use program::{ERROR, run};
pub use progress_bar::ProgressBar;
pub use speech::{complain, counted, has_lost_output, lost_output, reasons, say, tell_line};
pub use visible::{quoted, shell_word, visible, visible_lines};

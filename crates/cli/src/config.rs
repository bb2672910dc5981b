//! Configuration of `serve`: turns a TOML text into a plan that can be opened.
//!
//! Loading has two steps: sections.rs reads sections and values, check.rs resolves names and finds
//! contradictions. All mistakes are reported at once, each with file, line, key and remedy. No file
//! but the configuration itself is read. `verbs::serve` calls this module.

mod check;
mod controller;
mod document;
mod drive;
pub mod edit;
mod export;
pub mod group;
mod key_lines;
mod line_index;
mod listener;
mod names;
mod plan;
mod problem;
mod sections;
mod server;
#[cfg(test)]
mod tests;
mod unit_notes;
mod volume;
mod warnings;
pub mod words;

use std::path::Path;

pub use key_lines::KeyLines;
pub use plan::{ListenerPlan, ServePlan};
pub use problem::{BUILT_IN, ConfigProblems, Position, RUNNING};
pub use server::DaemonConfig;

/// Loads a configuration. `file` is its name in messages; relative paths start from `base`.
pub fn load(file: &str, text: &str, base: &Path) -> Result<ServePlan, ConfigProblems> {
    let (sections, mut problems) = sections::read(text, base, ConfigProblems::new(file));
    let checked = check::check(file, sections, &mut problems);
    problems.unless_any(checked)
}

//! The configuration of `serve`: a TOML text to a plan that can be opened.
//!
//! Two steps: raw.rs reads sections and values, checked.rs resolves names and finds contradictions.
//! All mistakes are reported at once, each with file, line, key and what to do. No file but the
//! configuration itself is touched here. Called by `verbs::serve`.

pub mod cache;
mod checked;
mod controller;
mod cost;
mod document;
pub mod group;
mod listener;
mod paths;
mod problem;
mod raw;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;
mod vhost;
pub mod words;

use std::path::Path;

pub use checked::{Checked, DriveLines, ListenerPlan};
pub use problem::{BUILT_IN, Place, Problems};

/// Reads a configuration; `file` is its name in messages, `base` where its relative paths lie.
///
/// # Errors
/// All that is wrong with it.
pub fn load(file: &str, text: &str, base: &Path) -> Result<Checked, Problems> {
    let mut problems = Problems::new(file);
    let raw = raw::read(text, base, &mut problems);
    let checked = checked::check(file, raw, &mut problems);
    problems.unless_any(checked)
}

//! `cargo xtask api`: what each crate that can be published offers, as a file in the tree.
//!
//! `docs/api/CRATE.txt` has a line for each public item that is reachable from the crate's root,
//! each public field, variant and method, and each trait that a public type has. A change of what
//! users see is thus a change of a file that somebody reads. Made from the syntax tree alone, so
//! what macros generate is not in it. Called by `main` (`--write` writes the files) and by
//! `tidy::run`, which fails when a file is not what the sources say.

mod listing;
mod tree;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use tree::Tree;

/// Folders of the crates whose public items are listed.
const CRATES: [&str; 8] = [
    "crates/block",
    "crates/cache",
    "crates/drives",
    "crates/machine",
    "crates/millrace",
    "crates/reactor",
    "lab/checker",
    "lab/simulator",
];

/// What to do with a listing that differs from its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Print its path.
    Check,
    /// Write the file.
    Write,
}

/// Checks or writes all listings of the repository at `root`; true if all are right afterwards.
///
/// # Errors
///
/// When a source cannot be read or parsed, or a listing cannot be written.
pub fn run(root: &Path, mode: Mode) -> Result<bool> {
    let stale = stale(root)?;
    for listing in &stale {
        if mode == Mode::Check {
            println!("{}:{}: {}", listing.path, listing.line, ADVICE);
            continue;
        }
        let path = root.join(&listing.path);
        fs::create_dir_all(root.join("docs/api"))?;
        fs::write(&path, &listing.text)
            .with_context(|| format!("cannot write {}", listing.path))?;
        println!("api: wrote {}", listing.path);
    }
    println!("api: {} crates, {} listings differed", CRATES.len(), stale.len());
    Ok(mode == Mode::Write || stale.is_empty())
}

/// What to do about a listing that differs.
pub const ADVICE: &str = "differs from what the crate offers; run `cargo xtask api --write`, and \
                          say in CHANGELOG.md what users must change";

/// A listing that is not what its file says.
#[derive(Debug, PartialEq, Eq)]
pub struct Stale {
    /// The file, from the root of the repository.
    pub path: String,
    /// The first line that differs, from 1.
    pub line: usize,
    /// What the file should contain.
    pub text: String,
}

/// Listings that differ from their files, or whose file is missing.
///
/// # Errors
///
/// When a source cannot be read or parsed.
pub fn stale(root: &Path) -> Result<Vec<Stale>> {
    let mut found = Vec::new();
    for name in CRATES {
        let folder = root.join(name).join("src");
        let tree = Tree::read(&|file| fs::read_to_string(folder.join(file)).ok())
            .with_context(|| format!("cannot read the crate {name}"))?;
        let text = listing::of(&tree);
        let last = name.rsplit('/').next().unwrap_or(name);
        let path = format!("docs/api/{last}.txt");
        let old = fs::read_to_string(root.join(&path)).unwrap_or_default();
        found.extend(first_difference(&old, &text).map(|line| Stale { path, line, text }));
    }
    Ok(found)
}

/// The first line, from 1, in which the texts differ.
fn first_difference(old: &str, new: &str) -> Option<usize> {
    let same = old.lines().zip(new.lines()).take_while(|(old, new)| old == new).count();
    (old != new).then_some(same + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_is_named() {
        assert_eq!(first_difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), Some(2));
        assert_eq!(first_difference("", "a\n"), Some(1));
    }
}

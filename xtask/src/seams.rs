//! `cargo xtask seams`: how many files a new drive type, scheduler, counter or key touches.
//!
//! `xtask/seams/*.patch` are four small changes in the form of `planted::patch`, each with the most
//! files that it may touch in its first line (`# files: 3`). Each is applied to a copy of the tree,
//! which has to pass `cargo check`. Called by `main`; not part of CI, where tidy
//! checks that the patches still fit.

use std::path::Path;

use anyhow::{Context, Result};

use crate::planted::patch;
use crate::tree;

pub const PATCHES: &str = "xtask/seams";
const TARGET: &str = "target/seams";

/// Applies and builds each patch, and prints a row for each; true if none touches too many files.
pub fn run(root: &Path) -> Result<bool> {
    let (target, copy) = (root.join(TARGET), root.join(TARGET).join("tree"));
    let mut all = true;
    println!("| change | files | at most | cargo check |\n|---|---|---|---|");
    for (list, patches) in patch::read(root, PATCHES)? {
        let limit = files_max(&std::fs::read_to_string(root.join(&list))?)
            .with_context(|| format!("{list}: its first line is not `# files: NUMBER`"))?;
        let changed = patch::apply_all(root, &patches)?;
        tree::mirror(root, &copy, &changed)?;
        let status = tree::cargo()
            .args(["check", "--quiet", "--package", "millrace-cli", "--tests"])
            .env("CARGO_TARGET_DIR", &target)
            .current_dir(&copy)
            .status()
            .context("cannot run cargo")?;
        let name = list.rsplit('/').next().unwrap_or(&list).trim_end_matches(".patch");
        let check = if status.success() { "passes" } else { "fails" };
        println!("| {name} | {} | {limit} | {check} |", changed.len());
        all &= status.success() && changed.len() <= limit;
    }
    Ok(all)
}

fn files_max(text: &str) -> Option<usize> {
    text.lines().next()?.strip_prefix("# files: ")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_has_the_number_of_files() {
        assert_eq!(files_max("# files: 3\n--- a.rs\n"), Some(3));
        assert_eq!((files_max("# three\n"), files_max("")), (None, None));
    }
}

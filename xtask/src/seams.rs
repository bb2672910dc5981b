//! `cargo xtask seams`: checks that a new drive type, scheduler, counter or configuration key
//! changes only a few files.
//!
//! `xtask/seams/*.patch` are four small changes in the format of `planted::patch`. The first line
//! of each has the largest number of files that the patch may change (`# files: 3`). Each patch is
//! applied to a copy of the tree, which must pass `cargo check`. `main` calls this file. CI does
//! not run it; there, tidy checks that the patches still apply.

use std::path::Path;

use anyhow::{Context, Result};

use crate::planted::patch;
use crate::tree;

pub const PATCHES: &str = "xtask/seams";
const TARGET: &str = "target/seams";

/// Applies and builds each patch, and prints a row for each. Returns true if no patch changes too
/// many files and all builds pass.
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

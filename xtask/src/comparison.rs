//! `cargo xtask programs`, `schedulers` and `matrix`: comparisons with other programs.
//!
//! Runs the example of that name in millrace-tests, and passes it this command's arguments. A
//! separate process, because it needs other dependencies than the checks. Called by `main`; calls
//! cargo as a child process.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::tree;

/// Runs the comparison; returns true if it printed its tables.
pub fn run(root: &Path, name: &str, args: &[&str]) -> Result<bool> {
    let status = tree::cargo()
        .args(["run", "--quiet", "--package", "millrace-tests", "--example", name, "--"])
        .args(args)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("{name}: nothing was measured; see the error above");
    }
    Ok(true)
}

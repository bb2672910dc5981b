//! `cargo xtask programs`, `schedulers` and `matrix`: comparisons with other programs.
//!
//! Runs the example of millrace-tests that has the command's name, with the command's arguments.
//! The example is a separate process, so that xtask does not depend on the crates that the example
//! needs. `main` calls this file, which runs cargo as a child process.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::tree;

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

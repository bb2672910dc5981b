//! `cargo xtask programs`, `schedulers` and `matrix`: comparisons with programs of others.
//!
//! Runs the example of millrace-tests of that name, with this command's own arguments: what it
//! needs of the workspace is not what the checks need. Called by `main`; calls cargo as a child
//! process.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Runs it; true if it printed its tables.
///
/// # Errors
///
/// If it does not build, an argument is wrong, or the machine lacks what it needs.
pub fn run(root: &Path, name: &str, args: &[&str]) -> Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--package", "millrace-tests", "--example", name, "--"])
        .args(args)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        bail!("{name}: nothing was measured; above is why");
    }
    Ok(true)
}

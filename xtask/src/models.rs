//! `cargo xtask models`: checks the lock-free code under every interleaving and memory order.
//!
//! Runs the litmus tests of the checked machine, and on it the models of the block layer and of
//! vhost-user. Their output says how many executions each took, and after how many executions each
//! seeded bug was found. They are built from the patched copy of `planted`, which has hooks for
//! bugs. Called by `main` and by CI; calls cargo as a child process.

use std::path::Path;

use anyhow::Result;

use crate::check::{CargoStep, cargo, step, timed};
use crate::planted;

/// Builds outside the copy of the tree, because the copy is cleared of all files that git does not
/// know.
const TARGET: Option<(&str, &str)> = Some(("CARGO_TARGET_DIR", ".."));

const STEPS: [CargoStep; 2] = [
    step(
        "litmus tests of the checked machine",
        "test --config=xtask/models.toml --package=millrace-checker --lib --tests -- --nocapture",
    ),
    // The program has no library; it and tls are selected for the features that they give the
    // dependencies.
    step(
        "models of the block layer and of vhost-user",
        "test --config=xtask/models.toml --package=millrace-block --package=millrace-exports \
         --package=millrace-cli --package=millrace-tls --lib -- models:: model:: \
         --include-ignored --nocapture",
    ),
];

pub fn run(root: &Path) -> Result<bool> {
    let tree = planted::patched_tree(root)?;
    for step in STEPS.map(|step| CargoStep { env: TARGET, ..step }) {
        if !timed(step.name, || cargo(&tree, &step))? {
            return Ok(false);
        }
    }
    Ok(true)
}

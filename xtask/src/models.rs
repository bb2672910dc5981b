//! `cargo xtask models`: checks the lock-free code under every interleaving and memory order.
//!
//! Runs the litmus tests of millrace-checker, and the models of the block layer and of vhost-user,
//! which run on the checker. The checker explores all executions of a test. The output says how
//! many executions each model took, and after how many executions each seeded bug was found. Models
//! are built from the copy of the tree that planted.rs makes, in which hooks for seeded bugs are
//! patched into the code. `main` and CI call this file, which runs cargo as a child process.

use std::path::Path;

use anyhow::Result;

use crate::check::{CargoStep, cargo, step, timed};
use crate::planted;

/// Build folder: the parent folder of the patched copy, `target/planted/tree`. It is outside the
/// copy, because each update of the copy deletes files there that git does not list.
const TARGET: Option<(&str, &str)> = Some(("CARGO_TARGET_DIR", ".."));

const STEPS: [CargoStep; 2] = [
    step(
        "litmus tests of the model checker",
        "test --config=xtask/models.toml --package=millrace-checker --lib --tests -- --nocapture",
    ),
    // millrace-cli and millrace-tls have no models. With these two packages in the command, shared
    // dependencies get the same features as in `cargo test`. Their compiled form can then be
    // reused.
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

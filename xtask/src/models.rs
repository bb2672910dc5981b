//! `cargo xtask models`: the lock-free parts under every interleaving and memory order.
//!
//! Runs, in release, the litmus tests of the checked machine and the models of the block layer and
//! of vhost-user on it, with their output: how many executions each took, and after how many each
//! planted bug was found. Called by `main` and by CI; calls cargo as a child process.

use std::path::Path;

use anyhow::Result;

use crate::check::{Step, cargo, timed};

const STEPS: [Step; 3] = [
    Step {
        name: "litmus tests of the checked machine",
        args: &[
            "test",
            "--release",
            "--package=millrace-machine",
            "--features=checked,planted",
            "--lib",
            "--tests",
            "--",
            "--nocapture",
        ],
        env: None,
    },
    Step {
        name: "models of the block layer",
        args: &[
            "test",
            "--release",
            "--package=millrace-block",
            "--lib",
            "--",
            "models::",
            "--nocapture",
        ],
        env: None,
    },
    Step {
        name: "models of what serves virtual machines",
        args: &[
            "test",
            "--release",
            "--package=millrace-exports",
            "--lib",
            "--",
            "model::",
            "--nocapture",
        ],
        env: None,
    },
];

/// Runs all; true if every test passed.
///
/// # Errors
///
/// When cargo cannot be started.
pub fn run(root: &Path) -> Result<bool> {
    for step in &STEPS {
        if !timed(step.name, || cargo(root, step))? {
            return Ok(false);
        }
    }
    Ok(true)
}

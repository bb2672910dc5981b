//! `cargo xtask check`: all checks that must pass before a commit, cheapest first.
//!
//! Runs rustfmt, clippy, rustdoc, `cargo package`, the tests, `primitives` and `tidy`; stops at the
//! first failure, because later output would bury it. Called by `main`; calls cargo as a child
//! process, `primitives::run` and `tidy::run`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::{primitives, tidy};

/// Selects if the tests and `tidy` are part of the check; CI has run them before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TestSelection {
    /// Run them.
    Run,
    /// Leave them out.
    Skip,
}

/// One call of cargo.
pub struct CargoStep {
    /// Name of the step in the output.
    pub name: &'static str,
    /// Arguments of cargo.
    pub args: &'static [&'static str],
    /// An environment variable to set.
    pub env: Option<(&'static str, &'static str)>,
}

const LINTS: [CargoStep; 5] = [
    CargoStep { name: "fmt", args: &["fmt", "--all", "--check"], env: None },
    CargoStep {
        name: "clippy",
        args: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
        env: None,
    },
    // A workspace build always has the feature `tls`, because the program enables it.
    CargoStep {
        name: "clippy without tls",
        args: &["clippy", "-pmillrace", "--features", "serve", "--lib", "--", "-D", "warnings"],
        env: None,
    },
    CargoStep {
        name: "doc",
        args: &["doc", "--workspace", "--no-deps"],
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
    },
    // Packages all publishable crates without building them or using the network.
    CargoStep {
        name: "package",
        args: &[
            "package",
            "--quiet",
            "--offline",
            "--no-verify",
            "--allow-dirty",
            "--exclude-lockfile",
            "-pmillrace",
            "-pmillrace-block",
            "-pmillrace-cache",
            "-pmillrace-checker",
            "-pmillrace-drives",
            "-pmillrace-exports",
            "-pmillrace-machine",
            "-pmillrace-nbd",
            "-pmillrace-random",
            "-pmillrace-reactor",
            "-pmillrace-runtime",
            "-pmillrace-simulator",
            "-pmillrace-tls",
        ],
        env: None,
    },
];

const TESTS: [CargoStep; 2] = [
    CargoStep { name: "test", args: &["test", "--workspace"], env: None },
    CargoStep {
        name: "test without tls",
        args: &["test", "-pmillrace-drives", "--lib", "nbd::settings"],
        env: None,
    },
];

/// Runs every step in `root`; returns true if all passed.
///
/// # Errors
/// When cargo cannot be started or a file of the tree cannot be read.
pub fn run(root: &Path, tests: TestSelection) -> Result<bool> {
    let mut steps: Vec<&CargoStep> = LINTS.iter().collect();
    if tests == TestSelection::Run {
        steps.extend(&TESTS);
    }
    for step in steps {
        if !timed(step.name, || cargo(root, step))? {
            return Ok(false);
        }
    }
    Ok(timed("primitives", || primitives::run(root))?
        && (tests == TestSelection::Skip || timed("tidy", || tidy::run(root))?))
}

/// Runs a step and prints its duration.
///
/// # Errors
/// The errors of the step.
pub fn timed(name: &str, step: impl FnOnce() -> Result<bool>) -> Result<bool> {
    println!("check: {name} ...");
    let start = Instant::now();
    let passed = step()?;
    let seconds = start.elapsed().as_secs_f64();
    if passed {
        println!("check: {name} passed in {seconds:.1} s");
    } else {
        println!("check: {name} FAILED after {seconds:.1} s; the steps after it were not run");
    }
    Ok(passed)
}

/// Runs cargo in `root`; returns true if it succeeded.
///
/// # Errors
/// When cargo cannot be started.
pub fn cargo(root: &Path, step: &CargoStep) -> Result<bool> {
    // Under `cargo xtask` this variable is the cargo that was called, toolchain override included.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(step.args)
        .envs(step.env)
        .current_dir(root)
        .status()
        .with_context(|| format!("cannot run cargo for the step '{}'", step.name))?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_passes_exactly_when_cargo_succeeds() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let good = CargoStep { name: "good", args: &["--version"], env: None };
        let bad = CargoStep { name: "bad", args: &["no-such-verb-of-cargo"], env: None };
        assert!(timed("good", || cargo(root, &good)).unwrap());
        assert!(!timed("bad", || cargo(root, &bad)).unwrap());
    }
}

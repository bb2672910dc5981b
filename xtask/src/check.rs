//! `cargo xtask check`: all checks that must pass before a commit, cheapest first.
//!
//! Runs rustfmt, clippy, rustdoc, `cargo package`, the tests, `primitives` and `tidy`; stops at the
//! first failure, because later output would bury it. Called by `main`; calls cargo as a child
//! process, `primitives::run` and `tidy::run`.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::{primitives, tidy, tree};

/// `Skip` leaves out the tests and `tidy`. CI selects it, because earlier steps of CI run both.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TestSelection {
    Run,
    Skip,
}

pub struct CargoStep {
    pub name: &'static str,
    /// Arguments of cargo, separated by blanks.
    pub args: &'static str,
    pub env: Option<(&'static str, &'static str)>,
}

const LINTS: [CargoStep; 5] = [
    step("fmt", "fmt --all --check"),
    step("clippy", "clippy --workspace --all-targets -- -D warnings"),
    // A workspace build always has the feature `tls`, because the program enables it. So the
    // library alone is checked without `tls`.
    step("clippy without tls", "clippy -pmillrace --features serve --lib -- -D warnings"),
    CargoStep {
        env: Some(("RUSTDOCFLAGS", "-D warnings")),
        ..step("doc", "doc --workspace --no-deps")
    },
    // Packages all publishable crates without building them or using the network.
    step(
        "package",
        "package --quiet --offline --no-verify --allow-dirty --exclude-lockfile \
         -pmillrace -pmillrace-block -pmillrace-cache -pmillrace-checker -pmillrace-drives \
         -pmillrace-exports -pmillrace-machine -pmillrace-nbd -pmillrace-random \
         -pmillrace-reactor -pmillrace-runtime -pmillrace-simulator -pmillrace-tls",
    ),
];

const TESTS: [CargoStep; 2] = [
    step("test", "test --workspace"),
    step("test without tls", "test -pmillrace-drives --lib nbd::settings"),
];

pub const fn step(name: &'static str, args: &'static str) -> CargoStep {
    CargoStep { name, args, env: None }
}

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

pub fn cargo(root: &Path, step: &CargoStep) -> Result<bool> {
    let status = tree::cargo()
        .args(step.args.split_whitespace())
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
        let good = step("good", "--version");
        let bad = step("bad", "no-such-verb-of-cargo");
        assert!(timed("good", || cargo(root, &good)).unwrap());
        assert!(!timed("bad", || cargo(root, &bad)).unwrap());
    }
}

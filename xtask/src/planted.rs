//! `cargo xtask planted`: that `millrace explore` finds every planted bug, and how many seeds it
//! takes.
//!
//! Builds the program with the feature `planted` in a target folder of its own, runs it with each
//! bug and without one, and prints a row for each. Called by `main`; calls cargo and the program as
//! child processes. A bug that 1,000 seeds do not find fails the check.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

/// Names that the program knows, and the production line of each.
const PLANTS: [(&str, &str); 10] = [
    ("skipped-wake-up", "home.rs, deliver"),
    ("leaked-tag", "tag.rs, give"),
    ("double-completion", "split.rs, part_done"),
    ("dropped-member-flush", "split.rs, next_flush_part"),
    ("flush-joined-too-late", "complete.rs, end_request"),
    ("freeze-misses-one", "freeze.rs, set_frozen"),
    ("merge-across-chunk", "merge.rs, fits"),
    ("sq-unlock-too-early", "sq.rs, dispatch_single"),
    ("tag-unlooked", "volume_plug.rs, plug_request"),
    ("busy-forgotten", "direct.rs, issue_directly"),
];

/// Runs the program with each bug planted; true if all were found, and nothing without one.
///
/// # Errors
///
/// If the program cannot be built or run.
pub fn run(root: &Path) -> Result<bool> {
    let target = root.join("target/planted");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--package", "millrace-cli", "--features", "planted"])
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(root)
        .status()
        .context("cannot run cargo")?;
    if !built.success() {
        bail!("the program with planted bugs does not build");
    }
    let program = target.join("debug/millrace");
    let clean = explore(&program, &[])?;
    println!("planted: without a bug: {}", String::from_utf8_lossy(&clean.stdout).trim());
    let mut all = clean.status.success();
    println!("| planted bug | where, in crates/block/src | found as | seeds |\n|---|---|---|---|");
    for (plant, place) in PLANTS {
        let output = explore(&program, &["--plant", plant, "--json"])?;
        let found = first_of(&String::from_utf8_lossy(&output.stdout));
        let (kind, seeds) = found.unwrap_or(("not found".to_owned(), "more than 1,000".to_owned()));
        all &= output.status.code() == Some(1);
        println!("| {plant} | `{place}` | {kind} | {seeds} |");
    }
    Ok(all)
}

fn explore(program: &Path, more: &[&str]) -> Result<Output> {
    let common = ["explore", "--seeds", "1000", "--jobs", "1", "--fail-fast", "--no-shrink"];
    let output = Command::new(program).args(common).args(more).output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    match output.status.code() {
        Some(0 | 1) => Ok(output),
        _ => bail!("{} failed: {}", program.display(), String::from_utf8_lossy(&output.stderr)),
    }
}

/// Kind of the first violation in a summary, and how many seeds it took: seeds begin with 0.
fn first_of(summary: &str) -> Option<(String, String)> {
    let (_, list) = summary.split_once("\"violating_seeds\":[[")?;
    let (first, _) = list.split_once(']')?;
    let (seed, kind) = first.split_once(',')?;
    Some((kind.trim_matches('"').to_owned(), (seed.parse::<u64>().ok()? + 1).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_violating_seed_is_read_from_a_summary() {
        let summary = r#"{"seeds":8,"violating_seeds":[[6,"tags"],[7,"data"]]}"#;
        assert_eq!(first_of(summary), Some(("tags".to_owned(), "7".to_owned())));
        assert_eq!(first_of(r#"{"violating_seeds":[]}"#), None);
    }
}

//! `cargo xtask planted`: checks that `millrace-lab explore` finds every seeded bug, and counts the
//! seeds that it needs.
//!
//! Copies the tree to `target/planted/tree`, patches hooks for bugs into the copy, and builds
//! `millrace-lab` there with the feature `planted`. Then runs `explore` with each bug, prints a
//! table row for it, and runs the same seeds without a bug. The check fails if `explore` does not
//! find a bug within 1,000 seeds, or reports one where none is. `main` calls this file; `models`
//! uses the copy, too.

pub mod patch;

#[path = "../../lab/experiments/src/explorer/planted/names.rs"]
mod names;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};

use crate::tree;
use names::{CACHE_PLANTS, PLANTS};
use patch::Patch;

const CACHE: &[&str] = &["--cache"];
const SEEDS_MAX: u64 = 1_000;
/// Minimum number of seeds in the run without a planted bug, which must report nothing. If a
/// planted bug was found only after more seeds, the run without a bug uses that number.
const CLEAN_SEEDS_MIN: u64 = 200;
const PROFILE: &str = "--config=xtask/models.toml";
const TARGET: &str = "target/planted";

/// Brings the patched copy of the tree at `root` up to date and returns its folder. Builds of the
/// copy should use the folder [`target`], so that cargo rebuilds only changes.
pub fn patched_tree(root: &Path) -> Result<PathBuf> {
    let copy = target(root).join("tree");
    let lists = patch::read(root, patch::PLANTED)?;
    tree::mirror(root, &copy, &patch::apply_all(root, lists.values().flatten())?)?;
    Ok(copy)
}

pub fn target(root: &Path) -> PathBuf {
    root.join(TARGET)
}

/// Runs the explorer with each seeded bug and without a bug. Returns true if the explorer found
/// every seeded bug and reported nothing in the runs without a bug.
pub fn run(root: &Path) -> Result<bool> {
    let (tree, target) = (patched_tree(root)?, target(root));
    let lists = patch::read(root, patch::PLANTED)?;
    let built = tree::cargo()
        .args(["build", PROFILE, "--bin=millrace-lab", "--package=millrace-lab"])
        // Also build millrace-cli and millrace-tls: shared dependencies then get the features that
        // `cargo test` uses, and `models` need not compile them again.
        .args(["--package=millrace-cli", "--package=millrace-tls"])
        .env("CARGO_TARGET_DIR", &target)
        .current_dir(tree)
        .status()
        .context("cannot run cargo")?;
    if !built.success() {
        bail!("the program with seeded bugs does not build; see above");
    }
    let program = target.join("debug/millrace-lab");
    let mut all = true;
    let subjects = [("the layer", &PLANTS[..], &[][..]), ("the cache", &CACHE_PLANTS[..], CACHE)];
    for (subject, plants, more) in subjects {
        println!("| planted bug | where | found as | seeds |\n|---|---|---|---|");
        let mut most = CLEAN_SEEDS_MIN;
        for plant in plants {
            let place = place_of(plant, &lists);
            let arguments = [&["--plant", plant, "--json"], more].concat();
            let output = explore(&program, SEEDS_MAX, &arguments)?;
            let found = first_of(&String::from_utf8_lossy(&output.stdout));
            all &= output.status.code() == Some(1);
            match found {
                Some((kind, seeds)) => {
                    println!("| {plant} | `{place}` | {kind} | {seeds} |");
                    most = most.max(seeds);
                }
                None => println!("| {plant} | `{place}` | not found | more than {SEEDS_MAX} |"),
            }
        }
        let clean = explore(&program, most, more)?;
        let said = String::from_utf8_lossy(&clean.stdout).trim().to_owned();
        println!("planted: explore of {subject}, without a planted bug: {said}");
        all &= clean.status.success();
    }
    Ok(all)
}

fn explore(program: &Path, seeds: u64, more: &[&str]) -> Result<Output> {
    let common = ["explore", "--jobs", "1", "--fail-fast", "--no-shrink", "--seeds"];
    let output = Command::new(program).args(common).arg(seeds.to_string()).args(more).output();
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    match output.status.code() {
        Some(0 | 1) => Ok(output),
        _ => bail!("{} failed: {}", program.display(), String::from_utf8_lossy(&output.stderr)),
    }
}

fn place_of(plant: &str, lists: &BTreeMap<String, Vec<Patch>>) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    let hook = format!("Plant::{}", plant.split('-').map(capital).collect::<String>());
    let patches = lists.values().flatten();
    let mut hunks = patches.flat_map(|patch| patch.hunks.iter().map(|hunk| (&patch.path, hunk)));
    let found = hunks.find(|(_, hunk)| hunk.after.contains(&hook));
    found.map_or_else(|| "nowhere".to_owned(), |(path, hunk)| format!("{path}, {}", hunk.name))
}

/// Returns the kind of the first violation in the JSON of `explore`, and the number of seeds that
/// were tried up to this violation.
fn first_of(summary: &str) -> Option<(String, u64)> {
    let (_, list) = summary.split_once("\"violating_seeds\":[[")?;
    let (first, _) = list.split_once(']')?;
    let (seed, kind) = first.split_once(',')?;
    Some((kind.trim_matches('"').to_owned(), seed.parse::<u64>().ok()? + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_violating_seed_is_read_from_a_summary() {
        let summary = r#"{"seeds":8,"violating_seeds":[[6,"tags"],[7,"data"]]}"#;
        assert_eq!(first_of(summary), Some(("tags".to_owned(), 7)));
        assert_eq!(first_of(r#"{"violating_seeds":[]}"#), None);
    }

    #[test]
    fn the_place_of_a_bug_is_that_of_its_patch() {
        let list = "--- a.rs\n@@ f\n+x();\n@@ give\n+if planted(Plant::LeakedTag) {}\n";
        let lists = BTreeMap::from([("a".to_owned(), patch::parse(list).expect("a list"))]);
        assert_eq!(place_of("leaked-tag", &lists), "a.rs, give");
        assert_eq!(place_of("busy-forgotten", &lists), "nowhere");
    }
}

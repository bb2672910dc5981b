//! `cargo xtask times`: measures how long builds and tests of this repository take.
//!
//! Builds and tests a copy of the tree in a target folder of its own. The folder is emptied before
//! each step that measures a fresh clone. For each step, prints the wall time, the CPU time and the
//! load of the machine before the step. Downloads happen before the first step and do not count.
//! `main` calls this file, which runs git (through `tree`) and cargo as child processes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::tree;

/// Ticks per second in /proc, on every machine that Linux runs on.
const TICKS_PER_SECOND: f64 = 100.0;
/// File to which the step `change` adds a line.
const CHANGED: &str = "crates/block/src/channel/split.rs";

/// A row of the table.
struct TimedStep {
    /// Name of the step on the command line of `times`.
    name: &'static str,
    /// Arguments of cargo.
    args: &'static [&'static str],
    /// State of the target folder before the step.
    before: TargetState,
    /// Targets (maximum) for wall time and CPU time, in seconds.
    wall_max: Option<u64>,
    cpu_max: Option<u64>,
}

/// State of cargo's `target` folder before a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TargetState {
    /// The folder is empty, as in a fresh clone.
    Empty,
    /// The folder has the files that the previous step left in it.
    Kept,
    /// The workspace was built and tested once. Then one line was added at the top of
    /// [`CHANGED`].
    OneLineChanged,
}

const STEPS: [TimedStep; 4] = [
    TimedStep {
        name: "build",
        args: &["build", "--release", "--bin", "millrace"],
        before: TargetState::Empty,
        wall_max: Some(210),
        cpu_max: Some(300),
    },
    TimedStep {
        name: "test",
        args: &["test"],
        before: TargetState::Empty,
        wall_max: Some(480),
        cpu_max: None,
    },
    TimedStep {
        name: "change",
        args: &["test", "--package", "millrace-block"],
        before: TargetState::OneLineChanged,
        wall_max: Some(60),
        cpu_max: None,
    },
    TimedStep {
        name: "test-all",
        args: &["test", "--workspace"],
        before: TargetState::Kept,
        wall_max: None,
        cpu_max: None,
    },
];

/// Runs the steps that `names` lists, or all; returns true if each command succeeded.
///
/// # Errors
/// If a name is unknown, the tree cannot be copied, or cargo cannot be started.
pub fn run(root: &Path, names: &[&str]) -> Result<bool> {
    let steps = chosen(names)?;
    let target = root.join("target/times");
    let tree = target.join("tree");
    tree::mirror(root, &tree, &BTreeMap::new())?;
    cargo(&tree, &target, &["fetch", "--quiet"])?;
    println!("| cargo | wall | at most | CPU | at most | load before |\n|---|---|---|---|---|---|");
    let mut all_passed = true;
    for step in steps {
        prepare(&tree, &target, step)?;
        let load = load_average()?;
        let (passed, wall, cpu) = timed(&tree, &target, step.args)?;
        let limit = |most: Option<u64>| most.map_or_else(|| "-".to_owned(), |s| minutes(s as f64));
        let failed = if passed { "" } else { " FAILED" };
        println!(
            "| {}{failed} | {} | {} | {} | {} | {load} |",
            step.args.join(" "),
            minutes(wall.as_secs_f64()),
            limit(step.wall_max),
            minutes(cpu.as_secs_f64()),
            limit(step.cpu_max)
        );
        all_passed &= passed;
    }
    Ok(all_passed)
}

fn chosen(names: &[&str]) -> Result<Vec<&'static TimedStep>> {
    if names.is_empty() {
        return Ok(STEPS.iter().collect());
    }
    let find = |name: &&str| STEPS.iter().find(|step| step.name == *name);
    let known = STEPS.map(|step| step.name).join(", ");
    names
        .iter()
        .map(|name| {
            find(name)
                .with_context(|| format!("times: there is no step {name}; use one of {known}"))
        })
        .collect()
}

fn prepare(tree: &Path, target: &Path, step: &TimedStep) -> Result<()> {
    match step.before {
        TargetState::Kept => Ok(()),
        TargetState::Empty => empty(&built(target)),
        TargetState::OneLineChanged => {
            cargo(tree, target, step.args)?;
            let path = tree.join(CHANGED);
            let text = fs::read_to_string(&path).context("cannot read the file to change")?;
            // A new line at the top moves all other lines, so that the whole file is compiled
            // again.
            fs::write(&path, format!("// Added line.\n{text}"))
                .context("cannot change a file of the copy")
        }
    }
}

/// Returns the target folder, outside the copy, which `tree::mirror` clears.
fn built(target: &Path) -> PathBuf {
    target.join("built")
}

fn empty(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot empty {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Runs cargo; returns true if it succeeded, the wall time, and the CPU time of all its processes.
fn timed(tree: &Path, target: &Path, args: &[&str]) -> Result<(bool, Duration, Duration)> {
    let (start, before) = (Instant::now(), children_cpu()?);
    let passed = cargo(tree, target, args)?;
    Ok((passed, start.elapsed(), children_cpu()? - before))
}

/// Runs cargo in the copy, with its output in a file beside it; returns true if it succeeded.
fn cargo(tree: &Path, target: &Path, args: &[&str]) -> Result<bool> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let path = target.join("output.txt");
    let output = fs::File::create(&path).context("cannot write the output of cargo")?;
    let errors = output.try_clone().context("cannot write the errors of cargo")?;
    let status = Command::new(cargo)
        .args(args)
        .env("CARGO_TARGET_DIR", built(target))
        .current_dir(tree)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .status()
        .context("cannot run cargo")?;
    if !status.success() {
        eprintln!("times: cargo {} failed; see {}", args.join(" "), path.display());
    }
    Ok(status.success())
}

/// Returns the CPU time of the child processes that have ended, including their own children.
fn children_cpu() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    cpu_of(&stat).context("/proc/self/stat does not have the format of proc(5)")
}

/// Sums cutime and cstime of a line of /proc/PID/stat.
fn cpu_of(stat: &str) -> Option<Duration> {
    // The name of the program, in parentheses, may contain spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: Vec<f64> = fields.split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect();
    let [user, system] = ticks.get(13..15)?.try_into().ok()?;
    Some(Duration::from_secs_f64((user + system) / TICKS_PER_SECOND))
}

fn load_average() -> Result<String> {
    let text = fs::read_to_string("/proc/loadavg").context("cannot read /proc/loadavg")?;
    match text.split_once(' ') {
        Some((load, _)) => Ok(load.to_owned()),
        None => bail!("/proc/loadavg does not have the format of proc(5)"),
    }
}

/// Formats seconds as `m:ss`.
fn minutes(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    format!("{}:{:02}", whole / 60, whole % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_of_children_is_read_behind_odd_program_names() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 1 2 0 0 10 20 1250 250 20 0 1 0 5 0 0";
        assert_eq!(cpu_of(stat), Some(Duration::from_secs(15)));
        assert_eq!(cpu_of("7 (a) S 1"), None);
    }

    #[test]
    fn times_are_minutes_and_seconds() {
        assert_eq!(minutes(59.6), "1:00");
        assert_eq!(minutes(425.0), "7:05");
    }

    #[test]
    fn an_unknown_step_is_named_with_those_that_are_known() {
        let error = chosen(&["built"]).map(|_| ()).unwrap_err().to_string();
        assert_eq!(
            error,
            "times: there is no step built; use one of build, test, change, test-all"
        );
    }
}

//! `cargo xtask times`: measures how long builds and tests of this repository take.
//!
//! Builds and tests a copy of the tree in a target folder of its own. For each step, prints the
//! wall time, the CPU time and the load of the machine before the step. Downloads happen before
//! the first step and do not count.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::tree;

/// Ticks per second of the CPU times in /proc/PID/stat, the same on all architectures of Linux.
const TICKS_PER_SECOND: f64 = 100.0;
/// File to which a line is added before the step `change`, which measures an incremental build.
const CHANGED: &str = "crates/block/src/channel/split.rs";

/// Steps: the name on the command line, the arguments of cargo, and the maximum wall and CPU time.
/// `build` and `test` begin with an empty target folder, as in a fresh clone. `change` measures an
/// incremental run, after a line was added to [`CHANGED`].
const STEPS: [[&str; 4]; 4] = [
    ["build", "build --release --bin millrace", "3:30", "5:00"],
    ["test", "test", "8:00", "-"],
    ["change", "test --package millrace-block", "1:00", "-"],
    ["test-all", "test --workspace", "-", "-"],
];

/// A copy of the source tree, and the target folder of its builds. The target folder is outside the
/// copy, because `tree::mirror` removes all files from the copy that are not in the source tree.
struct MeasuredCopy {
    tree: PathBuf,
    built: PathBuf,
}

pub fn run(root: &Path, names: &[&str]) -> Result<bool> {
    let steps = chosen(names)?;
    let target = root.join("target/times");
    let copy = MeasuredCopy { tree: target.join("tree"), built: target.join("built") };
    tree::mirror(root, &copy.tree, &BTreeMap::new())?;
    copy.cargo("fetch --quiet")?;
    println!("| cargo | wall | at most | CPU | at most | load before |\n|---|---|---|---|---|---|");
    let mut all_passed = true;
    for [name, args, wall_max, cpu_max] in steps {
        match name {
            "build" | "test" if copy.built.exists() => {
                fs::remove_dir_all(&copy.built).context("cannot empty the target folder")?;
            }
            "change" => {
                copy.cargo(args)?;
                let path = copy.tree.join(CHANGED);
                let text = fs::read_to_string(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                // A line added at the top moves all others, so that cargo compiles the whole file
                // again in the measured build.
                fs::write(&path, format!("// Added line.\n{text}"))
                    .with_context(|| format!("cannot write {}", path.display()))?;
            }
            _ => {}
        }
        let load = fs::read_to_string("/proc/loadavg").context("cannot read /proc/loadavg")?;
        let load = load.split(' ').next().unwrap_or_default();
        let (start, cpu_before) = (Instant::now(), children_cpu()?);
        let passed = copy.cargo(args)?;
        let (wall, cpu) = (minutes(start.elapsed()), minutes(children_cpu()? - cpu_before));
        let failed = if passed { "" } else { " FAILED" };
        println!("| {args}{failed} | {wall} | {wall_max} | {cpu} | {cpu_max} | {load} |");
        all_passed &= passed;
    }
    Ok(all_passed)
}

fn chosen(names: &[&str]) -> Result<Vec<[&'static str; 4]>> {
    let known = STEPS.map(|[name, ..]| name);
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        bail!("times: there is no step {name}; use one of {}", known.join(", "));
    }
    let is_chosen = |step: &[&str; 4]| names.is_empty() || names.contains(&step[0]);
    Ok(STEPS.into_iter().filter(is_chosen).collect())
}

impl MeasuredCopy {
    fn cargo(&self, args: &str) -> Result<bool> {
        let path = self.built.with_file_name("output.txt");
        let output = fs::File::create(&path).context("cannot write the output of cargo")?;
        let status = tree::cargo()
            .args(args.split(' '))
            .env("CARGO_TARGET_DIR", &self.built)
            .current_dir(&self.tree)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("cannot write the errors of cargo")?)
            .stderr(output)
            .status()
            .context("cannot run cargo")?;
        if !status.success() {
            eprintln!("times: cargo {args} failed; see {}", path.display());
        }
        Ok(status.success())
    }
}

/// Returns the CPU time of the child processes that have ended, including their own children.
fn children_cpu() -> Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    cpu_of(&stat).context("/proc/self/stat does not have the format of proc(5)")
}

fn cpu_of(stat: &str) -> Option<Duration> {
    // Split only the fields after the program's name, which is in parentheses and may contain
    // spaces.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: Vec<f64> = fields.split_whitespace().map(|f| f.parse().unwrap_or(0.0)).collect();
    let [user, system] = ticks.get(13..15)?.try_into().ok()?;
    Some(Duration::from_secs_f64((user + system) / TICKS_PER_SECOND))
}

fn minutes(time: Duration) -> String {
    let whole = time.as_secs_f64().round() as u64;
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
        assert_eq!(minutes(Duration::from_millis(59_600)), "1:00");
        assert_eq!(minutes(Duration::from_secs(425)), "7:05");
    }

    #[test]
    fn an_unknown_step_is_named_with_those_that_are_known() {
        let error = chosen(&["built"]).unwrap_err().to_string();
        assert_eq!(
            error,
            "times: there is no step built; use one of build, test, change, test-all"
        );
    }
}

//! `cargo xtask mutants`: measures how many small bugs in a crate its tests find.
//!
//! cargo-mutants seeds one bug at a time: an operator exchanged, or a function that only returns
//! some value. Each crate is tested by its own tests alone, without the models, which take minutes.
//! Mutants that survive must be listed in `xtask/mutants/known.txt` with a reason;
//! `xtask/mutants/short.txt` lists the few that CI tests. Called by `main`; calls cargo-mutants in
//! a copy of the tree made by `tree`.

mod list;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::tree;
use list::{MutantEntry, MutantKey};

/// Fraction of mutants that the tests must find, of a whole crate or of an even sample.
const KILLED_PERCENT_MIN: f64 = 90.0;

const USAGE: &str =
    "usage: cargo xtask mutants [--short] [--package NAME]... [--shard K/N | --sample N]
  --short        test only the mutants of xtask/mutants/short.txt, as CI does
  --package      a group of xtask/mutants/groups.txt, or its package
  --shard K/N    test every Nth mutant, starting at the Kth, counted from 0
  --sample N     equal to --shard 0/N";

/// Groups of mutants, the most important first.
const GROUPS: &str = include_str!("../mutants/groups.txt");

/// A set of files of a package, and the tests that must find the mutants in them: the words behind
/// each key of a group in `groups.txt`.
struct MutantGroup {
    name: &'static str,
    words: BTreeMap<&'static str, Vec<&'static str>>,
}

/// Profile for fast builds: each mutant is built once, and most are found in the first second.
const PROFILE: [(&str, &str); 3] = [
    ("CARGO_PROFILE_DEV_OPT_LEVEL", "0"),
    ("CARGO_PROFILE_DEV_DEBUG", "false"),
    ("CARGO_INCREMENTAL", "1"),
];

#[derive(Debug, Default, PartialEq, Eq)]
struct MutantSelection {
    short: bool,
    /// Names of groups or packages; empty for all.
    packages: Vec<String>,
    /// Argument `K/N` of `--shard`.
    shard: Option<String>,
}

/// Results of a group's mutants, as names of mutants.
#[derive(Debug, Default)]
struct MutantOutcome {
    caught: Vec<String>,
    missed: Vec<String>,
    timeout: Vec<String>,
    unviable: Vec<String>,
}

/// Tests the mutants that `args` select; returns true if only known ones survived.
pub fn run(root: &Path, args: &[&str]) -> Result<bool> {
    let choice = MutantSelection::parse(args)?;
    let found = Command::new("cargo-mutants").args(["mutants", "--version"]).output();
    if !found.is_ok_and(|output| output.status.success()) {
        bail!("cargo-mutants is missing; install it with: cargo install cargo-mutants --locked");
    }
    let known = list::read(&root.join("xtask/mutants/known.txt"))?;
    let short = match choice.short {
        true => list::read(&root.join("xtask/mutants/short.txt"))?,
        false => Vec::new(),
    };
    let target = root.join("target/mutants");
    let (tree, reports) = (target.join("tree"), target.join("reports"));
    let place = MutantFolders { tree, target, reports };
    tree::mirror(root, &place.tree, &BTreeMap::new())?;
    let mut clean = true;
    let mut table = String::from("| part | caught | timeout | missed | unviable | killed |\n");
    table.push_str("|---|---|---|---|---|---|\n");
    for group in groups().iter().filter(|group| choice.has(group)) {
        let wanted: Vec<&MutantEntry> = short.iter().filter(|e| group.has(e.key.path())).collect();
        if choice.short && wanted.is_empty() {
            continue;
        }
        let outcome = plant(&place, group, &choice, &wanted)?;
        clean &= judge(group, &outcome, &known, &wanted);
        clean &= choice.short || outcome.killed_percent() >= KILLED_PERCENT_MIN;
        table.push_str(&outcome.row(group.name));
    }
    print!("{table}");
    Ok(clean)
}

/// Folders in which mutants are made, built and reported.
struct MutantFolders {
    tree: PathBuf,
    target: PathBuf,
    reports: PathBuf,
}

fn plant(
    place: &MutantFolders,
    group: &MutantGroup,
    choice: &MutantSelection,
    wanted: &[&MutantEntry],
) -> Result<MutantOutcome> {
    let report = place.reports.join(group.name);
    fs::create_dir_all(&report).context("cannot make target/mutants/reports")?;
    println!("mutants: {} ...", group.name);
    let mut command = Command::new("cargo-mutants");
    command.args(["mutants", "--in-place", "--no-times", "--no-shuffle", "--colors=never"]);
    // Allow twice the time that the tests need, for a busy machine; a hang costs this much.
    command.args(["--timeout-multiplier=2", "--minimum-test-timeout=20", "--build-timeout=300"]);
    command.args(["--package", group.package()]).arg("--output").arg(&report);
    let judges = group.words("judge").iter().flat_map(|judge| [group.package(), judge]);
    command.args(judges.map(|package| format!("--test-package={package}")));
    // Select by file as well as by name: mutants named "delete field" match every `--re`
    // (cargo-mutants 27.1.0).
    let files: Vec<&str> = wanted.iter().map(|entry| entry.key.path()).collect();
    let files = if files.is_empty() { group.words("files") } else { &files };
    command.args(files.iter().flat_map(|glob| ["--file", glob]));
    command.args(group.words("but").iter().flat_map(|glob| ["--exclude", glob]));
    if let Some(shard) = &choice.shard {
        command.args(["--shard", shard, "--sharding=round-robin"]);
    }
    command.args(wanted.iter().map(|entry| format!("--re={}", entry.key.pattern())));
    // `--cargo-arg` applies to building, too; arguments after `--` apply to running only. These two
    // packages are selected only because they enable features of shared dependencies. With the same
    // features as for `cargo test`, CI can copy the built dependencies from target/debug.
    command.args(["--cargo-arg=--package=millrace-cli", "--cargo-arg=--package=millrace-tls"]);
    command.args(group.words("tests").iter().map(|target| format!("--cargo-arg={target}")));
    command.args(["--", "--"]);
    let slow = if choice.short { group.words("slow") } else { &[] };
    command.args(group.words("skip").iter().chain(slow).flat_map(|name| ["--skip", name]));
    let status = command
        .envs(PROFILE)
        .env("CARGO_TARGET_DIR", &place.target)
        .current_dir(&place.tree)
        .stdin(Stdio::null())
        .status()
        .context("cannot run cargo-mutants")?;
    // 2: some mutants survived; 3: some timed out.
    match status.code() {
        Some(0 | 2 | 3) => MutantOutcome::read(&report.join("mutants.out")),
        _ => bail!(
            "cargo-mutants failed on {}: see the logs in {}",
            group.name,
            report.join("mutants.out/log").display()
        ),
    }
}

/// Prints surviving mutants that are not listed as known, and listed mutants that no longer exist.
/// Returns true if there are neither.
fn judge(
    group: &MutantGroup,
    outcome: &MutantOutcome,
    known: &[MutantEntry],
    wanted: &[&MutantEntry],
) -> bool {
    let mut clean = true;
    for name in &outcome.missed {
        match known.iter().find(|entry| MutantKey::of(name).as_ref() == Some(&entry.key)) {
            Some(entry) => println!("mutants: known: {name}: {}", entry.reason),
            None => {
                println!(
                    "mutants: NO TEST FAILS WITH {name}: write a test, or list the mutant in \
                     xtask/mutants/known.txt with a reason"
                );
                clean = false;
            }
        }
    }
    let planted: BTreeSet<MutantKey> =
        outcome.tested().filter_map(|name| MutantKey::of(name)).collect();
    for entry in wanted.iter().filter(|entry| !planted.contains(&entry.key)) {
        println!(
            "mutants: {} has no mutant {} any more; correct xtask/mutants/short.txt \
             (cargo mutants --list --package {} shows all)",
            group.name,
            entry.key.0,
            group.package()
        );
        clean = false;
    }
    clean
}

/// Reads all groups: a name, and below it indented lines of a key and its words.
fn groups() -> Vec<MutantGroup> {
    let mut groups: Vec<MutantGroup> = Vec::new();
    for line in GROUPS.lines().filter(|line| !line.trim().starts_with('#')) {
        let mut words = line.split_whitespace();
        match (words.next(), groups.last_mut()) {
            (Some(key), Some(group)) if line.starts_with(' ') => {
                group.words.entry(key).or_default().extend(words);
            }
            (Some(name), _) => groups.push(MutantGroup { name, words: BTreeMap::new() }),
            (None, _) => {}
        }
    }
    groups
}

impl MutantGroup {
    fn words(&self, key: &str) -> &[&'static str] {
        self.words.get(key).map_or(&[], Vec::as_slice)
    }

    fn package(&self) -> &'static str {
        self.words("package").first().expect("every group of the list has a package")
    }

    /// Returns true if the group has the mutants of the file at `path`.
    fn has(&self, path: &str) -> bool {
        let inside = |glob: &&str| {
            let (front, _) = glob.split_once('*').unwrap_or((glob, ""));
            path.starts_with(front)
        };
        let crate_name = self.package().trim_start_matches("millrace-");
        let files = self.words("files");
        ["crates", "lab"].iter().any(|at| path.starts_with(&format!("{at}/{crate_name}/src/")))
            && (files.is_empty() || files.iter().any(inside))
            && !self.words("but").iter().any(inside)
    }
}

impl MutantSelection {
    fn parse(args: &[&str]) -> Result<Self> {
        let mut choice = Self::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            let mut value =
                || rest.next().with_context(|| format!("{arg}: value missing\n{USAGE}"));
            match *arg {
                "--short" => choice.short = true,
                "--package" => choice.packages.push(package(value()?)?),
                "--shard" => choice.shard = Some((*value()?).to_owned()),
                "--sample" => choice.shard = Some(format!("0/{}", value()?)),
                other => bail!("unknown argument {other}\n{USAGE}"),
            }
        }
        Ok(choice)
    }

    fn has(&self, group: &MutantGroup) -> bool {
        self.packages.is_empty()
            || self.packages.iter().any(|name| name == group.name || name == group.package())
    }
}

fn package(name: &str) -> Result<String> {
    let long = format!("millrace-{name}");
    let known = groups().into_iter().flat_map(|group| [group.name, group.package()]);
    known
        .into_iter()
        .find(|known| *known == name || *known == long)
        .map(str::to_owned)
        .with_context(|| format!("no part {name}\n{USAGE}"))
}

impl MutantOutcome {
    fn read(folder: &Path) -> Result<Self> {
        let names = |file: &str| -> Result<Vec<String>> {
            let path = folder.join(file);
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            Ok(text.lines().map(str::to_owned).collect())
        };
        Ok(Self {
            caught: names("caught.txt")?,
            missed: names("missed.txt")?,
            timeout: names("timeout.txt")?,
            unviable: names("unviable.txt")?,
        })
    }

    fn tested(&self) -> impl Iterator<Item = &String> {
        self.caught.iter().chain(&self.missed).chain(&self.timeout)
    }

    /// A hanging test counts as a found bug, like a failing test. A mutant that does not build does
    /// not count.
    fn killed_percent(&self) -> f64 {
        let killed = self.caught.len() + self.timeout.len();
        let tested = killed + self.missed.len();
        if tested == 0 { 100.0 } else { 100.0 * killed as f64 / tested as f64 }
    }

    fn row(&self, name: &str) -> String {
        format!(
            "| {name} | {} | {} | {} | {} | {:.1} % |\n",
            self.caught.len(),
            self.timeout.len(),
            self.missed.len(),
            self.unviable.len(),
            self.killed_percent()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_the_first_shard_of_so_many() {
        let choice = MutantSelection::parse(&["--package", "reactor", "--sample", "20"]).unwrap();
        assert_eq!(choice.shard.as_deref(), Some("0/20"));
        assert_eq!(choice.packages, ["reactor"]);
        let names = groups().into_iter().filter(|g| choice.has(g)).map(|g| g.name);
        assert_eq!(names.collect::<Vec<_>>(), ["reactor"]);
        assert!(
            MutantSelection::parse(&["--package", "exports"]).unwrap().packages
                == ["millrace-exports"]
        );
        assert!(MutantSelection::parse(&["--package", "lab"]).is_err());
        assert!(MutantSelection::parse(&["--shard"]).is_err());
    }

    #[test]
    fn every_file_is_in_one_group_at_most() {
        for (path, name) in [
            ("crates/block/src/chain/merge.rs", "block"),
            ("crates/exports/src/vhost/ring.rs", "exports-vhost"),
            ("lab/clients/src/vhost/ring.rs", "clients"),
            ("crates/exports/src/nbd/memory/budget.rs", "exports-server"),
            ("crates/exports/src/virtio.rs", "exports-rest"),
            ("crates/nbd/src/wire.rs", "nbd"),
            ("crates/runtime/src/io_context.rs", "runtime"),
        ] {
            let names: Vec<&str> = groups()
                .into_iter()
                .filter(|group| group.has(path))
                .map(|group| group.name)
                .collect();
            assert_eq!(names, [name], "{path}");
        }
    }

    #[test]
    fn only_known_survivors_pass_and_wanted_ones_must_exist() {
        let known = [MutantEntry {
            key: MutantKey("a.rs: replace f with ()".into()),
            reason: "slower".into(),
        }];
        let mut outcome = MutantOutcome {
            missed: vec!["a.rs:1:2: replace f with ()".into()],
            ..MutantOutcome::default()
        };
        assert!(judge(&groups()[0], &outcome, &known, &[]));
        assert!(!judge(&groups()[0], &outcome, &[], &[]));
        outcome.missed.clear();
        assert!(!judge(&groups()[0], &outcome, &[], &[&known[0]]));
    }

    #[test]
    fn timeout_counts_as_killed_and_what_does_not_build_not_at_all() {
        let names = |count: usize| vec![String::new(); count];
        let outcome = MutantOutcome {
            caught: names(7),
            missed: names(2),
            timeout: names(1),
            unviable: names(90),
        };
        assert!((outcome.killed_percent() - 80.0).abs() < 1e-9);
    }
}

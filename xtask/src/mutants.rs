//! `cargo xtask mutants`: measures how many small bugs in a crate are found by the crate's tests.
//!
//! cargo-mutants makes one small change (a mutant) at a time in a copy of the tree. For example, it
//! replaces an operator, or makes a function return a fixed value. Each crate is tested by its own
//! tests, except slow ones such as model checking, which `xtask/mutants/groups.txt` lists.
//! `xtask/mutants/known.txt` lists mutants that no test can find, which are left out.
//! `xtask/mutants/short.txt` lists the few mutants that CI tests.

mod list;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::tree;
use list::MutantKey;

const USAGE: &str =
    "usage: cargo xtask mutants [--short] [--package NAME]... [--shard K/N | --sample N]
  --short        test only the mutants of xtask/mutants/short.txt, as CI does
  --package      a group of xtask/mutants/groups.txt, or its package
  --shard K/N    test every Nth mutant, starting at the Kth, counted from 0
  --sample N     equal to --shard 0/N";

const GROUPS: &str = include_str!("../mutants/groups.txt");

struct MutantGroup {
    name: &'static str,
    words: BTreeMap<&'static str, Vec<&'static str>>,
}

/// Profile for fast builds: each mutant needs a build of its own, and most fail a test within a
/// second.
const PROFILE: [(&str, &str); 3] = [
    ("CARGO_PROFILE_DEV_OPT_LEVEL", "0"),
    ("CARGO_PROFILE_DEV_DEBUG", "false"),
    ("CARGO_INCREMENTAL", "1"),
];

#[derive(Debug, Default, PartialEq, Eq)]
struct MutantSelection {
    short: bool,
    /// Names of packages, or of mutant groups in groups.txt, to test; empty for all.
    packages: Vec<String>,
    /// Argument `K/N` of `--shard`.
    shard: Option<String>,
}

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
    // Check the list's entries of all groups, because CI tests only some groups for each commit.
    let (file, listed) = if choice.short { ("short", &short) } else { ("known", &known) };
    let gone = gone(root, listed)?;
    if !gone.is_empty() {
        bail!("{}", gone_text(file, &gone));
    }
    let target = root.join("target/mutants");
    tree::mirror(root, &target.join("tree"), &BTreeMap::new())?;
    let mut clean = true;
    for group in groups().iter().filter(|group| choice.has(group)) {
        let wanted: Vec<&MutantKey> = short.iter().filter(|key| group.has(key.path())).collect();
        if choice.short && wanted.is_empty() {
            continue;
        }
        println!("mutants: {} ...", group.name);
        let report = target.join("reports").join(group.name);
        fs::create_dir_all(&report).context("cannot make target/mutants/reports")?;
        let mut command = Command::new("cargo-mutants");
        command
            .arg("mutants")
            .args(known.iter().map(|key| format!("--exclude-re={}", key.pattern())));
        command.args(wanted.iter().map(|key| format!("--re={}", key.pattern())));
        command.arg("--output").arg(&report).args(options(group, &choice, &wanted));
        let status = command
            .envs(PROFILE)
            .env("CARGO_TARGET_DIR", &target)
            .current_dir(target.join("tree"))
            .stdin(Stdio::null())
            .status()
            .context("cannot run cargo-mutants")?;
        // cargo-mutants exits with 2 if mutants survived, and with 3 if some timed out.
        if !matches!(status.code(), Some(0 | 2 | 3)) {
            let log = report.join("mutants.out/log");
            bail!("cargo-mutants failed on {}: see the logs in {}", group.name, log.display());
        }
        clean &= judge(&report.join("mutants.out"))?;
    }
    Ok(clean)
}

fn options(group: &MutantGroup, choice: &MutantSelection, wanted: &[&MutantKey]) -> Vec<String> {
    // Allow a test twice its usual time, because the machine may be busy, but not more: each mutant
    // that hangs takes the whole time.
    let mut all: Vec<String> =
        "--in-place --no-times --no-shuffle --colors=never --timeout-multiplier=2 \
         --minimum-test-timeout=20 --build-timeout=300"
            .split_whitespace()
            .map(str::to_owned)
            .collect();
    let mut add = |option: &str, values: &[&str]| {
        all.extend(values.iter().map(|value| format!("{option}={value}")));
    };
    add("--package", &[group.package()]);
    // Select mutants by file as well as by name, because mutants named "delete field" match every
    // `--re` (cargo-mutants 27.1.0).
    let files: Vec<&str> = wanted.iter().map(|key| key.path()).collect();
    add("--file", if files.is_empty() { group.words("files") } else { &files });
    add("--exclude", group.words("but"));
    if let Some(shard) = &choice.shard {
        add("--shard", &[shard]);
        add("--sharding", &["round-robin"]);
    }
    // Also build millrace-cli and millrace-tls: shared dependencies then get the features that
    // `cargo test` uses, and CI need not compile the dependencies again.
    add("--cargo-arg", &["--package=millrace-cli", "--package=millrace-tls"]);
    add("--cargo-arg", group.words("tests"));
    all.extend(["--".to_owned(), "--".to_owned()]);
    let slow = if choice.short { group.words("slow") } else { &[] };
    let skipped = group.words("skip").iter().chain(slow);
    all.extend(skipped.map(|name| format!("--skip={name}")));
    all
}

/// Returns the entries of a list that cargo-mutants no longer makes, for example because a function
/// has a new name.
fn gone<'a>(root: &Path, listed: &'a [MutantKey]) -> Result<Vec<&'a MutantKey>> {
    let files = listed.iter().map(|key| format!("--file={}", key.path()));
    let output = Command::new("cargo-mutants")
        .args(["mutants", "--list"])
        .args(files)
        .current_dir(root)
        .output()
        .context("cannot run cargo-mutants")?;
    if !output.status.success() {
        bail!("cargo-mutants --list failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    let names = String::from_utf8_lossy(&output.stdout);
    let made: BTreeSet<MutantKey> = names.lines().filter_map(MutantKey::of).collect();
    Ok(listed.iter().filter(|key| !made.contains(key)).collect())
}

fn gone_text(file: &str, gone: &[&MutantKey]) -> String {
    let lines: String = gone.iter().map(|key| format!("\n  {}", key.0)).collect();
    format!(
        "xtask/mutants/{file}.txt lists mutants that do not exist any more; correct these lines \
         (`cargo mutants --list --file PATH` shows the mutants of a file):{lines}"
    )
}

/// Reads the results of cargo-mutants from `folder`. Returns true if no mutant survived, and prints
/// the survivors. A hanging test counts as failing.
fn judge(folder: &Path) -> Result<bool> {
    let path = folder.join("missed.txt");
    let missed =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    for name in missed.lines() {
        println!(
            "mutants: NO TEST FAILS WITH {name}: write a test, or list the mutant in \
             xtask/mutants/known.txt with a reason"
        );
    }
    Ok(missed.is_empty())
}

/// Parses `groups.txt`. A line without indentation begins a group. Each indented line below has a
/// key and the key's values for this group.
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
        self.words("package")
            .first()
            .expect("every group in xtask/mutants/groups.txt must have a package")
    }

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
    fn no_mutant_may_survive() {
        let folder = tempfile::tempdir().unwrap();
        let verdict = |missed: &str| {
            fs::write(folder.path().join("missed.txt"), missed).unwrap();
            judge(folder.path()).unwrap()
        };
        assert!(verdict(""));
        assert!(!verdict("a.rs:1:2: replace f with ()\n"));
        assert!(judge(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn an_entry_without_a_mutant_is_named_with_its_list() {
        let key = MutantKey("a.rs: replace f with ()".into());
        let text = gone_text("short", &[&key]);
        assert!(text.starts_with("xtask/mutants/short.txt lists mutants that"), "{text}");
        assert!(text.ends_with("\n  a.rs: replace f with ()"), "{text}");
    }
}

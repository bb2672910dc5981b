//! Paths of the programs under test: those beside the running test, and no older than the source.
//!
//! Cargo does not build another package's binary for an integration test, so a test run alone would
//! find no program, or an old one. A program is built once per test process if it is missing or
//! older than a source file; `MILLRACE_BIN` and `MILLRACE_LAB_BIN` name others instead. Called by
//! `Daemon` and by tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use crate::process::run_within;

/// A build from nothing, optimised, on a slow machine.
const BUILD_TIMEOUT: Duration = Duration::from_secs(900);

/// The daemon and its client.
pub static MILLRACE: Program = Program {
    name: "millrace",
    package: "millrace-cli",
    variable: "MILLRACE_BIN",
    sources: &["crates"],
    path: OnceLock::new(),
};

/// The laboratory.
pub static MILLRACE_LAB: Program = Program {
    name: "millrace-lab",
    package: "millrace-lab",
    variable: "MILLRACE_LAB_BIN",
    sources: &["crates", "lab"],
    path: OnceLock::new(),
};

/// A program of the workspace.
pub struct Program {
    name: &'static str,
    package: &'static str,
    /// The environment variable that names another one.
    variable: &'static str,
    /// Directories of the workspace that the program is built from.
    sources: &'static [&'static str],
    path: OnceLock<PathBuf>,
}

impl Program {
    /// The path of the program, built if need be.
    pub fn path(&'static self) -> &'static Path {
        self.path.get_or_init(|| match std::env::var_os(self.variable) {
            Some(path) => path.into(),
            None => self.locate(),
        })
    }

    fn locate(&self) -> PathBuf {
        let test = std::env::current_exe().expect("Linux knows the path of a running program");
        let profile_dir = profile_dir(&test).to_owned();
        let binary = profile_dir.join(self.name);
        if !is_fresh(&binary, &workspace(), self.sources) {
            self.build(&profile_dir);
            assert!(binary.exists(), "cargo built no {}; set {}", binary.display(), self.variable);
        }
        binary
    }

    fn build(&self, profile_dir: &Path) {
        let target_dir = profile_dir.parent().expect("a profile lies in the target directory");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--package", self.package, "--bin", self.name, "--target-dir"]);
        cargo.arg(target_dir).current_dir(workspace());
        if !profile_dir.ends_with("debug") {
            cargo.arg("--profile").arg(profile_dir.file_name().expect("a profile has a name"));
        }
        let output = run_within(&mut cargo, BUILD_TIMEOUT);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cannot build {}:\n{errors}", self.name);
    }
}

/// `target/debug` for the test `target/debug/deps/name-hash`, and for an example.
fn profile_dir(test: &Path) -> &Path {
    let dir = test.parent().expect("a program lies in a directory");
    match dir.ends_with("deps") || dir.ends_with("examples") {
        true => dir.parent().expect("both lie in the directory of their profile"),
        false => dir,
    }
}

fn workspace() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().expect("this crate lies in the workspace").to_owned()
}

fn is_fresh(binary: &Path, workspace: &Path, sources: &[&str]) -> bool {
    let Some(built) = modified(binary) else {
        return false;
    };
    let manifest = modified(&workspace.join("Cargo.toml"));
    let has_newer = |folder: &&str| has_newer(&workspace.join(folder), built);
    manifest.is_some_and(|time| time <= built) && !sources.iter().any(has_newer)
}

/// Did a source file or manifest below `dir` change after `time`? Tests do not count.
fn has_newer(dir: &Path, time: SystemTime) -> bool {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        if path.is_dir() {
            return !path.ends_with("tests") && !path.ends_with("target") && has_newer(&path, time);
        }
        let is_source = path.extension().is_some_and(|end| end == "rs" || end == "toml");
        is_source && modified(&path).is_some_and(|changed| changed > time)
    })
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_directory_is_the_one_above_deps_and_examples() {
        assert_eq!(profile_dir(Path::new("/t/debug/deps/a-1")), Path::new("/t/debug"));
        assert_eq!(profile_dir(Path::new("/t/debug/examples/a")), Path::new("/t/debug"));
        assert_eq!(profile_dir(Path::new("/t/release/a")), Path::new("/t/release"));
    }

    #[test]
    fn a_binary_is_stale_when_missing_or_older_than_a_source_file() {
        let dir = crate::tempdir();
        let source = dir.path().join("crates/a/src/lib.rs");
        fs::create_dir_all(source.parent().unwrap()).unwrap();
        fs::write(dir.path().join("Cargo.toml"), "").unwrap();
        fs::write(&source, "").unwrap();
        let binary = dir.path().join("millrace");
        assert!(!is_fresh(&binary, dir.path(), &["crates"]));
        fs::write(&binary, "").unwrap();
        assert!(is_fresh(&binary, dir.path(), &["crates"]));
        assert!(is_fresh(&binary, dir.path(), &["crates", "lab"]));
        let later = SystemTime::now() + Duration::from_secs(60);
        fs::File::open(&source).unwrap().set_modified(later).unwrap();
        assert!(!is_fresh(&binary, dir.path(), &["crates"]));
    }
}

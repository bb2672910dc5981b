//! `cargo xtask deb`: builds a Debian package of the program, with profile `dist`.
//!
//! Generates the files that are not in the repository: the program, completions and manual pages
//! (manual.rs generates the page of the configuration). cargo-deb packs these files, and the
//! documents, units and scripts that crates/cli/Cargo.toml lists, into a package in `target/deb`.
//! The command does not need root. `main` calls this file, which runs cargo, the program, gzip and
//! cargo-deb.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

mod manual;

const REFERENCE: [&str; 2] = ["docs/configuration.md", "docs/test-drives.md"];

/// Packs `binary`; with `None`, builds the program first. Returns true if the package was created.
pub fn run(root: &Path, binary: Option<&str>) -> Result<bool> {
    if Command::new("cargo-deb").arg("--version").output().is_err() {
        bail!("cargo-deb is missing; install it with: cargo install cargo-deb --locked");
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let program = target.join("dist/millrace");
    let folder = target.join("dist/deb");
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    if let Some(path) = binary {
        fs::copy(path, &program).with_context(|| format!("cannot copy {path}"))?;
    } else {
        let mut cargo = Command::new("cargo");
        cargo.args(["build", "--profile", "dist", "--package", "millrace-cli"]);
        must_succeed(cargo.current_dir(root))?;
    }
    generate(root, &program, &folder)?;
    let mut cargo = Command::new("cargo-deb");
    cargo.args(["--package", "millrace-cli", "--profile", "dist", "--no-build", "--strip"]);
    must_succeed(cargo.arg("--output").arg(target.join("deb/")).current_dir(root))?;
    Ok(true)
}

fn generate(root: &Path, program: &Path, folder: &Path) -> Result<()> {
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(program).args(["completions", shell]).output();
        let script = output.context("cannot run the program")?.stdout;
        fs::write(folder.join(format!("millrace.{shell}")), script)?;
    }
    must_succeed(Command::new(program).arg("man").arg(folder))?;
    let mut reference = String::new();
    for name in REFERENCE {
        reference.push_str(&fs::read_to_string(root.join(name)).context(name)?);
    }
    let page = manual::ManualPage {
        name: "millrace.toml",
        section: 5,
        about: "configuration of millrace serve",
        version: env!("CARGO_PKG_VERSION"),
    };
    fs::write(folder.join("millrace.toml.5"), manual::render(&page, &reference))?;
    let pages = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let pages = pages.filter(|file| file.extension().is_some_and(|end| end == "1" || end == "5"));
    must_succeed(Command::new("gzip").args(["-9", "-n"]).args(pages))
}

fn must_succeed(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("{name}: cannot start; install it"))?;
    if !status.success() {
        bail!("{name} failed: see above");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_package_is_in_the_repository() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/cli");
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let assets =
            manifest.lines().filter_map(|line| line.trim().strip_prefix("[\"")?.split('"').next());
        let files: Vec<&str> = assets.filter(|file| !file.starts_with("target/")).collect();
        assert!(files.len() > 9, "{files:?}");
        for file in files.iter().map(|file| file.trim_end_matches("*.md")) {
            assert!(folder.join(file).exists(), "{file}");
        }
    }
}

//! Rule: README.md is there, and ARCHITECTURE.md is short and gives a reason for every dependency.
//!
//! A dependency of `[workspace.dependencies]` that the document does not name has no stated reason.
//! The block layer's own crates are not dependencies in this sense. Called by `tidy::run`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::Finding;
use super::source::{has_word, numbered};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const ARCHITECTURE_LINES_MAX: usize = 300;
const OWN_CRATES: &str = "millrace";

/// Checks the documents at the root of the repository.
///
/// # Errors
///
/// When `Cargo.toml` cannot be read.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    if !root.join("README.md").exists() {
        let message = "missing; write what it is, two commands, a tour";
        findings.push(Finding::new("README.md", 1, message));
    }
    if let Ok(text) = fs::read_to_string(root.join(ARCHITECTURE)) {
        let manifest = fs::read_to_string(root.join("Cargo.toml"))
            .context("cannot read the workspace's Cargo.toml")?;
        findings.extend(check_architecture(&text, &manifest));
    }
    Ok(findings)
}

/// Checks the text of the document against the manifest of the workspace.
fn check_architecture(text: &str, manifest: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if lines > ARCHITECTURE_LINES_MAX {
        let message = format!("{lines} lines; keep it within {ARCHITECTURE_LINES_MAX}");
        findings.push(Finding::new(ARCHITECTURE, ARCHITECTURE_LINES_MAX + 1, message));
    }
    for (line, name) in dependencies(manifest) {
        if !text.lines().any(|text| has_word(text, name)) {
            let message = format!("{ARCHITECTURE} does not say why `{name}`; add a line");
            findings.push(Finding::new("Cargo.toml", line, message));
        }
    }
    findings
}

/// Names in `[workspace.dependencies]` with their lines, without this workspace's own crates.
fn dependencies(manifest: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut inside = false;
    numbered(manifest).filter_map(move |(line, text)| {
        if text.starts_with('[') {
            inside = text.trim_end() == "[workspace.dependencies]";
            return None;
        }
        let is_key = inside && text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let name = text.split(['=', '.', ' ']).next().filter(|_| is_key)?;
        (!name.starts_with(OWN_CRATES)).then_some((line, name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[workspace]\nresolver = \"3\"\n[workspace.dependencies]\n\
                            millrace-block = { path = \"x\" }\nlibc = \"0.2\"\nio-uring.version = \"0.7\"\n\
                            [profile.dev]\nopt-level = 1\n";

    #[test]
    fn a_short_document_that_names_every_dependency_passes() {
        assert_eq!(check_architecture("- `libc`: calls.\n- `io-uring`: rings.\n", MANIFEST), []);
    }

    #[test]
    fn a_dependency_without_a_reason_and_a_long_document_fail() {
        let found = check_architecture("- `libc`: calls.\n", MANIFEST);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].line), ("Cargo.toml", 6));
        let long = "libc io-uring\n".repeat(301);
        assert_eq!(check_architecture(&long, MANIFEST)[0].line, 301);
    }
}

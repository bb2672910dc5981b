//! Rule: README.md, CONTRIBUTING.md and ARCHITECTURE.md are short, and the last gives a reason for
//! every dependency and names only functions that exist (`walk_table`).
//!
//! README.md and CONTRIBUTING.md have a maximum number of lines, ARCHITECTURE.md a maximum number
//! of words. The lines of CONTRIBUTING.md and ARCHITECTURE.md have a maximum width, too, so that an
//! editor shows them whole. Each dependency of `[workspace.dependencies]` must be named in
//! ARCHITECTURE.md, except the workspace's own crates.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::source::{Source, has_word, numbered};
use super::{Finding, walk_table};

const README: &str = "README.md";
const README_LINES_MAX: usize = 150;
const ARCHITECTURE: &str = "ARCHITECTURE.md";
const ARCHITECTURE_WORDS_MAX: usize = 4000;
const CONTRIBUTING: &str = "CONTRIBUTING.md";
const CONTRIBUTING_LINES_MAX: usize = 90;
const COLUMNS_MAX: usize = 120;
const OWN_CRATES: &str = "millrace";

pub fn check(root: &Path, sources: &[Source]) -> Result<Vec<Finding>> {
    let mut findings = Vec::new();
    match fs::read_to_string(root.join(README)) {
        Ok(text) => findings.extend(check_length(README, &text, README_LINES_MAX)),
        Err(_) => {
            let message = "the file is missing; write what millrace is, two commands, and a tour";
            findings.push(Finding::new(README, 1, message));
        }
    }
    if let Ok(text) = fs::read_to_string(root.join(CONTRIBUTING)) {
        findings.extend(check_length(CONTRIBUTING, &text, CONTRIBUTING_LINES_MAX));
        findings.extend(check_columns(CONTRIBUTING, &text));
    }
    if let Ok(text) = fs::read_to_string(root.join(ARCHITECTURE)) {
        let manifest = fs::read_to_string(root.join("Cargo.toml"))
            .context("cannot read the workspace's Cargo.toml")?;
        findings.extend(check_architecture(&text, &manifest));
        findings.extend(walk_table::check(ARCHITECTURE, &text, sources));
    }
    Ok(findings)
}

fn check_architecture(text: &str, manifest: &str) -> Vec<Finding> {
    let mut findings = check_columns(ARCHITECTURE, text);
    // Words are counted like `wc -w` does.
    let words = text.split_whitespace().count();
    if words > ARCHITECTURE_WORDS_MAX {
        let message =
            format!("{words} words; shorten it to {ARCHITECTURE_WORDS_MAX}, or use docs/");
        findings.push(Finding::new(ARCHITECTURE, 1, message));
    }
    for (line, name) in dependencies(manifest) {
        if !text.lines().any(|text| has_word(text, name)) {
            let message = format!("{ARCHITECTURE} does not give a reason for `{name}`; add a line");
            findings.push(Finding::new("Cargo.toml", line, message));
        }
    }
    findings
}

fn check_length(name: &str, text: &str, lines_max: usize) -> Option<Finding> {
    let lines = text.lines().count();
    let message = format!("{lines} lines; shorten it to {lines_max}, and move the rest to docs/");
    (lines > lines_max).then(|| Finding::new(name, lines_max + 1, message))
}

fn check_columns(name: &str, text: &str) -> Vec<Finding> {
    let widths = numbered(text).map(|(line, content)| (line, content.chars().count()));
    let wide = widths.filter(|(_, columns)| *columns > COLUMNS_MAX);
    wide.map(|(line, columns)| {
        let message = format!("{columns} columns; wrap it at {COLUMNS_MAX}, or shorten the cells");
        Finding::new(name, line, message)
    })
    .collect()
}

/// Iterates over the names in `[workspace.dependencies]` with their line numbers. Leaves out this
/// workspace's own crates.
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
    fn a_readme_that_is_too_long_fails() {
        assert_eq!(check_length(README, &"x\n".repeat(README_LINES_MAX), README_LINES_MAX), None);
        let found = check_length(README, &"x\n".repeat(151), README_LINES_MAX).unwrap();
        assert_eq!((found.path.as_str(), found.line), ("README.md", 151));
    }

    #[test]
    fn dependency_without_reason_long_document_and_long_line_fail() {
        let found = check_architecture("- `libc`: calls.\n", MANIFEST);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].line), ("Cargo.toml", 6));
        let long = "libc io-uring\n".repeat(ARCHITECTURE_WORDS_MAX / 2);
        assert_eq!(check_architecture(&long, MANIFEST), []);
        let found = check_architecture(&format!("{long}more\n"), MANIFEST);
        assert!(found[0].to_string().contains("4001 words"), "{found:?}");
        let wide = format!("libc io-uring\n{}\n", "x".repeat(COLUMNS_MAX + 1));
        assert_eq!(check_architecture(&wide, MANIFEST)[0].line, 2);
    }
}

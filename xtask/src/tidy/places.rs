//! Rule: no file names a path that exists on one machine only.
//!
//! Home folders, the folder of this checkout and its neighbours mean nothing to other readers, and
//! a script that uses them works only on one machine. `xtask/allow/forbidden.txt` lists further
//! words, one per line. Binary files and those over 1 MiB are skipped.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::source::numbered;
use super::{Finding, relative, walk};

const LIST: &str = "xtask/allow/forbidden.txt";
const FILE_BYTES_MAX: u64 = 1 << 20;

pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let list =
        fs::read_to_string(root.join(LIST)).with_context(|| format!("cannot read {LIST}"))?;
    let mut words: Vec<String> = list
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(Into::into)
        .collect();
    words.extend(neighbours(root));

    let mut findings = Vec::new();
    let mut visit = |path: &Path| {
        let name = relative(root, path);
        let small = fs::metadata(path).is_ok_and(|meta| meta.len() <= FILE_BYTES_MAX);
        if name != LIST
            && small
            && let Ok(text) = fs::read_to_string(path)
        {
            findings.extend(check_text(&name, &text, &words));
        }
        Ok(())
    };
    walk(root, &mut visit)?;
    let ci = root.join(".ci");
    if ci.is_dir() {
        walk(&ci, &mut visit)?;
    }
    Ok(findings)
}

/// Checks one file. A forbidden word that is part of a longer name or path does not count.
fn check_text(path: &str, text: &str, words: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, content) in numbered(text) {
        for word in words {
            let stands = content.match_indices(word.as_str()).any(|(at, _)| {
                let joins = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '}');
                !content[..at].ends_with(joins)
                    && (word.ends_with('/') || !content[at + word.len()..].starts_with(joins))
            });
            if stands {
                let message =
                    format!("names {word}, which exists on one machine only; use a general name");
                findings.push(Finding::new(path, line, message));
            }
        }
    }
    findings
}

/// Returns the folder of the checkout and the folders beside it. Returns nothing if the parent is a
/// common folder such as /tmp.
fn neighbours(root: &Path) -> Vec<String> {
    let Some(parent) = root.parent().filter(|parent| is_of_one_project(parent)) else {
        return Vec::new();
    };
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let folders = entries.map(|entry| entry.path()).filter(|path| path.is_dir());
    folders.map(|path: PathBuf| path.to_string_lossy().into_owned()).collect()
}

fn is_of_one_project(parent: &Path) -> bool {
    let shared = ["/", "/tmp", "/var/tmp", "/home", "/opt", "/srv", "/usr", "/var", "/usr/local"];
    parent != std::env::temp_dir() && !shared.iter().any(|path| parent == Path::new(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str, words: &[&str]) -> Vec<usize> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        check_text("a.md", text, &words).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn paths_that_every_machine_has_pass() {
        assert_eq!(
            lines("/etc/fstab\nsrc/den/a\n/disk/abc\n", &["/den/", "/disk/a"]),
            [0_usize; 0]
        );
    }

    #[test]
    fn paths_of_one_machine_fail() {
        assert_eq!(lines("a\nsee /den/me/x\nat /disk/a.\n", &["/den/", "/disk/a "]), [2]);
        assert_eq!(lines("in `/disk/a/b`\n", &["/disk/a"]), [1]);
    }

    #[test]
    fn a_checkout_among_unrelated_folders_forbids_none_of_them() {
        assert!(neighbours(Path::new("/tmp/clone")).is_empty());
        assert!(neighbours(Path::new("/")).is_empty());
    }
}

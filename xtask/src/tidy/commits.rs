//! Rule: a commit's subject has at most 72 characters, and its body is not empty.
//!
//! Checks the newest commits after `SINCE`, except merges. A checkout without history, or without
//! git, passes. Called by `tidy::run`.

use std::path::Path;
use std::process::Command;

use super::Finding;

/// Commits before this day are not checked.
const SINCE: &str = "2026-11-23T00:00:00Z";
/// Option of `git log` that limits the number of commits, newest first.
const NEWEST: &str = "-50";
const SUBJECT_MAX: usize = 72;
/// Separators of `git log` output: between the parts of a commit, and after each commit.
const PART: char = '\u{1f}';
const END: char = '\u{1e}';

/// Checks the newest commits of the checkout at `root`.
pub fn check(root: &Path) -> Vec<Finding> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["log", "--no-merges", NEWEST, "--since", SINCE]);
    match git.arg(format!("--format=%h{PART}%s{PART}%b{END}")).output() {
        Ok(output) if output.status.success() => {
            check_log(&String::from_utf8_lossy(&output.stdout))
        }
        _ => Vec::new(),
    }
}

/// Checks commits in the format that `check` asks `git log` for.
fn check_log(log: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for commit in log.split(END) {
        let mut parts = commit.trim_start().splitn(3, PART);
        let (Some(id), Some(subject), Some(body)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let path = format!("commit {id}");
        let length = subject.chars().count();
        if length > SUBJECT_MAX {
            let message =
                format!("the subject has {length} characters; at most {SUBJECT_MAX} are allowed");
            findings.push(Finding::new(&path, 1, message));
        }
        if body.trim().is_empty() {
            findings.push(Finding::new(&path, 1, "no body; describe the problem and the reason"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_subject_with_a_reason_passes_and_no_history_too() {
        let log = format!("abc{PART}a: {}{PART}Why.\n{END}\n", "b".repeat(69));
        assert_eq!(check_log(&log), []);
        assert_eq!(check_log(""), []);
        assert_eq!(check(Path::new("/nowhere")), []);
    }

    #[test]
    fn a_long_subject_and_an_empty_body_fail() {
        let log =
            format!("abc{PART}a: {}{PART}Why.{END}\ndef{PART}a: b{PART}\n{END}\n", "b".repeat(70));
        let found: Vec<String> = check_log(&log).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "commit abc:1: the subject has 73 characters; at most 72 are allowed",
                "commit def:1: no body; describe the problem and the reason"
            ]
        );
    }
}

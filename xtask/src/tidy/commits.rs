//! Rule: a commit's subject is `area: verb ...`, and its body is not empty.
//!
//! The verb is one of `xtask/verbs.txt`, and the subject has at most 72 characters. Checks the
//! newest commits after `SINCE`, except merges. A checkout without history, or without git, passes.

use std::path::Path;
use std::process::Command;

use super::Finding;

const SINCE: &str = "2026-11-29T16:00:00Z";
const VERBS: &str = include_str!("../../verbs.txt");
/// Option of `git log` that limits the number of commits, newest first.
const NEWEST: &str = "-50";
const SUBJECT_MAX: usize = 72;
/// Separators in the output of `git log`: between the fields of a commit, and after each commit.
const PART: char = '\u{1f}';
const END: char = '\u{1e}';

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

fn check_log(log: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for commit in log.split(END) {
        let mut parts = commit.trim_start().splitn(3, PART);
        let (Some(id), Some(subject), Some(body)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let mut fail = |message: String| {
            findings.push(Finding::new(&format!("commit {id}"), 1, message));
        };
        let length = subject.chars().count();
        if length > SUBJECT_MAX {
            fail(format!("the subject has {length} characters; at most {SUBJECT_MAX} are allowed"));
        }
        let action = subject.split_once(": ").map_or("", |(_, action)| action);
        let verb = action.split(' ').next().unwrap_or_default();
        if !is_verb(verb) {
            fail(format!(
                "`{verb}` is no verb of xtask/verbs.txt; write `area: verb ...` in the imperative, \
                 such as `block: bound the queue` (git commit --amend), or list the verb"
            ));
        }
        if body.trim().is_empty() {
            fail("no body; describe the problem and the reason".to_owned());
        }
    }
    findings
}

fn is_verb(word: &str) -> bool {
    let lines = VERBS.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(str::split_whitespace).any(|verb| verb == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_subject_with_verb_and_reason_passes_and_no_history_too() {
        let log = format!("abc{PART}a: add {}{PART}Why.\n{END}\n", "b".repeat(65));
        assert_eq!(check_log(&log), []);
        assert_eq!(check_log(""), []);
        assert_eq!(check(Path::new("/nowhere")), []);
    }

    #[test]
    fn a_long_subject_without_a_verb_and_an_empty_body_fail() {
        let long = "b".repeat(65);
        let log = format!(
            "abc{PART}a: add {long}b{PART}Why.{END}\ndef{PART}a, b: added c{PART}Why.{END}\n\
             123{PART}add c{PART}Why.{END}\n456{PART}a: add b{PART}\n{END}\n"
        );
        let found: Vec<String> = check_log(&log).iter().map(ToString::to_string).collect();
        let starts = [
            "commit abc:1: the subject has 73 characters; at most 72 are allowed",
            "commit def:1: `added` is no verb of xtask/verbs.txt; write",
            "commit 123:1: `` is no verb of xtask/verbs.txt; write",
            "commit 456:1: no body; describe the problem and the reason",
        ];
        assert_eq!(found.len(), starts.len(), "{found:?}");
        assert!(starts.iter().zip(&found).all(|(start, found)| found.starts_with(start)));
    }
}

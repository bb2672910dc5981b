//! Rule: what may not stand in a finished file. `unwrap()` outside tests, unfinished code, and
//! notes of work to do that name no issue.
//!
//! `expect("why it holds")` may stand: it says why. Called by `tidy::run`.

use super::Finding;
use super::source::{Source, find_word, numbered};

const UNFINISHED: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];
const NOTES: [&str; 2] = ["TODO", "FIXME"];

/// Checks every line of one file.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, code) in source.product_code() {
        if code.contains(".unwrap()") {
            let message =
                "`unwrap()` outside tests; return the error, or `expect(\"why it holds\")`";
            findings.push(Finding::new(&source.path, line, message));
        }
    }
    for (line, code) in numbered(&source.code) {
        for name in UNFINISHED {
            if find_word(code, name).next().is_some() {
                let message = format!("`{name}` is not finished code; write it or leave it out");
                findings.push(Finding::new(&source.path, line, message));
            }
        }
    }
    for (line, comment) in numbered(&source.comments) {
        for note in NOTES {
            if find_word(comment, note).any(|at| !names_issue(&comment[at..])) {
                let message = format!("{note} without an issue; write TODO(#123), or do it now");
                findings.push(Finding::new(&source.path, line, message));
            }
        }
    }
    findings
}

/// Whether the note reads `TODO(#123)`, the one form allowed.
fn names_issue(note: &str) -> bool {
    let number = note.strip_prefix("TODO(#").and_then(|rest| rest.split_once(')'));
    number.is_some_and(|(digits, _)| {
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        check(&Source::parse("a.rs", text)).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn tests_docs_and_strings_may_say_what_code_may_not() {
        let text = "/// `x.unwrap()`\nfn f() { g(\"todo!()\"); h.expect(\"set above\"); }\n\
                    #[cfg(test)]\nmod tests { fn g() { h.unwrap(); } }\n// TODO(#12): more\n";
        assert_eq!(lines(text), [0_usize; 0]);
    }

    #[test]
    fn unwrap_unfinished_code_and_loose_notes_fail() {
        let text = "fn f() { g.unwrap(); }\nfn g() { todo!() }\nfn h() { dbg!(1); }\n\
                    // FIXME(#1): x\n// TODO: y\n// TODO(#x)\n";
        assert_eq!(lines(text), [1, 2, 3, 4, 5, 6]);
    }
}

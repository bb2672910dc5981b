//! Rule: a finished file has no `unwrap()` outside tests, no unfinished code, and no notes of work
//! to do without an issue number.
//!
//! `expect("why it holds")` is allowed, because it gives the reason. Called by `tidy::run`.

use super::Finding;
use super::source::{Source, find_word, numbered};

const UNFINISHED: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];
const NOTES: [&str; 2] = ["TODO", "FIXME"];

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
                let message = format!("`{name}` marks unfinished code; finish it or remove it");
                findings.push(Finding::new(&source.path, line, message));
            }
        }
    }
    for (line, comment) in numbered(&source.comments) {
        for note in NOTES {
            if find_word(comment, note).any(|at| !names_issue(&comment[at..])) {
                let message =
                    format!("{note} without an issue number; write TODO(#123), or do the work now");
                findings.push(Finding::new(&source.path, line, message));
            }
        }
    }
    findings
}

/// Returns true for the only allowed form, `TODO(#123)`.
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

//! Rule: text is ASCII without tabs and trailing white space, lines have at most 100 columns, and
//! notes of work to do have an issue number.
//!
//! A line may be wider if the part past the limit is a URL or a string literal, which rustfmt does
//! not break either.

use super::Finding;
use super::source::{Source, find_word, numbered};

const WIDTH_MAX: usize = 100;
const NOTES: [&str; 2] = ["TODO", "FIXME"];

pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let views = source.strings.lines().zip(source.comments.lines());
    for ((line, text), (strings, comment)) in numbered(&source.text).zip(views) {
        let mut fail = |message: String| findings.push(Finding::new(&source.path, line, message));
        if let Some(odd) = text.chars().find(|c| !c.is_ascii()) {
            let code = u32::from(odd);
            fail(format!(
                "character U+{code:04X} is not ASCII; use ASCII, or \\u{{..}} in a string"
            ));
        }
        if text.contains('\t') {
            fail("tab; indent with spaces, and write \\t in strings".to_owned());
        }
        if text.ends_with(char::is_whitespace) {
            fail("trailing white space; delete it".to_owned());
        }
        for note in NOTES {
            if find_word(comment, note).any(|at| !comment[at + note.len()..].starts_with("(#")) {
                fail(format!("{note} without an issue number; write TODO(#123), or do it now"));
            }
        }
        let width = text.chars().count();
        if width > WIDTH_MAX && !text.contains("://") && !is_string_at_limit(strings) {
            fail(format!("{width} columns; break the line at {WIDTH_MAX}"));
        }
    }
    if !source.text.is_empty() && !source.text.ends_with('\n') {
        let last = source.text.lines().count();
        findings.push(Finding::new(&source.path, last, "no newline at the end; add one"));
    }
    findings
}

fn is_string_at_limit(strings: &str) -> bool {
    let filled = |at: usize| strings.as_bytes().get(at).is_some_and(|byte| *byte != b' ');
    (WIDTH_MAX - 1..=WIDTH_MAX + 1).any(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let source = Source::parse("a.rs", text);
        check(&source).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn plain_text_long_addresses_and_long_strings_pass() {
        assert!(messages("fn f() {} // TODO(#12): more\nfn todo() { g(\"TODO\") }\n").is_empty());
        assert!(messages(&format!("// https://x.org/{}\n", "a".repeat(120))).is_empty());
        assert!(messages(&format!("const A: &str = \"{}\";\n", "a".repeat(120))).is_empty());
    }

    #[test]
    fn each_defect_of_a_line_fails() {
        assert!(messages("// caf\u{e9}\n")[0].starts_with("character U+00E9"));
        assert!(messages("// FIXME: x\n")[0].starts_with("FIXME without"));
        assert!(messages("\tfn f() {}\n")[0].starts_with("tab"));
        assert!(messages("fn f() {} \n")[0].starts_with("trailing"));
        assert!(messages(&format!("// {}\n", "a ".repeat(49) + "bcd"))[0].starts_with("104 col"));
        assert!(messages("fn f() {}")[0].starts_with("no newline"));
    }
}

//! Rule: a test's name is a short sentence of at most 60 letters.
//!
//! Nobody reads a long name in the output of a failed run, and its details become wrong when the
//! test changes; details belong in the assertions. Underscores count as letters.

use super::Finding;
use super::source::{Source, numbered};

const LETTERS_MAX: usize = 60;

/// Finds tests by `#[test]` in the text, because the syntax tree does not show tests inside
/// `proptest!`.
pub fn check(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut is_test = false;
    for (line, code) in numbered(&source.code) {
        is_test |= code.trim() == "#[test]";
        let Some((_, rest)) = code.split_once("fn ").filter(|_| is_test) else { continue };
        is_test = false;
        let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
        if end > LETTERS_MAX {
            let message = format!(
                "the test's name has {end} letters; say in at most {LETTERS_MAX} what must hold, \
                 and leave details to its assertions"
            );
            findings.push(Finding::new(&source.path, line, message));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_tests_have_a_limit() {
        let text = |letters: usize| {
            let name = "n".repeat(letters);
            format!("fn {name}x() {{}}\n#[test]\n#[ignore]\nfn {name}() {{ fn {name}x() {{}} }}\n")
        };
        let lines = |letters| -> Vec<usize> {
            let found = check(&Source::parse("a.rs", &text(letters)));
            found.iter().map(|finding| finding.line).collect()
        };
        assert_eq!(lines(60), [0_usize; 0]);
        assert_eq!(lines(61), [4]);
    }
}

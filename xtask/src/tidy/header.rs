//! Rule: every Rust file opens with a `//!` header that describes the file.
//!
//! A file of more than 30 lines needs at least three header lines. A smaller file, or a file of
//! tests only, needs one. At most 25 are allowed, not counting examples: longer texts belong in
//! ARCHITECTURE.md.

use super::Finding;
use super::source::Source;

const TRIVIAL_LINES_MAX: usize = 30;
const HEADER_LINES_MIN: usize = 3;
const HEADER_LINES_MAX: usize = 25;

pub fn check(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().take_while(|line| line.starts_with("//!"));
    let prose = lines.take_while(|line| !line.starts_with("//! # Example"));
    let header = prose.count();
    let tests = source.path.contains("/tests/") || source.path.ends_with("tests.rs");
    let trivial = tests || source.text.lines().count() <= TRIVIAL_LINES_MAX;
    let least = if trivial { 1 } else { HEADER_LINES_MIN };
    let message = if header == 0 {
        "no module header; begin the file with `//!` lines: what it is, what it owns, who calls it"
            .to_owned()
    } else if header < least {
        format!("module header of {header} lines; write {least} or more: what it is, owns, calls")
    } else if header > HEADER_LINES_MAX {
        format!("module header of {header} lines; keep it within {HEADER_LINES_MAX}")
    } else {
        return Vec::new();
    };
    vec![Finding::new(&source.path, 1, message)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(header: usize, rest: usize) -> usize {
        let text = "//! Words.\n".repeat(header) + &"// x\n".repeat(rest);
        check(&Source::parse("crates/a/src/lib.rs", &text)).len()
    }

    #[test]
    fn a_header_of_three_to_twenty_five_lines_passes() {
        assert_eq!([count(3, 100), count(25, 100), count(1, 10)], [0, 0, 0]);
    }

    #[test]
    fn a_missing_short_or_endless_header_fails() {
        assert_eq!([count(0, 1), count(2, 100), count(26, 100)], [1, 1, 1]);
        let late = Source::parse("a.rs", "#![no_std]\n//! Late.\n");
        assert_eq!(check(&late).len(), 1);
    }
}

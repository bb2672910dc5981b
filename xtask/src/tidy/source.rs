//! `Source`: a Rust file as the rules see it, with its text, its code without comments, and its
//! comments without code.
//!
//! Each view has the same lines and columns as the text, with everything else blanked, so a rule
//! about code cannot be misled by a string or a comment. `outline` holds the facts
//! from the syntax tree.

mod lexer;
mod outline;

use proc_macro2::TokenStream;

pub use outline::{Item, Outline};

#[derive(Debug, Default)]
pub struct Source {
    /// Path from the root of the repository, with `/` as separator.
    pub path: String,
    pub text: String,
    /// Text in which comments, string literals and character literals are replaced by blanks.
    pub code: String,
    /// Text with everything but comments blanked.
    pub comments: String,
    /// Text with everything but string literals blanked.
    pub strings: String,
    pub outline: Outline,
    pub parse_error: Option<(usize, String)>,
}

impl Source {
    pub fn parse(path: &str, text: &str) -> Self {
        let tokens = text.parse::<TokenStream>().map_err(syn::Error::from);
        let views = tokens.clone().map(|tokens| lexer::split(text, tokens)).unwrap_or_default();
        let mut source = Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: views.code,
            comments: views.comments,
            strings: views.strings,
            ..Self::default()
        };
        match tokens.and_then(syn::parse2) {
            Ok(file) => source.outline = outline::of(&file),
            Err(error) => {
                source.parse_error = Some((error.span().start().line, error.to_string()));
            }
        }
        source.outline.all_test |= is_test_path(path);
        source
    }

    /// Returns true if line `line` (from 1) is only compiled for tests.
    pub fn is_test(&self, line: usize) -> bool {
        self.outline.all_test
            || self.outline.test_lines.iter().any(|&(first, last)| first <= line && line <= last)
    }

    pub fn crate_path(&self) -> &str {
        let is_group = self.path.starts_with("crates/") || self.path.starts_with("lab/");
        let depth = if is_group { 2 } else { 1 };
        let end = self.path.match_indices('/').nth(depth - 1).map_or(self.path.len(), |(at, _)| at);
        &self.path[..end]
    }

    pub fn items(&self) -> impl Iterator<Item = &Item> {
        self.outline.items.iter().filter(|item| !self.is_test(item.line))
    }

    pub fn line_count(&self) -> usize {
        (1..=self.text.lines().count()).filter(|&line| !self.is_test(line)).count()
    }

    /// Iterates over the lines of code outside tests, with their numbers from 1.
    pub fn product_code(&self) -> impl Iterator<Item = (usize, &str)> {
        numbered(&self.code).filter(|&(line, _)| !self.is_test(line))
    }

    /// Returns the comments on line `line` and on the `reach` lines above. A block of comment lines
    /// that begins earlier is included from its start.
    pub fn comment_above(&self, line: usize, reach: usize) -> String {
        let comments: Vec<&str> = self.comments.lines().collect();
        let has_comment = |at: usize| comments.get(at - 1).is_some_and(|c| !c.trim().is_empty());
        let mut first = line.saturating_sub(reach).max(1);
        while first > 1 && has_comment(first) && has_comment(first - 1) {
            first -= 1;
        }
        (first..=line).filter_map(|at| comments.get(at - 1).copied()).collect::<Vec<_>>().join("\n")
    }
}

pub fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// Finds `word` in `line` as a whole word; returns byte columns from 0.
pub fn find_word<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let joins = |c: char| c == '_' || c.is_alphanumeric();
    line.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let open = !line[..at].ends_with(joins) || !word.starts_with(joins);
        let close = !line[at + word.len()..].starts_with(joins) || !word.ends_with(joins);
        open && close
    })
}

pub fn has_word(line: &str, word: &str) -> bool {
    find_word(line, word).next().is_some()
}

fn is_test_path(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    parts.next() == Some("tests.rs") || parts.any(|part| part == "tests")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_test_module_are_not_counted() {
        let text = "//! A.\nfn f() {}\n\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        let source = Source::parse("crates/a/src/lib.rs", text);
        assert_eq!(source.line_count(), 3);
        assert!(source.is_test(4) && source.is_test(7) && !source.is_test(2));
    }

    #[test]
    fn files_of_tests_count_nothing() {
        for path in ["crates/a/src/b/tests.rs", "crates/a/tests/x.rs", "tests/src/lib.rs"] {
            assert_eq!(Source::parse(path, "fn f() {}\n").line_count(), 0, "{path}");
        }
        assert_eq!(Source::parse("crates/tests_of/src/lib.rs", "fn f() {}\n").line_count(), 1);
    }

    #[test]
    fn a_comment_block_is_read_from_its_start_however_long() {
        let text = "// one\n// two\n// three\nlet a = 1;\n";
        let source = Source::parse("a.rs", text);
        assert!(source.comment_above(4, 1).contains("one"));
        assert!(!source.comment_above(1, 1).contains("two"));
    }

    #[test]
    fn a_word_is_not_a_part_of_a_name() {
        assert!(has_word("use std::fs;", "std::"));
        assert!(!has_word("use mystd::fs;", "std::"));
        assert!(!has_word("unsafe_op", "unsafe"));
    }

    #[test]
    fn text_that_is_no_rust_says_where() {
        let source = Source::parse("a.rs", "fn f() {}\nfn {\n");
        assert_eq!(source.parse_error.map(|(line, _)| line), Some(2));
    }
}

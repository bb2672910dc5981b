//! Allow-lists: the exceptions to a rule, one a line, in `xtask/allow/*.txt`.
//!
//! An entry is a path and, where the rule has a number, a limit; `#` starts a comment. The rules
//! ask for an entry and report those nobody needed, so that a list can only shrink. Called by
//! `tidy::run` and the rules.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// One exception.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Line in the list, counted from 1.
    pub line: usize,
    /// A path from the root, or `path:name` of an item in it.
    pub key: String,
    /// The number after the key, where the list has them.
    pub limit: Option<usize>,
}

/// The exceptions to one rule.
#[derive(Debug, Clone, Default)]
pub struct AllowList {
    /// Path of the list from the root, for messages.
    pub path: String,
    /// In the order of the file.
    pub entries: Vec<Entry>,
}

impl AllowList {
    /// Reads the list at `path` below `root`; a list that does not exist is empty.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or a line is not an entry.
    pub fn read(root: &Path, path: &str) -> Result<Self> {
        let file = root.join(path);
        if !file.exists() {
            return Ok(Self { path: path.to_owned(), entries: Vec::new() });
        }
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {path}"))?;
        Self::parse(path, &text)
    }

    /// Parses the text of a list.
    ///
    /// # Errors
    ///
    /// When a line is neither `KEY` nor `KEY LIMIT`.
    pub fn parse(path: &str, text: &str) -> Result<Self> {
        let mut entries = Vec::new();
        for (index, full) in text.lines().enumerate() {
            let line = index + 1;
            let content = full.split('#').next().unwrap_or_default();
            let words: Vec<&str> = content.split_whitespace().collect();
            let (key, limit) = match words.as_slice() {
                [] => continue,
                [key] => (*key, None),
                [key, number] => {
                    let number = number.parse().with_context(|| {
                        format!("{path}:{line}: '{number}' is not a number of lines or fields")
                    })?;
                    (*key, Some(number))
                }
                _ => bail!("{path}:{line}: more than a path and a limit; write one entry a line"),
            };
            entries.push(Entry { line, key: key.to_owned(), limit });
        }
        Ok(Self { path: path.to_owned(), entries })
    }

    /// The entry for `key`, if there is one.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.key == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_carry_their_line_and_comments_do_not_count() {
        let list = AllowList::parse("x.txt", "# why\n\ncrates/a.rs 700 # soon\nb.rs\n").unwrap();
        assert_eq!(list.entries.len(), 2);
        assert_eq!(
            list.get("crates/a.rs"),
            Some(&Entry { line: 3, key: "crates/a.rs".to_owned(), limit: Some(700) })
        );
        assert_eq!(list.get("b.rs").unwrap().limit, None);
        assert_eq!(list.get("c.rs"), None);
    }

    #[test]
    fn a_limit_that_is_no_number_is_named_with_its_line() {
        let error = AllowList::parse("x.txt", "a.rs many\n").unwrap_err();
        assert_eq!(error.to_string(), "x.txt:1: 'many' is not a number of lines or fields");
        assert!(AllowList::parse("x.txt", "a.rs 1 2\n").is_err());
    }
}

//! Allow-lists: the exceptions to a rule, one per line, in `xtask/allow/*.txt`.
//!
//! An entry is a key, such as a path. If the rule counts something, a limit follows; `#` starts a
//! comment. An entry that is not needed counts as a violation, so that a list can only shrink. The
//! rules return each violation as an `Excess`, and `AllowList::check` compares the excesses with
//! the list.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::Finding;
use super::source::Source;

pub struct Excess {
    pub key: String,
    /// Amount of the violation: 1, or a count such as the number of lines of a file.
    /// `AllowList::check` adds up `amount` over all `Excess` values with the same key.
    pub amount: usize,
    pub finding: Finding,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowEntry {
    pub line: usize,
    /// Path from the root, or `path:name` for an item in a file.
    pub key: String,
    /// Limit on the sum of `Excess::amount` over all excesses with this `key`. 1 if the entry has
    /// no number.
    pub limit: usize,
}

impl Excess {
    pub fn of_file(source: &Source, line: usize, message: impl Into<String>) -> Excess {
        let finding = Finding::new(&source.path, line, message);
        Excess { key: source.path.clone(), amount: 1, finding }
    }
}

#[derive(Debug, Clone, Default)]
pub struct AllowList {
    pub path: String,
    pub entries: Vec<AllowEntry>,
}

impl AllowList {
    pub fn read(root: &Path, path: &str) -> Result<Self> {
        let text =
            fs::read_to_string(root.join(path)).with_context(|| format!("cannot read {path}"))?;
        Self::parse(path, &text)
    }

    pub fn parse(path: &str, text: &str) -> Result<Self> {
        let mut entries = Vec::new();
        for (index, full) in text.lines().enumerate() {
            let line = index + 1;
            let content = full.split('#').next().unwrap_or_default();
            let words: Vec<&str> = content.split_whitespace().collect();
            let (key, limit) = match words.as_slice() {
                [] => continue,
                [key] => (*key, 1),
                [key, number] => {
                    let wrong =
                        || format!("{path}:{line}: '{number}' is not a number of lines or fields");
                    (*key, number.parse().with_context(wrong)?)
                }
                _ => bail!(
                    "{path}:{line}: more words than a path and a limit; write one entry per line"
                ),
            };
            entries.push(AllowEntry { line, key: key.to_owned(), limit });
        }
        Ok(Self { path: path.to_owned(), entries })
    }

    /// Compares the sum of `Excess::amount` for each key with the key's limit in the list. Returns
    /// the findings of keys whose sum is above the limit, and a finding for each entry of the list
    /// whose limit is above the sum.
    pub fn check(&self, excesses: Vec<Excess>) -> Vec<Finding> {
        let mut sums: BTreeMap<&str, usize> = BTreeMap::new();
        for excess in &excesses {
            *sums.entry(&excess.key).or_default() += excess.amount;
        }
        let allowed = |key: &str| self.get(key).map_or(0, |entry| entry.limit);
        let over =
            excesses.iter().filter(|excess| sums[excess.key.as_str()] > allowed(&excess.key));
        let mut findings: Vec<_> = over.map(|excess| excess.finding.clone()).collect();
        for entry in &self.entries {
            let sum = sums.get(entry.key.as_str()).copied().unwrap_or(0);
            if sum < entry.limit {
                let change = match sum {
                    0 => "is not needed any more; remove the entry".to_owned(),
                    _ => format!("now needs only {sum}; write this number in the entry"),
                };
                let message = format!("{} {change}", entry.key);
                findings.push(Finding::new(&self.path, entry.line, message));
            }
        }
        findings
    }

    pub fn get(&self, key: &str) -> Option<&AllowEntry> {
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
            Some(&AllowEntry { line: 3, key: "crates/a.rs".to_owned(), limit: 700 })
        );
        assert_eq!(list.get("b.rs").unwrap().limit, 1);
        assert_eq!(list.get("c.rs"), None);
    }

    #[test]
    fn sum_over_its_entry_fails_at_each_place_and_under_in_the_list() {
        let list = AllowList::parse("x.txt", "a 2\nb 3\nc\n").unwrap();
        let excess = |key: &str, amount| Excess {
            key: key.to_owned(),
            amount,
            finding: Finding::new(key, 7, "too much"),
        };
        assert_eq!(list.check(vec![excess("a", 2), excess("b", 3), excess("c", 1)]), []);
        let found = list.check(vec![excess("a", 2), excess("a", 1), excess("b", 2)]);
        let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "a:7: too much",
                "a:7: too much",
                "x.txt:2: b now needs only 2; write this number in the entry",
                "x.txt:3: c is not needed any more; remove the entry"
            ]
        );
    }

    #[test]
    fn a_limit_that_is_no_number_is_named_with_its_line() {
        let error = AllowList::parse("x.txt", "a.rs many\n").unwrap_err();
        assert_eq!(error.to_string(), "x.txt:1: 'many' is not a number of lines or fields");
        assert!(AllowList::parse("x.txt", "a.rs 1 2\n").is_err());
    }
}

//! Lists of mutants in `xtask/mutants/*.txt`, one mutant per line, and their conversion from and to
//! the names that cargo-mutants prints.
//!
//! An entry is `path: mutation -- reason`, without line and column, which change with every edit;
//! so one entry stands for all equal mutations of a function. `#` starts a comment. Called by
//! `mutants::run`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Name of a mutant without its line and column: `path: mutation`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MutantKey(pub String);

impl MutantKey {
    /// Makes the key of a mutant from its name as printed by cargo-mutants, which has the form
    /// `path:line:column: mutation`.
    pub fn of(name: &str) -> Option<Self> {
        let (place, mutation) = name.trim().split_once(": ")?;
        let path = place.split(':').next()?;
        Some(Self(format!("{path}: {mutation}")))
    }

    pub fn path(&self) -> &str {
        self.0.split(':').next().unwrap_or_default()
    }

    /// Returns a regular expression that matches exactly the names of these mutants.
    pub fn pattern(&self) -> String {
        let (path, mutation) = self.0.split_once(": ").unwrap_or((&self.0, ""));
        format!("^{}:[0-9]+:[0-9]+: {}$", escaped(path), escaped(mutation))
    }
}

fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        // `<` and `>` stay as they are: with a backslash they would match the ends of a word.
        if r"\.+*?()|[]{}^$".contains(letter) {
            escaped.push('\\');
        }
        escaped.push(letter);
    }
    escaped
}

pub fn read(path: &Path) -> Result<Vec<MutantKey>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("in {}", path.display()))
}

fn parse(text: &str) -> Result<Vec<MutantKey>> {
    let lines = (1..).zip(text.lines().map(str::trim));
    let entries = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let key = |(number, line): (usize, &str)| {
        let entry = line.split_once(" -- ").filter(|(key, _)| key.contains(": "));
        let (key, _reason) = entry
            .with_context(|| format!("line {number}: not 'path: mutation -- reason': {line}"))?;
        Ok(MutantKey(key.to_owned()))
    };
    entries.map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_by_its_entry_on_whatever_line_it_is() {
        let entries =
            parse("# why\n\na/b.rs: replace f -> bool with true -- it is slower\n").unwrap();
        assert_eq!(entries.len(), 1);
        let name = "a/b.rs:7:13: replace f -> bool with true\n";
        assert_eq!(MutantKey::of(name).as_ref(), Some(&entries[0]));
        assert_eq!(entries[0].path(), "a/b.rs");
    }

    #[test]
    fn a_line_without_a_reason_is_an_error_that_names_it() {
        let error = parse("# why\na/b.rs: replace f with ()\n").unwrap_err();
        assert!(error.to_string().starts_with("line 2: "), "{error}");
    }

    #[test]
    fn a_pattern_takes_operators_literally() {
        let key = MutantKey("a/b.rs: replace + with | in A<M>::f".to_owned());
        let pattern = r"^a/b\.rs:[0-9]+:[0-9]+: replace \+ with \| in A<M>::f$";
        assert_eq!(key.pattern(), pattern);
    }
}

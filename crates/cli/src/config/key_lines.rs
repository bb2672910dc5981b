//! `KeyLines`: the lines of a section's keys, kept aside so that settings themselves know no file.
//!
//! Filled by document.rs while a section is read. Contradictions that are found afterwards, and
//! errors of a start, ask here for the line of the key that they are about.

/// Lines of a section and of the keys that are written there.
#[derive(Debug, Clone, Default)]
pub struct KeyLines {
    /// Line for everything that is about no key of its own.
    pub line: usize,
    /// Each key with its line; behind a key with a list, once more for each item that was read.
    keys: Vec<(&'static str, usize)>,
    /// Keys whose value was refused.
    refused: Vec<&'static str>,
}

impl KeyLines {
    /// A section that begins at a line.
    pub(super) fn new(line: usize) -> KeyLines {
        KeyLines { line, ..KeyLines::default() }
    }

    /// Adds a key, or an item of it.
    pub(super) fn add(&mut self, key: &'static str, line: usize) {
        self.keys.push((key, line));
    }

    pub(super) fn refuse(&mut self, key: &'static str) {
        self.refused.push(key);
    }

    fn find(&self, wanted: &str) -> impl Iterator<Item = usize> {
        self.keys.iter().filter(move |(key, _)| *key == wanted).map(|(_, line)| *line)
    }

    /// True if a key is written.
    pub fn has(&self, key: &str) -> bool {
        self.find(key).next().is_some()
    }

    /// True if a key is written and its value was accepted.
    pub fn has_valid(&self, key: &str) -> bool {
        self.has(key) && !self.refused.contains(&key)
    }

    /// The line of a key; the section's if the key is not written.
    pub fn at(&self, key: &str) -> usize {
        self.find(key).next().unwrap_or(self.line)
    }

    /// The line of an item of a list.
    pub fn at_item(&self, key: &str, number: usize) -> usize {
        self.find(key).nth(1 + number).unwrap_or_else(|| self.at(key))
    }

    /// The line of the first of these keys that is written.
    pub fn first(&self, keys: &[&str]) -> Option<usize> {
        keys.iter().find_map(|key| self.find(key).next())
    }
}

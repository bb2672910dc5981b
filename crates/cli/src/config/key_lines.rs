//! `KeyLines`: line numbers of a section's keys, stored apart from the settings, which therefore
//! need not know the file.
//!
//! document.rs fills in the line numbers while it reads a section. Later checks, and errors while
//! the daemon starts, use them to name the line of a key.

#[derive(Debug, Clone, Default)]
pub struct KeyLines {
    /// Line for messages about the section as a whole.
    pub line: usize,
    /// Each key with its line. A key with a list as value has one more entry for each item that was
    /// read, with the item's line.
    keys: Vec<(&'static str, usize)>,
    refused: Vec<&'static str>,
}

impl KeyLines {
    pub(super) fn new(line: usize) -> KeyLines {
        KeyLines { line, ..KeyLines::default() }
    }

    pub(super) fn add(&mut self, key: &'static str, line: usize) {
        self.keys.push((key, line));
    }

    pub(super) fn refuse(&mut self, key: &'static str) {
        self.refused.push(key);
    }

    fn find(&self, wanted: &str) -> impl Iterator<Item = usize> {
        self.keys.iter().filter(move |(key, _)| *key == wanted).map(|(_, line)| *line)
    }

    pub fn has(&self, key: &str) -> bool {
        self.find(key).next().is_some()
    }

    pub fn has_valid(&self, key: &str) -> bool {
        self.has(key) && !self.refused.contains(&key)
    }

    /// Returns the line of a key, or of the section if the key is missing.
    pub fn at(&self, key: &str) -> usize {
        self.find(key).next().unwrap_or(self.line)
    }

    pub fn at_item(&self, key: &str, number: usize) -> usize {
        self.find(key).nth(1 + number).unwrap_or_else(|| self.at(key))
    }

    pub fn first(&self, keys: &[&str]) -> Option<usize> {
        keys.iter().find_map(|key| self.find(key).next())
    }
}

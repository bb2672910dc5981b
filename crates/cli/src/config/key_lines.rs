//! `KeyLines`: the lines of a section's keys, kept aside so that settings themselves know no file.
//!
//! Filled by document.rs while a section is read. Contradictions that are found afterwards, and
//! errors of a start, ask here for the line of the key that they are about.

/// Lines of a section and of the keys that are written there.
#[derive(Debug, Clone, Default)]
pub struct KeyLines {
    /// Line for everything that is about no key of its own.
    pub line: usize,
    keys: Vec<KeyLine>,
}

/// A key that is written.
#[derive(Debug, Clone)]
pub(super) struct KeyLine {
    pub key: &'static str,
    pub line: usize,
    /// Lines of the items that were read, if its value is a list.
    pub items: Vec<usize>,
    /// False if its value was refused.
    pub is_valid: bool,
}

impl KeyLines {
    /// A section that begins at a line.
    pub(super) fn new(line: usize) -> KeyLines {
        KeyLines { line, keys: Vec::new() }
    }

    /// Adds a key that was accepted.
    pub(super) fn note(&mut self, key: &'static str, line: usize) {
        self.keys.push(KeyLine { key, line, items: Vec::new(), is_valid: true });
    }

    pub(super) fn push(&mut self, key: KeyLine) {
        self.keys.push(key);
    }

    fn find(&self, key: &str) -> Option<&KeyLine> {
        self.keys.iter().find(|known| known.key == key)
    }

    /// Whether a key is written.
    pub fn has(&self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// Whether a key is written, and its value was accepted.
    pub fn has_valid(&self, key: &str) -> bool {
        self.find(key).is_some_and(|key| key.is_valid)
    }

    /// The line of a key; the section's if the key is not written.
    pub fn at(&self, key: &str) -> usize {
        self.find(key).map_or(self.line, |key| key.line)
    }

    /// The line of the first of these keys that is written.
    pub fn first(&self, keys: &[&str]) -> Option<usize> {
        keys.iter().find_map(|key| self.find(key)).map(|key| key.line)
    }

    /// The line of an item of a list.
    pub fn at_item(&self, key: &str, number: usize) -> usize {
        let item = self.find(key).and_then(|key| key.items.get(number));
        item.copied().unwrap_or_else(|| self.at(key))
    }
}

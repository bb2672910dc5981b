//! A TOML text as sections with keys that know their line, and the tables by which they are read.
//!
//! A section's keys are written down once, as rows of a table: `Key` has the name and what reads the
//! value into the section's settings. The rows are also the keys that errors call known. Lines stay
//! aside in `KeyLines`. Called by the file of each section; owns nothing but the parsed document.

use std::path::Path;

use millrace_console::words::nearest;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::key_lines::{KeyLine, KeyLines};
use super::line_index::LineIndex;
use super::problem::Problems;

/// A row of a section's table: a key, and what reads its value into the settings.
pub struct Key<T> {
    /// Its name.
    pub name: &'static str,
    /// Words with commas between are a list where the value is written on a command line.
    pub is_list: bool,
    /// Reads the value.
    pub read: fn(&mut T, Value<'_, '_>),
}

/// A row of a key with one value.
pub const fn key<T>(name: &'static str, read: fn(&mut T, Value<'_, '_>)) -> Key<T> {
    Key { name, is_list: false, read }
}

/// A row of a key with a list.
pub const fn list<T>(name: &'static str, read: fn(&mut T, Value<'_, '_>)) -> Key<T> {
    Key { name, is_list: true, read }
}

/// The document that sections are of.
pub struct Document<'a> {
    lines: LineIndex,
    /// Where relative paths begin.
    base: &'a Path,
    /// Titles of the sections that have a key.
    sections_of: fn(&str) -> Vec<&'static str>,
}

impl<'a> Document<'a> {
    /// A text whose relative paths begin at `base`.
    pub fn new(
        text: &str,
        base: &'a Path,
        sections_of: fn(&str) -> Vec<&'static str>,
    ) -> Document<'a> {
        Document { lines: LineIndex::new(text), base, sections_of }
    }

    /// For a key that is known in other sections only, often since it was pasted below the wrong
    /// one: in which.
    fn elsewhere(&self, key: &str) -> String {
        match (self.sections_of)(key).split_last() {
            None => String::new(),
            Some((last, [])) => format!("; it belongs to {last}"),
            Some((last, others)) => format!("; it belongs to {} or {last}", others.join(", ")),
        }
    }
}

/// One `[section]` or `[[section]]`, or the whole document.
pub struct Section<'a> {
    /// How it is called in messages, such as `[[drive]]`.
    pub title: String,
    /// What stands before its keys in the text: `cost.`, or nothing.
    prefix: String,
    /// Line of its heading.
    begin: usize,
    /// Lines of the keys that were read.
    pub lines: KeyLines,
    document: &'a Document<'a>,
    entries: Vec<Entry<'a>>,
    known: Vec<&'static str>,
}

struct Entry<'a> {
    key: String,
    line: usize,
    value: &'a Spanned<DeValue<'a>>,
}

/// Parses a text; a syntax error becomes a problem.
pub fn parse<'a>(text: &'a str, problems: &mut Problems) -> Option<Spanned<DeTable<'a>>> {
    match DeTable::parse(text) {
        Ok(table) => Some(table),
        Err(error) => {
            let at = error.span().map_or(0, |span| span.start);
            let what = error.message().replace('\n', "; ");
            let line = LineIndex::new(text).line_of(at);
            let order = order_hint(text, line);
            problems.add(line, format!("not valid TOML: {what}{order}"));
            None
        }
    }
}

/// What to do about a `[[volume]]` that stands below a table of its own, `[volume.cache]`: for TOML
/// that table makes `volume` something else than a list.
fn order_hint(text: &str, number: usize) -> String {
    let line = text.lines().nth(number - 1).unwrap_or_default().trim();
    let name = line.strip_prefix("[[").and_then(|rest| rest.split("]]").next()).map(str::trim);
    let Some(name) = name else { return String::new() };
    let of_it = |line: &str| {
        let table = line.trim().strip_prefix('[')?.split(']').next()?;
        let table = table.trim();
        table.strip_prefix(name)?.starts_with('.').then(|| table.to_owned())
    };
    let above = text.lines().take(number - 1).find_map(of_it);
    above.map_or_else(String::new, |table| {
        format!(
            "; put [{table}] below the [[{name}]] that it is of: TOML reads it as a part of that"
        )
    })
}

impl<'a> Section<'a> {
    /// The document itself.
    pub fn root(document: &'a Document<'a>, table: &'a Spanned<DeTable<'a>>) -> Self {
        Self::new("the file".to_owned(), 1, document, table.get_ref())
    }

    fn new(title: String, line: usize, document: &'a Document<'a>, table: &'a DeTable<'a>) -> Self {
        let entry = |(key, value): (&Spanned<DeString<'a>>, &'a Spanned<DeValue<'a>>)| Entry {
            key: key.get_ref().to_string(),
            line: document.lines.line_of(key.span().start),
            value,
        };
        let entries = table.iter().map(entry).collect();
        let (prefix, lines) = (String::new(), KeyLines::new(line));
        Section { title, prefix, begin: line, lines, document, entries, known: Vec::new() }
    }

    fn take(&mut self, key: &'static str) -> Option<Entry<'a>> {
        self.known.push(key);
        let place = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.swap_remove(place))
    }

    /// Reads the keys of a table that are there into the settings, in the order of the table.
    pub fn read<T>(&mut self, keys: &[Key<T>], to: &mut T, problems: &mut Problems) {
        for key in keys {
            self.read_key(key.name, problems, |value| (key.read)(to, value));
        }
    }

    /// Reads a key, if it is there.
    pub fn read_key(
        &mut self,
        key: &'static str,
        problems: &mut Problems,
        read: impl FnOnce(Value<'_, 'a>),
    ) {
        let Some(entry) = self.take(key) else { return };
        let (line, before) = (entry.line, problems.count());
        let mut items = Vec::new();
        read(Value { base: self.document.base, section: self, entry, items: &mut items, problems });
        let is_valid = problems.count() == before;
        self.lines.push(KeyLine { key, line, items, is_valid });
    }

    /// Takes a key out that was a setting once, if it is there, and says what has become of it.
    pub fn refuse(&mut self, key: &str, problems: &mut Problems, instead: &str) {
        if let Some(place) = self.entries.iter().position(|entry| entry.key == key) {
            let entry = self.entries.swap_remove(place);
            problems.add(entry.line, format!("{}{key}: {instead}", self.prefix));
        }
    }

    /// Its name, if it has one that is text; the key stays there.
    pub fn name(&self) -> Option<String> {
        let entry = self.entries.iter().find(|entry| entry.key == "name")?;
        text_of(entry.value)
    }

    /// Reads its name, which is there, not empty, and fits a line of a message. What is about the
    /// whole section is at the line of its name from now on.
    pub fn valid_name(&mut self, problems: &mut Problems) -> Option<String> {
        let mut name = None;
        self.read_key("name", problems, |value| value.name(&mut name));
        self.lines.line = self.lines.at("name");
        if !self.lines.has_valid("name") && name.is_none() {
            self.missing("it has no name; add name = \"...\"", problems);
        }
        if name.as_ref().is_some_and(String::is_empty) {
            problems.add(self.lines.line, format!("{}: the name is empty", self.title));
            return None;
        }
        name.filter(|_| self.lines.has_valid("name"))
    }

    /// Names that stand in sections that nobody has taken.
    pub fn names_of_unknown(&self) -> Vec<String> {
        let tables = self.entries.iter().flat_map(|entry| match entry.value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![entry.value],
        });
        let name = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
            DeValue::Table(table) => table.get("name").and_then(text_of),
            _ => None,
        };
        tables.filter_map(name).collect()
    }

    /// Takes the `[key]` section out.
    pub fn section(&mut self, key: &'static str, problems: &mut Problems) -> Option<Section<'a>> {
        let entry = self.take(key)?;
        let DeValue::Table(table) = entry.value.get_ref() else {
            problems.add(entry.line, format!("{key} must be a section: write [{key}]"));
            return None;
        };
        let line = self.document.lines.line_of(entry.value.span().start);
        Some(Section::new(format!("[{key}]"), line, self.document, table))
    }

    /// Takes all `[[key]]` sections out.
    pub fn sections(&mut self, key: &'static str, problems: &mut Problems) -> Vec<Section<'a>> {
        let Some(entry) = self.take(key) else { return Vec::new() };
        let mut sections = Vec::new();
        let items = match entry.value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![entry.value],
        };
        for item in items {
            let line = self.document.lines.line_of(item.span().start);
            match item.get_ref() {
                DeValue::Table(table) if entry.value.get_ref().is_array() => {
                    sections.push(Section::new(format!("[[{key}]]"), line, self.document, table));
                }
                _ => problems.add(line, format!("{key} is a list of sections: write [[{key}]]")),
            }
        }
        sections
    }

    /// Takes all keys out that nobody has taken, with their line and text, by line.
    pub fn rest(&mut self, problems: &mut Problems) -> Vec<(String, usize, String)> {
        let mut rest = Vec::new();
        for entry in std::mem::take(&mut self.entries) {
            match scalar(entry.value.get_ref()) {
                Some(text) => rest.push((entry.key, entry.line, text)),
                None => {
                    let text = format!("{} must be one value, not a list or section", entry.key);
                    problems.add(entry.line, text);
                }
            }
        }
        rest.sort_by_key(|(_, line, _)| *line);
        rest
    }

    /// Where relative paths begin.
    pub fn base(&self) -> &'a Path {
        self.document.base
    }

    /// The keys that were asked for so far.
    pub fn known(&self) -> &[&'static str] {
        &self.known
    }

    /// Reports a key that is missing.
    pub fn missing(&self, what: &str, problems: &mut Problems) {
        problems.add(self.begin, format!("{}: {what}", self.title));
    }

    /// Reports each key that nobody has taken; the lines of the others stay.
    pub fn finish(self, problems: &mut Problems) -> KeyLines {
        for entry in &self.entries {
            let like = match nearest(&entry.key, self.known.iter().copied()) {
                none if none.is_empty() => self.document.elsewhere(&entry.key),
                like => like,
            };
            let known = self.known.join(", ");
            let text = format!("unknown key \"{}\" in {}{like}", entry.key, self.title);
            problems.add(entry.line, format!("{text} (known: {known})"));
        }
        self.lines
    }
}

/// The value of a key, for the row of the key to read. Each method puts the value into its place,
/// or reports what is wrong and leaves the place as it is.
pub struct Value<'s, 'a> {
    /// Where relative paths begin.
    pub base: &'a Path,
    section: &'s Section<'a>,
    entry: Entry<'a>,
    items: &'s mut Vec<usize>,
    problems: &'s mut Problems,
}

impl<'s, 'a> Value<'s, 'a> {
    fn refuse(self, text: String) {
        self.problems.add(self.entry.line, text);
    }

    /// The key as it is written, such as `cost.read-iops`.
    fn full_key(&self) -> String {
        format!("{}{}", self.section.prefix, self.entry.key)
    }

    /// Whether the value is a table.
    pub fn is_table(&self) -> bool {
        self.entry.value.get_ref().is_table()
    }

    /// One value, by its text; numbers, true and false count as text.
    pub fn word<P, V: From<P>>(self, place: &mut V, parse: impl FnOnce(&str) -> Result<P, String>) {
        self.set(|text| {
            *place = parse(text)?.into();
            Ok(())
        });
    }

    /// One value with a path or an address, by its text; relative paths begin at the base.
    pub fn path<P, V: From<P>>(
        self,
        place: &mut V,
        parse: impl FnOnce(&str, &Path) -> Result<P, String>,
    ) {
        let base = self.base;
        self.word(place, |text| parse(text, base));
    }

    /// One value, by its text, which `set` puts where it belongs.
    pub fn set(self, set: impl FnOnce(&str) -> Result<(), String>) {
        let key = self.full_key();
        let Some(text) = scalar(self.entry.value.get_ref()) else {
            return self.refuse(format!("{key} must be one value, not a list or section"));
        };
        if let Err(error) = set(&text) {
            self.refuse(format!("{key} = \"{text}\": {error}"));
        }
    }

    /// A number by its digits and their base, or a text, which has no base.
    pub fn digits<P, V: From<P>>(
        self,
        place: &mut V,
        parse: impl FnOnce(&str, Option<u32>) -> Result<P, String>,
    ) {
        let (written, parsed) = match self.entry.value.get_ref() {
            DeValue::String(text) => (format!("\"{text}\""), parse(text, None)),
            DeValue::Integer(digits) => {
                (digits.to_string(), parse(digits.as_str(), Some(digits.radix())))
            }
            other => (format!("a {}", other.type_str()), parse("", None)),
        };
        match parsed {
            Ok(value) => *place = value.into(),
            Err(error) => {
                let key = self.full_key();
                self.refuse(format!("{key} = {written}: {error}"));
            }
        }
    }

    /// A string.
    pub fn text<V: From<String>>(self, place: &mut V) {
        match self.entry.value.get_ref() {
            DeValue::String(text) => *place = text.to_string().into(),
            other => {
                let (key, kind) = (self.full_key(), other.type_str());
                self.refuse(format!("{key} is a {kind}; write a \"string\""));
            }
        }
    }

    /// A string that fits a line of a message; others would be taken for lines of their own.
    pub fn name<V: From<String>>(self, place: &mut V) {
        let text = text_of(self.entry.value).unwrap_or_default();
        match text.chars().find(|letter| letter.is_control()) {
            None => self.text(place),
            Some(wrong) => {
                let wrong = wrong.escape_debug();
                *place = text.clone().into();
                self.refuse(format!(
                    "name = \"{text}\": {wrong} is a control character; write the name without"
                ));
            }
        }
    }

    /// True or false.
    pub fn flag(self, place: &mut bool) {
        match self.entry.value.get_ref().as_bool() {
            Some(value) => *place = value,
            None => {
                let key = self.full_key();
                self.refuse(format!("{key}: write true or false, without quotes"));
            }
        }
    }

    /// A list, each item by its text; a single value counts as a list of one.
    pub fn list<P, V: From<Vec<P>>>(
        self,
        place: &mut V,
        mut parse: impl FnMut(&str) -> Result<P, String>,
    ) {
        let key = self.full_key();
        let items: Vec<&Spanned<DeValue<'_>>> = match self.entry.value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![self.entry.value],
        };
        let mut list = Vec::new();
        for item in items {
            let line = self.section.document.lines.line_of(item.span().start);
            let Some(text) = scalar(item.get_ref()) else {
                let text = format!("{key} is a list of words, but holds a list or section");
                self.problems.add(line, text);
                continue;
            };
            match parse(&text) {
                Ok(value) => {
                    list.push(value);
                    self.items.push(line);
                }
                Err(error) => self.problems.add(line, format!("{key}: \"{text}\": {error}")),
            }
        }
        *place = list.into();
    }

    /// A table that stands in the section: `key = { ... }` or `key.... = ...`.
    pub fn table(self) -> Option<(Section<'a>, &'s mut Problems)> {
        let key = &self.entry.key;
        let title = format!("{key} of {}", self.section.title);
        let DeValue::Table(table) = self.entry.value.get_ref() else {
            let text = format!("{title}: several keys with values; write {key}.KEY = VALUE");
            self.refuse(text);
            return None;
        };
        let prefix = format!("{key}.");
        let section = Section::new(title, self.entry.line, self.section.document, table);
        Some((Section { prefix, ..section }, self.problems))
    }
}

fn text_of(value: &Spanned<DeValue<'_>>) -> Option<String> {
    value.get_ref().as_str().map(str::to_owned)
}

/// A value as the text that a drive spec would have for it; none for lists, sections and dates.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => match number.radix() {
            10 => Some(number.as_str().to_owned()),
            radix => u64::from_str_radix(number.as_str(), radix).ok().map(|n| n.to_string()),
        },
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Boolean(true) => Some("on".to_owned()),
        DeValue::Boolean(false) => Some("off".to_owned()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

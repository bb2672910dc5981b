//! A TOML text as sections with keys that know their line, and the tables by which they are read.
//!
//! A section's keys are written down once, as rows of a table: `Key` has the name and what reads
//! the value into the section's settings. The rows are also the keys that errors call known. Lines
//! stay aside in `KeyLines`. Called by the file of each section; owns the problems while sections
//! are read.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;

use millrace_console::words::nearest;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::key_lines::KeyLines;
use super::line_index::LineIndex;
use super::problem::Problems;
use super::words::refusal;

/// A row of a section's table: a key, and what reads its value into the settings.
pub struct Key<T> {
    pub name: &'static str,
    /// Words with commas between are a list where the value is written on a command line.
    pub is_list: bool,
    read: fn(&mut T, Value<'_, '_>),
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
    pub lines: LineIndex,
    /// Folder of relative paths.
    pub base: &'a Path,
    /// Titles of the sections that have a key.
    pub sections_of: fn(&str) -> Vec<&'static str>,
    pub problems: RefCell<Problems>,
    /// Names of unknown sections, and of sections that could not be read. A reference to one of
    /// them is not reported as well.
    pub lost: RefCell<HashSet<String>>,
}

impl Document<'_> {
    pub fn problem(&self, line: usize, text: impl Into<String>) {
        self.problems.borrow_mut().add(line, text);
    }

    /// Notes that the section of a name could not be read. References may have the name without its
    /// control characters.
    pub fn lose(&self, name: &str) {
        self.lost.borrow_mut().extend([name.to_owned(), name.replace(char::is_control, "")]);
    }

    /// Names the sections of a key that was put below a wrong one.
    fn elsewhere(&self, key: &str) -> String {
        match (self.sections_of)(key).join(" or ") {
            none if none.is_empty() => none,
            sections => format!("; it belongs to {sections}"),
        }
    }
}

/// One `[section]` or `[[section]]`, or the whole document.
pub struct Section<'a> {
    /// Name in messages, such as `[[drive]]`.
    title: String,
    /// Text before its keys in messages: `cost.`, or nothing.
    prefix: String,
    /// Line of its heading.
    begin: usize,
    /// Lines of the keys that were read.
    pub lines: KeyLines,
    pub document: &'a Document<'a>,
    entries: Vec<Entry<'a>>,
    known: Vec<&'static str>,
}

type TomlValue<'a> = Spanned<DeValue<'a>>;

struct Entry<'a> {
    key: String,
    line: usize,
    value: &'a TomlValue<'a>,
}

/// Parses a text; a syntax error becomes a problem.
pub fn parse<'a>(text: &'a str, problems: &mut Problems) -> Option<Spanned<DeTable<'a>>> {
    let wrong = |error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let what = error.message().replace('\n', "; ");
        let line = LineIndex::new(text).line_of(at);
        let order = order_hint(text, line);
        problems.add(line, format!("not valid TOML: {what}{order}"));
    };
    DeTable::parse(text).map_err(wrong).ok()
}

/// Advice about a `[[volume]]` that stands below a table of its own, `[volume.cache]`: for TOML
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
    pub fn root(document: &'a Document<'a>, table: &'a DeTable<'a>) -> Self {
        Self::new("the file".to_owned(), 1, document, table)
    }

    fn new(
        title: String,
        begin: usize,
        document: &'a Document<'a>,
        table: &'a DeTable<'a>,
    ) -> Self {
        let entry = |(key, value): (&Spanned<DeString<'a>>, &'a TomlValue<'a>)| Entry {
            key: key.get_ref().to_string(),
            line: document.lines.line_of(key.span().start),
            value,
        };
        let entries = table.iter().map(entry).collect();
        let (prefix, lines, known) = (String::new(), KeyLines::new(begin), Vec::new());
        Section { title, prefix, begin, lines, document, entries, known }
    }

    fn take(&mut self, key: &str) -> Option<Entry<'a>> {
        let place = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.swap_remove(place))
    }

    /// Reads the keys of a table that are there into the settings, in the order of the table.
    pub fn read<T>(&mut self, keys: &[Key<T>], to: &mut T) {
        for key in keys {
            self.read_key(key.name, |value| (key.read)(to, value));
        }
    }

    /// Reads a key, if it is there.
    pub fn read_key(&mut self, key: &'static str, read: impl FnOnce(Value<'_, 'a>)) {
        self.known.push(key);
        let Some(entry) = self.take(key) else { return };
        self.lines.add(key, entry.line);
        let before = self.problem_count();
        read(Value { key, entry, section: self });
        if self.problem_count() > before {
            self.lines.refuse(key);
        }
    }

    /// Takes a key out that was a setting once, if it is there, and says what has become of it.
    pub fn refuse(&mut self, key: &str, instead: &str) {
        if let Some(entry) = self.take(key) {
            self.document.problem(entry.line, format!("{}{key}: {instead}", self.prefix));
        }
    }

    /// Reads its name, which is there, not empty, and fits a line of a message. Text about the
    /// whole section is at the line of its name from now on.
    pub fn name(&mut self) -> Option<String> {
        let mut name: Option<String> = None;
        self.read_key("name", |value| value.name(&mut name));
        self.lines.line = self.lines.at("name");
        match name {
            None => self.missing("it has no name; add name = \"...\""),
            Some(name) if name.is_empty() => {
                self.problem("name", format!("{}: the name is empty", self.title));
            }
            Some(name) if self.lines.has_valid("name") => return Some(name),
            Some(name) => self.document.lose(&name),
        }
        None
    }

    /// Takes the `[key]` section out.
    pub fn section(&mut self, key: &'static str) -> Option<Section<'a>> {
        self.known.push(key);
        let entry = self.take(key)?;
        let DeValue::Table(table) = entry.value.get_ref() else {
            let text = format!("{key} must be a section: write [{key}]");
            self.document.problem(entry.line, text);
            return None;
        };
        let line = self.document.lines.line_of(entry.value.span().start);
        Some(Section::new(format!("[{key}]"), line, self.document, table))
    }

    /// Takes all `[[key]]` sections out.
    pub fn sections(&mut self, key: &'static str) -> Vec<Section<'a>> {
        self.known.push(key);
        let Some(entry) = self.take(key) else { return Vec::new() };
        let section = |item: &'a TomlValue<'a>| {
            let line = self.document.lines.line_of(item.span().start);
            match item.get_ref() {
                DeValue::Table(table) if entry.value.get_ref().is_array() => {
                    Some(Section::new(format!("[[{key}]]"), line, self.document, table))
                }
                _ => {
                    let text = format!("{key} is a list of sections: write [[{key}]]");
                    self.document.problem(line, text);
                    None
                }
            }
        };
        items(entry.value).into_iter().filter_map(section).collect()
    }

    /// Takes all keys out that no table has, with their lines and texts, ordered by line.
    pub fn rest(&mut self) -> Vec<(String, usize, String)> {
        let mut rest = Vec::new();
        for entry in std::mem::take(&mut self.entries) {
            match scalar(entry.value.get_ref()) {
                Some(text) => rest.push((entry.key, entry.line, text)),
                None => {
                    let text = format!("{} must be one value, not a list or section", entry.key);
                    self.document.problem(entry.line, text);
                }
            }
        }
        rest.sort_by_key(|(_, line, _)| *line);
        rest
    }

    /// Keys that were asked for so far.
    pub fn known(&self) -> &[&'static str] {
        &self.known
    }

    pub fn problem_count(&self) -> usize {
        self.document.problems.borrow().count()
    }

    /// Reports a problem at the line of a key.
    pub fn problem(&self, key: &str, text: impl Into<String>) {
        self.document.problem(self.lines.at(key), text);
    }

    /// Reports a key that is missing.
    pub fn missing(&self, what: &str) {
        self.document.problem(self.begin, format!("{}: {what}", self.title));
    }

    /// Reports each key that no table has, and returns the lines of the others.
    pub fn finish(self) -> KeyLines {
        for entry in &self.entries {
            // A key of another section is a better guess than a similar key of this one; a section
            // is no key.
            let is_key = !items(entry.value).iter().any(|item| item.get_ref().is_table());
            let like = match self.document.elsewhere(&entry.key) {
                elsewhere if is_key && !elsewhere.is_empty() => elsewhere,
                _ => nearest(&entry.key, self.known.iter().copied()),
            };
            let (key, title, known) = (&entry.key, &self.title, self.known.join(", "));
            let text = format!("unknown key \"{key}\" in {title}{like} (known: {known})");
            self.document.problem(entry.line, text);
        }
        self.lines
    }

    /// Reports each section that there is not; their names are lost.
    pub fn finish_root(self) {
        for item in self.entries.iter().flat_map(|entry| items(entry.value)) {
            let name = item.get_ref().get("name").and_then(|name| name.get_ref().as_str());
            name.into_iter().for_each(|name| self.document.lose(name));
        }
        self.finish();
    }
}

/// The items of a list; a single value counts as a list of one.
fn items<'a>(value: &'a TomlValue<'a>) -> Vec<&'a TomlValue<'a>> {
    match value.get_ref() {
        DeValue::Array(items) => items.iter().collect(),
        _ => vec![value],
    }
}

/// The value of a key, for the row of the key to read. Each method puts the value into its place,
/// or reports what is wrong and leaves the place as it is.
pub struct Value<'s, 'a> {
    key: &'static str,
    entry: Entry<'a>,
    section: &'s mut Section<'a>,
}

impl<'a> Value<'_, 'a> {
    /// Reports a problem; the text goes behind the key as it is written.
    fn refuse(&self, text: &str) {
        let key = format!("{}{}", self.section.prefix, self.key);
        self.section.document.problem(self.entry.line, format!("{key}{text}"));
    }

    /// Folder of relative paths.
    pub fn base(&self) -> &'a Path {
        self.section.document.base
    }

    /// True if the value is a table.
    pub fn is_table(&self) -> bool {
        self.entry.value.get_ref().is_table()
    }

    /// Gives the text of one value to `set`; numbers, true and false count as text.
    pub fn set(self, set: impl FnOnce(&str) -> Result<(), String>) {
        match scalar(self.entry.value.get_ref()) {
            None => self.refuse(" must be one value, not a list or section"),
            Some(text) => {
                if let Err(error) = set(&text) {
                    let written = written(self.entry.value.get_ref(), &text);
                    let setting = format!("{}{} = {written}", self.section.prefix, self.key);
                    self.section.document.problem(self.entry.line, refusal(&setting, &error));
                }
            }
        }
    }

    /// Reads one value from its text.
    pub fn word<T>(self, place: &mut T, parse: impl FnOnce(&str) -> Result<T, String>) {
        self.set(|text| parse(text).map(|value| *place = value));
    }

    /// Reads one value of a setting that may be absent from its text.
    pub fn some<T>(self, place: &mut Option<T>, parse: impl FnOnce(&str) -> Result<T, String>) {
        self.word(place, |text| parse(text).map(Some));
    }

    /// Reads a path or an address from its text and the folder of relative paths.
    pub fn path<P, T: From<P>>(
        self,
        place: &mut T,
        parse: impl FnOnce(&str, &Path) -> Result<P, String>,
    ) {
        let base = self.base();
        self.word(place, |text| parse(text, base).map(T::from));
    }

    /// Reads a number from its digits and their base, or from a text, which has no base.
    pub fn digits(
        self,
        place: &mut Option<u32>,
        parse: impl FnOnce(&str, Option<u32>) -> Result<u32, String>,
    ) {
        let (written, parsed) = match self.entry.value.get_ref() {
            DeValue::String(text) => (format!("\"{text}\""), parse(text, None)),
            DeValue::Integer(digits) => {
                (digits.to_string(), parse(digits.as_str(), Some(digits.radix())))
            }
            other => (format!("a {}", other.type_str()), parse("", None)),
        };
        match parsed {
            Ok(value) => *place = Some(value),
            Err(error) => self.refuse(&format!(" = {written}: {error}")),
        }
    }

    /// Reads a string.
    pub fn text<T: From<String>>(self, place: &mut T) {
        match self.entry.value.get_ref() {
            DeValue::String(text) => *place = text.to_string().into(),
            other => match scalar(other) {
                Some(text) => {
                    let written = written(other, &text);
                    self.refuse(&format!(" = {written}: write a string, such as \"{text}\""));
                }
                None => self.refuse(" must be a string, not a list or section"),
            },
        }
    }

    /// Reads a string that fits a line of a message: its lines would be taken for messages.
    pub fn name<T: From<String>>(self, place: &mut T) {
        let text = self.entry.value.get_ref().as_str().unwrap_or_default();
        if let Some(wrong) = text.chars().find(|letter| letter.is_control()) {
            let wrong = wrong.escape_debug();
            self.refuse(&format!(
                " = \"{text}\": {wrong} is a control character; write the name without"
            ));
        }
        self.text(place);
    }

    /// Reads true or false.
    pub fn flag(self, place: &mut bool) {
        match self.entry.value.get_ref().as_bool() {
            Some(value) => *place = value,
            None => match scalar(self.entry.value.get_ref()) {
                Some(text) => {
                    let written = written(self.entry.value.get_ref(), &text);
                    self.refuse(&format!(" = {written}: write true or false, without quotes"));
                }
                None => self.refuse(" must be true or false, not a list or section"),
            },
        }
    }

    /// Reads a list, each item from its text; a single value counts as a list of one.
    pub fn list<P, T: From<Vec<P>>>(
        self,
        place: &mut T,
        mut parse: impl FnMut(&str) -> Result<P, String>,
    ) {
        let (document, key, mut list) = (self.section.document, self.key, Vec::new());
        for item in items(self.entry.value) {
            let line = document.lines.line_of(item.span().start);
            let Some(text) = scalar(item.get_ref()) else {
                let text = format!("{key} is a list of words, but holds a list or section");
                document.problem(line, text);
                continue;
            };
            match parse(&text) {
                Ok(value) => {
                    list.push(value);
                    self.section.lines.add(key, line);
                }
                Err(error) => {
                    let written = written(item.get_ref(), &text);
                    document.problem(line, refusal(&format!("{key}: {written}"), &error));
                }
            }
        }
        *place = list.into();
    }

    /// Returns the table of `key = { ... }` or `key.... = ...` as a section of its own.
    pub fn table(self) -> Option<Section<'a>> {
        let (key, title) = (self.key, format!("{} of {}", self.key, self.section.title));
        let DeValue::Table(table) = self.entry.value.get_ref() else {
            let text = format!("{title}: several keys with values; write {key}.KEY = VALUE");
            self.section.document.problem(self.entry.line, text);
            return None;
        };
        let section = Section::new(title, self.entry.line, self.section.document, table);
        Some(Section { prefix: format!("{key}."), ..section })
    }
}

/// A value as it stands in the file, for messages.
fn written(value: &DeValue<'_>, text: &str) -> String {
    match value {
        DeValue::String(_) => format!("\"{text}\""),
        DeValue::Boolean(value) => value.to_string(),
        _ => text.to_owned(),
    }
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

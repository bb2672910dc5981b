//! Sections of a TOML document with the line of each key, and the tables of known keys.
//!
//! Each section's keys are listed once, as rows of a table. A row (`KeyReader`) has the key's name
//! and the function that stores the key's value in the settings. Errors list these rows as the
//! known keys.

use std::cell::RefCell;
use std::collections::HashSet;
use std::path::Path;

use millrace_console::words::nearest;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::key_lines::KeyLines;
use super::line_index::LineIndex;
use super::problem::ConfigProblems;
use super::words::refusal;

pub struct KeyReader<T> {
    pub name: &'static str,
    pub is_list: bool,
    read: fn(&mut T, KeyValue<'_, '_>),
}

pub const fn key<T>(name: &'static str, read: fn(&mut T, KeyValue<'_, '_>)) -> KeyReader<T> {
    KeyReader { name, is_list: false, read }
}

pub const fn list<T>(name: &'static str, read: fn(&mut T, KeyValue<'_, '_>)) -> KeyReader<T> {
    KeyReader { name, is_list: true, read }
}

pub struct TomlDocument<'a> {
    pub lines: LineIndex,
    pub base: &'a Path,
    pub sections_of: fn(&str) -> Vec<&'static str>,
    pub problems: RefCell<ConfigProblems>,
    /// Names of unknown sections and of sections that could not be read. References to these
    /// sections are not reported as further problems.
    pub lost: RefCell<HashSet<String>>,
}

impl TomlDocument<'_> {
    pub fn problem(&self, line: usize, text: impl Into<String>) {
        self.problems.borrow_mut().add(line, text);
    }

    /// Records the name of a section that could not be read. The name may have been refused for its
    /// control characters, so the name without them is recorded, too: references may use that form.
    pub fn lose(&self, name: &str) {
        self.lost.borrow_mut().extend([name.to_owned(), name.replace(char::is_control, "")]);
    }

    fn elsewhere(&self, key: &str) -> String {
        match (self.sections_of)(key).join(" or ") {
            none if none.is_empty() => none,
            sections => format!("; it belongs to {sections}"),
        }
    }
}

pub struct Section<'a> {
    title: String,
    /// Prefix of the section's keys in messages: `cost.` for the nested table `cost`. Empty for a
    /// section that is not nested.
    prefix: String,
    begin: usize,
    pub lines: KeyLines,
    pub document: &'a TomlDocument<'a>,
    entries: Vec<SectionEntry<'a>>,
    known: Vec<&'static str>,
}

type TomlValue<'a> = Spanned<DeValue<'a>>;

struct SectionEntry<'a> {
    key: String,
    line: usize,
    value: &'a TomlValue<'a>,
}

pub fn parse<'a>(text: &'a str, problems: &mut ConfigProblems) -> Option<Spanned<DeTable<'a>>> {
    let wrong = |error: toml::de::Error| {
        let at = error.span().map_or(0, |span| span.start);
        let what = error.message().replace('\n', "; ");
        let line = LineIndex::new(text).line_of(at);
        let order = order_hint(text, line);
        problems.add(line, format!("not valid TOML: {what}{order}"));
    };
    DeTable::parse(text).map_err(wrong).ok()
}

/// Returns advice for a `[[volume]]` header that follows a `[volume.cache]` table. TOML then
/// rejects the header, because it has already defined `volume` as a single table.
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
        format!("; put [{table}] below the [[{name}]] that it belongs to")
    })
}

impl<'a> Section<'a> {
    pub fn root(document: &'a TomlDocument<'a>, table: &'a DeTable<'a>) -> Self {
        Self::new("the file".to_owned(), 1, document, table)
    }

    fn new(
        title: String,
        begin: usize,
        document: &'a TomlDocument<'a>,
        table: &'a DeTable<'a>,
    ) -> Self {
        let entry = |(key, value): (&Spanned<DeString<'a>>, &'a TomlValue<'a>)| SectionEntry {
            key: key.get_ref().to_string(),
            line: document.lines.line_of(key.span().start),
            value,
        };
        let entries = table.iter().map(entry).collect();
        let (prefix, lines, known) = (String::new(), KeyLines::new(begin), Vec::new());
        Section { title, prefix, begin, lines, document, entries, known }
    }

    fn take(&mut self, key: &str) -> Option<SectionEntry<'a>> {
        let place = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.swap_remove(place))
    }

    pub fn read<T>(&mut self, keys: &[KeyReader<T>], to: &mut T) {
        for key in keys {
            self.read_key(key.name, |value| (key.read)(to, value));
        }
    }

    pub fn read_key(&mut self, key: &'static str, read: impl FnOnce(KeyValue<'_, 'a>)) {
        self.known.push(key);
        let Some(entry) = self.take(key) else { return };
        self.lines.add(key, entry.line);
        let before = self.problem_count();
        read(KeyValue { key, entry, section: self });
        if self.problem_count() > before {
            self.lines.refuse(key);
        }
    }

    /// Removes and reports a key that earlier versions accepted, if the section has it. `instead`
    /// names the setting that replaces the key.
    pub fn refuse(&mut self, key: &str, instead: &str) {
        if let Some(entry) = self.take(key) {
            self.document.problem(entry.line, format!("{}{key}: {instead}", self.prefix));
        }
    }

    /// Reads the section's name, which must not be empty or have control characters. Later messages
    /// about the section show the line of the name.
    pub fn name(&mut self) -> Option<String> {
        let mut name: Option<String> = None;
        self.read_key("name", |value| value.name(&mut name));
        self.lines.line = self.lines.at("name");
        match name {
            None => self.missing("the name is missing; add name = \"...\""),
            Some(name) if name.is_empty() => {
                self.problem("name", format!("{}: the name is empty", self.title));
            }
            Some(name) if self.lines.has_valid("name") => return Some(name),
            Some(name) => self.document.lose(&name),
        }
        None
    }

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

    /// Takes the section's keys that were not read yet: key, line and value, in order of lines.
    /// Reports keys whose value is a list or section.
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

    pub fn known(&self) -> &[&'static str] {
        &self.known
    }

    pub fn problem_count(&self) -> usize {
        self.document.problems.borrow().count()
    }

    pub fn problem(&self, key: &str, text: impl Into<String>) {
        self.document.problem(self.lines.at(key), text);
    }

    pub fn missing(&self, what: &str) {
        self.document.problem(self.begin, format!("{}: {what}", self.title));
    }

    pub fn finish(self) -> KeyLines {
        for entry in &self.entries {
            // If another kind of section has the key, the error names that kind of section. For an
            // unknown key or a sub-section, the error suggests the most similar key of this
            // section.
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

    /// Reports unknown top-level sections. References to the names of such sections are not
    /// reported as further problems.
    pub fn finish_root(self) {
        for item in self.entries.iter().flat_map(|entry| items(entry.value)) {
            let name = item.get_ref().get("name").and_then(|name| name.get_ref().as_str());
            name.into_iter().for_each(|name| self.document.lose(name));
        }
        self.finish();
    }
}

/// Returns the items of a list. A single value counts as a list of one.
fn items<'a>(value: &'a TomlValue<'a>) -> Vec<&'a TomlValue<'a>> {
    match value.get_ref() {
        DeValue::Array(items) => items.iter().collect(),
        _ => vec![value],
    }
}

/// Value of a key, passed to the function that reads the key. Each method stores the value, or
/// reports a problem and leaves the setting unchanged.
pub struct KeyValue<'s, 'a> {
    key: &'static str,
    entry: SectionEntry<'a>,
    section: &'s mut Section<'a>,
}

impl<'a> KeyValue<'_, 'a> {
    fn refuse(&self, text: &str) {
        let key = format!("{}{}", self.section.prefix, self.key);
        self.section.document.problem(self.entry.line, format!("{key}{text}"));
    }

    pub fn base(&self) -> &'a Path {
        self.section.document.base
    }

    pub fn is_table(&self) -> bool {
        self.entry.value.get_ref().is_table()
    }

    /// Returns a single value as plain text, and its spelling in the file. Reports an error for a
    /// list or section; `kind` is the expected kind of value, such as "one value".
    fn single(&self, kind: &str) -> Option<(String, String)> {
        let value = self.entry.value.get_ref();
        let text = scalar(value);
        if text.is_none() {
            self.refuse(&format!(" must be {kind}, not a list or section"));
        }
        text.map(|text| (text.clone(), written(value, &text)))
    }

    /// Passes the text of a single value to `set`. Numbers and booleans are converted to text.
    pub fn set(self, set: impl FnOnce(&str) -> Result<(), String>) {
        if let Some((text, written)) = self.single("one value")
            && let Err(error) = set(&text)
        {
            let setting = format!("{}{} = {written}", self.section.prefix, self.key);
            self.section.document.problem(self.entry.line, refusal(&setting, &error));
        }
    }

    pub fn word<T>(self, place: &mut T, parse: impl FnOnce(&str) -> Result<T, String>) {
        self.set(|text| parse(text).map(|value| *place = value));
    }

    pub fn some<T>(self, place: &mut Option<T>, parse: impl FnOnce(&str) -> Result<T, String>) {
        self.word(place, |text| parse(text).map(Some));
    }

    pub fn path<P, T: From<P>>(
        self,
        place: &mut T,
        parse: impl FnOnce(&str, &Path) -> Result<P, String>,
    ) {
        let base = self.base();
        self.word(place, |text| parse(text, base).map(T::from));
    }

    /// Stores the number that `parse` returns. `parse` receives the text of a TOML string, or the
    /// digits of a TOML integer with their radix.
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

    pub fn text<T: From<String>>(self, place: &mut T) {
        if let DeValue::String(text) = self.entry.value.get_ref() {
            *place = text.to_string().into();
        } else if let Some((text, written)) = self.single("a string") {
            self.refuse(&format!(" = {written}: write a string, such as \"{text}\""));
        }
    }

    /// Stores a name. Refuses control characters: a line feed could make one message look like two.
    pub fn name<T: From<String>>(self, place: &mut T) {
        let text = self.entry.value.get_ref().as_str().unwrap_or_default();
        if let Some(wrong) = text.chars().find(|letter| letter.is_control()) {
            let wrong = wrong.escape_debug();
            self.refuse(&format!(
                " = \"{text}\": {wrong} is a control character; remove it from the name"
            ));
        }
        self.text(place);
    }

    pub fn flag(self, place: &mut bool) {
        if let Some(value) = self.entry.value.get_ref().as_bool() {
            *place = value;
        } else if let Some((_, written)) = self.single("true or false") {
            self.refuse(&format!(" = {written}: write true or false, without quotes"));
        }
    }

    /// Stores a list, each item parsed from its text. A single value counts as a list of one.
    pub fn list<P, T: From<Vec<P>>>(
        self,
        place: &mut T,
        mut parse: impl FnMut(&str) -> Result<P, String>,
    ) {
        let (document, key, mut list) = (self.section.document, self.key, Vec::new());
        for item in items(self.entry.value) {
            let line = document.lines.line_of(item.span().start);
            let Some(text) = scalar(item.get_ref()) else {
                let text =
                    format!("{key} must be a list of words; one element is a list or section");
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

    /// Returns the nested table of a key as a section. The table is written in TOML as
    /// `key = { ... }`, as `key.subkey = ...`, or below a header such as `[volume.cache]`.
    pub fn table(self) -> Option<Section<'a>> {
        let (key, title) = (self.key, format!("{} of {}", self.key, self.section.title));
        let DeValue::Table(table) = self.entry.value.get_ref() else {
            let text = format!("{title}: must be a table of keys; write {key}.KEY = VALUE");
            self.section.document.problem(self.entry.line, text);
            return None;
        };
        let section = Section::new(title, self.entry.line, self.section.document, table);
        Some(Section { prefix: format!("{key}."), ..section })
    }
}

fn written(value: &DeValue<'_>, text: &str) -> String {
    match value {
        DeValue::String(_) => format!("\"{text}\""),
        DeValue::Boolean(value) => value.to_string(),
        _ => text.to_owned(),
    }
}

/// Returns a value as text in the syntax of drive specs. `None` for lists, sections and dates.
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

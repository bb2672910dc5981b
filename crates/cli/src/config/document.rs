//! A TOML text as sections with keys that know their line.
//!
//! Owns nothing but the parsed document. Called by sections.rs, which takes the keys it knows out
//! of a section; what is left at `finish` is unknown, and the error names the nearest key that was
//! asked for. So a key is written down once, where it is read.

use millrace_console::words::nearest;
use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::line_index::LineIndex;
use super::problem::Problems;

/// A value and the line it stands in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Its line, from 1.
    pub line: usize,
}

/// One `[section]` or `[[section]]`, or the whole document.
pub struct Section<'a> {
    /// How it is called in messages, such as `[[drive]]`.
    pub title: String,
    /// What stands before its keys in the text: `cost.`, or nothing.
    prefix: String,
    /// Where it begins.
    pub line: usize,
    lines: &'a LineIndex,
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
    /// The document itself, with the index of its text.
    pub fn root(lines: &'a LineIndex, table: &'a Spanned<DeTable<'a>>) -> Self {
        Self::new("the file".to_owned(), 1, lines, table.get_ref())
    }

    fn new(title: String, line: usize, lines: &'a LineIndex, table: &'a DeTable<'a>) -> Self {
        let entry = |(key, value): (&Spanned<DeString<'a>>, &'a Spanned<DeValue<'a>>)| Entry {
            key: key.get_ref().to_string(),
            line: lines.line_of(key.span().start),
            value,
        };
        let entries = table.iter().map(entry).collect();
        Section { title, prefix: String::new(), line, lines, entries, known: Vec::new() }
    }

    fn take(&mut self, key: &'static str) -> Option<Entry<'a>> {
        self.known.push(key);
        let place = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.swap_remove(place))
    }

    /// Takes a key out that was a setting once, if it is there, and says what has become of it.
    pub fn refuse(&mut self, key: &str, problems: &mut Problems, instead: &str) {
        if let Some(place) = self.entries.iter().position(|entry| entry.key == key) {
            let entry = self.entries.swap_remove(place);
            problems.add(entry.line, format!("{}{key}: {instead}", self.prefix));
        }
    }

    /// Whether a key is there that nobody has taken yet.
    pub fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// Whether a key that nobody has taken yet is a table.
    pub fn is_table(&self, key: &str) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.key == key && entry.value.get_ref().is_table())
    }

    /// Notes that a key may stand here.
    pub fn asks_for(&mut self, key: &'static str) {
        self.known.push(key);
    }

    /// Its name, if it has one that is text; the key stays there.
    pub fn name(&self) -> Option<String> {
        let entry = self.entries.iter().find(|entry| entry.key == "name")?;
        text_of(entry.value)
    }

    /// Where it begins.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Takes its name out, which is there, not empty, and fits a line of a message.
    pub fn valid_name(&mut self, problems: &mut Problems) -> Option<Located<String>> {
        match self.string("name", problems) {
            Some(name) if name.value.is_empty() => {
                problems.add(name.line, format!("{}: the name is empty", self.title));
                None
            }
            None => {
                self.missing("it has no name; add name = \"...\"", problems);
                None
            }
            Some(name) => printable(name, problems),
        }
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
        let line = self.lines.line_of(entry.value.span().start);
        Some(Section::new(format!("[{key}]"), line, self.lines, table))
    }

    /// Takes a table out that stands in this section: `key = { ... }` or `key.... = ...`.
    pub fn table(&mut self, key: &'static str, problems: &mut Problems) -> Option<Section<'a>> {
        let entry = self.take(key)?;
        let title = format!("{key} of {}", self.title);
        let DeValue::Table(table) = entry.value.get_ref() else {
            let text = format!("{title}: several keys with values; write {key}.KEY = VALUE");
            problems.add(entry.line, text);
            return None;
        };
        let prefix = format!("{key}.");
        Some(Section { prefix, ..Section::new(title, entry.line, self.lines, table) })
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
            let line = self.lines.line_of(item.span().start);
            match item.get_ref() {
                DeValue::Table(table) if entry.value.get_ref().is_array() => {
                    sections.push(Section::new(format!("[[{key}]]"), line, self.lines, table));
                }
                _ => problems.add(line, format!("{key} is a list of sections: write [[{key}]]")),
            }
        }
        sections
    }

    /// Takes a value out that `parse` reads from its text; numbers, true and false count as text.
    pub fn word<T>(
        &mut self,
        key: &'static str,
        problems: &mut Problems,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Located<T>> {
        let entry = self.take(key)?;
        let line = entry.line;
        let Some(text) = scalar(entry.value.get_ref()) else {
            let text = format!("{}{key} must be one value, not a list or section", self.prefix);
            problems.add(line, text);
            return None;
        };
        match parse(&text) {
            Ok(value) => Some(Located { value, line }),
            Err(error) => {
                let written = written(entry.value.get_ref(), &text);
                problems.add(line, format!("{}{key} = {written}: {error}", self.prefix));
                None
            }
        }
    }

    /// Takes a number out that `parse` reads from its digits and their base, or from a text, which
    /// has none.
    pub fn digits<T>(
        &mut self,
        key: &'static str,
        problems: &mut Problems,
        parse: impl FnOnce(&str, Option<u32>) -> Result<T, String>,
    ) -> Option<Located<T>> {
        let entry = self.take(key)?;
        let line = entry.line;
        let (written, parsed) = match entry.value.get_ref() {
            DeValue::String(text) => (format!("\"{text}\""), parse(text, None)),
            DeValue::Integer(digits) => {
                (digits.to_string(), parse(digits.as_str(), Some(digits.radix())))
            }
            other => (format!("a {}", other.type_str()), parse("", None)),
        };
        let wrong = |error| problems.add(line, format!("{key} = {written}: {error}"));
        parsed.map_err(wrong).ok().map(|value| Located { value, line })
    }

    /// Takes a string out.
    pub fn string(
        &mut self,
        key: &'static str,
        problems: &mut Problems,
    ) -> Option<Located<String>> {
        let entry = self.take(key)?;
        match entry.value.get_ref() {
            DeValue::String(text) => Some(Located { value: text.to_string(), line: entry.line }),
            other => {
                let kind = other.type_str();
                problems.add(entry.line, format!("{key} is a {kind}; write a \"string\""));
                None
            }
        }
    }

    /// Takes true or false out.
    pub fn flag(&mut self, key: &'static str, problems: &mut Problems) -> Option<bool> {
        let entry = self.take(key)?;
        let value = entry.value.get_ref().as_bool();
        if value.is_none() {
            problems.add(entry.line, format!("{key}: write true or false, without quotes"));
        }
        value
    }

    /// Takes a list out, each element by its text; a single value counts as a list of one.
    pub fn list<T>(
        &mut self,
        key: &'static str,
        problems: &mut Problems,
        mut parse: impl FnMut(&str) -> Result<T, String>,
    ) -> Option<Located<Vec<Located<T>>>> {
        let entry = self.take(key)?;
        let items: Vec<&Spanned<DeValue<'_>>> = match entry.value.get_ref() {
            DeValue::Array(items) => items.iter().collect(),
            _ => vec![entry.value],
        };
        let mut list = Vec::new();
        for item in items {
            let line = self.lines.line_of(item.span().start);
            let Some(text) = scalar(item.get_ref()) else {
                problems
                    .add(line, format!("{key} is a list of words, but holds a list or section"));
                continue;
            };
            match parse(&text) {
                Ok(value) => list.push(Located { value, line }),
                Err(error) => {
                    problems
                        .add(line, format!("{key}: {}: {error}", written(item.get_ref(), &text)));
                }
            }
        }
        Some(Located { value: list, line: entry.line })
    }

    /// Takes all keys out that nobody has taken, with their text.
    pub fn rest(&mut self, problems: &mut Problems) -> Vec<(String, Located<String>)> {
        let mut rest = Vec::new();
        for entry in std::mem::take(&mut self.entries) {
            match scalar(entry.value.get_ref()) {
                Some(value) => rest.push((entry.key, Located { value, line: entry.line })),
                None => {
                    let text = format!("{} must be one value, not a list or section", entry.key);
                    problems.add(entry.line, text);
                }
            }
        }
        rest.sort_by_key(|(_, value)| value.line);
        rest
    }

    /// The keys that were asked for so far.
    pub fn known(&self) -> &[&'static str] {
        &self.known
    }

    /// Reports a key that is missing.
    pub fn missing(&self, what: &str, problems: &mut Problems) {
        problems.add(self.line, format!("{}: {what}", self.title));
    }

    /// Reports each key that nobody has taken.
    pub fn finish(self, problems: &mut Problems) {
        for entry in &self.entries {
            let like = match nearest(&entry.key, self.known.iter().copied()) {
                none if none.is_empty() => elsewhere(&entry.key),
                like => like,
            };
            let known = self.known.join(", ");
            let text = format!("unknown key \"{}\" in {}{like}", entry.key, self.title);
            problems.add(entry.line, format!("{text} (known: {known})"));
        }
    }
}

/// For a key that is known in other sections only, often since it was pasted below the wrong one:
/// in which.
fn elsewhere(key: &str) -> String {
    let sections = match key {
        "scheduler" => "[[drive]] or [[volume]]",
        "group" | "group-each" => "[[export]]",
        "weight" | "latency-target" => "[[group]]",
        "mode" | "owner" => "[[listener]]",
        "tls" => "[server] or [[listener]]",
        "tls-allow" => "[[export]]",
        _ => return String::new(),
    };
    format!("; it belongs to {sections}")
}

/// A name that fits a line of a message; others would be taken for lines of their own.
pub fn printable(name: Located<String>, problems: &mut Problems) -> Option<Located<String>> {
    let Some(wrong) = name.value.chars().find(|letter| letter.is_control()) else {
        return Some(name);
    };
    let (value, wrong) = (&name.value, wrong.escape_debug());
    let text =
        format!("name = \"{value}\": {wrong} is a control character; write the name without");
    problems.add(name.line, text);
    None
}

fn text_of(value: &Spanned<DeValue<'_>>) -> Option<String> {
    value.get_ref().as_str().map(str::to_owned)
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

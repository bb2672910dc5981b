//! A job file as text: sections of options, each with its file and line.
//!
//! This file handles comments, `[section]` heads, `include`, and the expansion of `${NAME}` and of
//! fio's variables `$pagesize`, `$mb_memory` and `$ncpus`. The meaning of the options is defined in
//! other files. Limits: 1 MiB for a file, 16 nested includes, and 4096 sections.

use std::fmt;

const FILE_MAX: usize = 1 << 20;
const DEPTH_MAX: usize = 16;
/// Largest number of options of all jobs together. An inherited `global` option counts for each
/// job.
const WORDS_MAX: usize = 1 << 16;

/// Error in a job file, with file and line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct JobFileError {
    /// File and line of the error.
    pub place: Place,
    /// Description of the error, with a hint on how to fix it.
    pub text: String,
}

impl fmt::Display for JobFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

/// Position in a job file: the name of the file, and a line number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// File name as the user gave it.
    pub file: String,
    /// Line number from 1; 0 for the whole file.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

impl Place {
    pub(super) fn wrong(&self, text: impl Into<String>) -> JobFileError {
        JobFileError { place: self.clone(), text: text.into() }
    }
}

/// An option: its name, and the text after `=`, which is empty if there is no `=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) place: Place,
    pub(super) word: String,
    pub(super) value: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) place: Place,
    pub(super) name: String,
    pub(super) global: Vec<Entry>,
    pub(super) own: Vec<Entry>,
}

/// Provides the external inputs of a job file: included files and variables.
pub trait Includes {
    /// Returns the bytes of an included file.
    fn file(&self, name: &str) -> std::io::Result<Vec<u8>>;

    /// Returns the value of `${name}`; `None` if the variable is not set.
    fn variable(&self, name: &str) -> Option<String>;

    /// Returns the value of `$name`: `pagesize`, `mb_memory` or `ncpus`.
    fn system(&self, name: &str) -> u64;
}

/// Names of fio's variables that are written without braces, such as `$ncpus`.
const SYSTEM_WORDS: [&str; 3] = ["pagesize", "mb_memory", "ncpus"];

struct SectionReader<'a> {
    outside: &'a dyn Includes,
    global: Vec<Entry>,
    sections: Vec<Section>,
    /// True in a `[global]` section, false in a job's, `None` before the first section.
    in_global: Option<bool>,
    words: usize,
}

pub(super) fn sections(
    name: &str,
    bytes: &[u8],
    outside: &dyn Includes,
) -> Result<Vec<Section>, JobFileError> {
    let (global, sections) = (Vec::new(), Vec::new());
    let mut reader = SectionReader { outside, global, sections, in_global: None, words: 0 };
    reader.file(name, bytes, 0)?;
    if reader.sections.is_empty() {
        let place = Place { file: name.to_owned(), line: 0 };
        return Err(place.wrong("the file has no job; begin one with [name]"));
    }
    Ok(reader.sections)
}

impl SectionReader<'_> {
    fn file(&mut self, name: &str, bytes: &[u8], depth: usize) -> Result<(), JobFileError> {
        let whole = Place { file: name.to_owned(), line: 0 };
        if bytes.len() > FILE_MAX {
            return Err(whole.wrong("larger than 1 MiB; this is not a job file"));
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|_| whole.wrong("not UTF-8 text; this is not a job file"))?;
        for (line, text) in (1..).zip(text.lines()) {
            let place = Place { file: name.to_owned(), line };
            let text = text.split([';', '#']).next().unwrap_or("").trim();
            if text.is_empty() {
                continue;
            }
            match text.strip_prefix('[') {
                Some(_) if depth > 0 => {
                    return Err(place.wrong(format!("{text}: an included file cannot begin a job")));
                }
                Some(head) => self.head(place, head)?,
                None => self.line(place, text, depth)?,
            }
        }
        Ok(())
    }

    fn head(&mut self, place: Place, head: &str) -> Result<(), JobFileError> {
        let name = head.strip_suffix(']').filter(|name| !name.is_empty());
        let Some(name) = name else {
            return Err(place.wrong(format!("[{head}: write [name] to begin a job")));
        };
        self.in_global = Some(name == "global");
        if name != "global" {
            self.count(&place, self.global.len() + 1)?;
            let (name, global) = (name.to_owned(), self.global.clone());
            self.sections.push(Section { place, name, global, own: Vec::new() });
        }
        Ok(())
    }

    fn line(&mut self, place: Place, text: &str, depth: usize) -> Result<(), JobFileError> {
        if let Some(name) = text.strip_prefix("include").filter(|s| s.starts_with([' ', '\t'])) {
            return self.include(&place, name.trim(), depth);
        }
        let (word, value) = text.split_once('=').unwrap_or((text, ""));
        let value = self.expand(&place, value.trim())?.trim().to_owned();
        self.count(&place, 1)?;
        let entry = Entry { place, word: word.trim().to_owned(), value };
        match (self.in_global, self.sections.last_mut()) {
            (Some(true), _) => self.global.push(entry),
            (Some(false), Some(section)) => section.own.push(entry),
            _ => {
                let text = "a word before the first section; begin one with [global] or [name]";
                return Err(entry.place.wrong(text));
            }
        }
        Ok(())
    }

    fn include(&mut self, place: &Place, name: &str, depth: usize) -> Result<(), JobFileError> {
        if depth == DEPTH_MAX {
            return Err(
                place.wrong(format!("include {name}: includes are {DEPTH_MAX} files deep already"))
            );
        }
        if self.in_global.is_none() {
            let text = "an include before the first section; begin one with [global] or [name]";
            return Err(place.wrong(text));
        }
        let failed = |error| place.wrong(format!("include {name}: cannot read it: {error}"));
        let bytes = self.outside.file(name).map_err(failed)?;
        self.file(name, &bytes, depth + 1)
    }

    fn count(&mut self, place: &Place, words: usize) -> Result<(), JobFileError> {
        self.words += words;
        match self.words > WORDS_MAX {
            true => Err(place.wrong(format!("more than {WORDS_MAX} words; split the file"))),
            false => Ok(()),
        }
    }

    /// Returns a value with its variables replaced. A value that contains a system variable is
    /// evaluated as a product, such as `8*$ncpus`.
    fn expand(&self, place: &Place, value: &str) -> Result<String, JobFileError> {
        let mut text = String::new();
        let mut rest = value;
        while let Some((before, behind)) = rest.split_once("${") {
            let Some((name, after)) = behind.split_once('}') else {
                return Err(place.wrong(format!("{value}: ${{ without }}")));
            };
            if name.is_empty() {
                return Err(place.wrong(format!("{value}: write the variable's name into ${{}}")));
            }
            let set = self.outside.variable(name).ok_or_else(|| {
                place.wrong(format!("{value}: the variable {name} is not set; run with {name}=..."))
            })?;
            text.push_str(before);
            text.push_str(&set);
            rest = after;
        }
        text.push_str(rest);
        let mut is_sum = false;
        for name in SYSTEM_WORDS {
            let word = format!("${name}");
            if text.contains(&word) {
                is_sum = true;
                text = text.replace(&word, &self.outside.system(name).to_string());
            }
        }
        if text.len() > FILE_MAX {
            return Err(place.wrong("a value of more than 1 MiB"));
        }
        match is_sum {
            true => product(&text).ok_or_else(|| {
                place.wrong(format!("{value}: write numbers with * between them, such as 8*$ncpus"))
            }),
            false => Ok(text),
        }
    }
}

fn product(text: &str) -> Option<String> {
    let mut factors = text.split('*').map(|factor| factor.trim().parse::<u64>().ok());
    let product = factors.try_fold(1u64, |product, factor| product.checked_mul(factor?));
    product.map(|product| product.to_string())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Stub of `Includes`: texts of files and values of variables, by name.
    pub(in super::super) struct MemoryFiles<'a>(pub(in super::super) &'a [(&'a str, &'a str)]);

    impl Includes for MemoryFiles<'_> {
        fn file(&self, name: &str) -> std::io::Result<Vec<u8>> {
            let found = self.0.iter().find(|(known, _)| *known == name);
            let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
            found.map(|(_, text)| text.as_bytes().to_vec()).ok_or_else(missing)
        }

        fn variable(&self, name: &str) -> Option<String> {
            let found = self.0.iter().find(|(known, _)| *known == name);
            found.map(|(_, text)| (*text).to_owned())
        }

        fn system(&self, name: &str) -> u64 {
            if name == "ncpus" { 3 } else { 4096 }
        }
    }

    fn words(text: &str, given: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let sections = sections("t.fio", text.as_bytes(), &MemoryFiles(given));
        let sections = sections.map_err(|error| error.to_string())?;
        let entry = |entry: &Entry| format!("{}={}", entry.word, entry.value);
        let all = |s: &Section| {
            let entries: Vec<_> = s.global.iter().chain(&s.own).map(entry).collect();
            format!("{}: {}", s.name, entries.join(" "))
        };
        Ok(sections.iter().map(all).collect())
    }

    #[test]
    fn a_global_section_is_for_the_jobs_below_it() {
        let text =
            "; c\n[global]\nbs=4k # so\n[a]\n rw = read\ntime_based\n[global]\nsize=1m\n[b]\n";
        assert_eq!(words(text, &[]).unwrap(), ["a: bs=4k rw=read time_based=", "b: bs=4k size=1m"]);
    }

    #[test]
    fn files_are_included_and_variables_replaced() {
        let given =
            [("x.fio", "iodepth=${D}\ninclude y.fio"), ("y.fio", "thread"), ("D", "7"), ("NO", "")];
        let text = "[a]\ninclude x.fio\nsize=${D}k${NO}\nnumjobs=2*$ncpus\n";
        let expected = ["a: iodepth=7 thread= size=7k numjobs=6"];
        assert_eq!(words(text, &given).unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let own = ("own.fio", "include own.fio");
        for (text, expected) in [
            ("", "t.fio: the file has no job; begin one with [name]"),
            ("[global]\nbs=4k", "t.fio: the file has no job; begin one with [name]"),
            ("bs=4k", "t.fio:1: a word before the first section"),
            ("[a", "t.fio:1: [a: write [name] to begin a job"),
            ("[a]\nbs=${X", "t.fio:2: ${X: ${ without }"),
            ("[a]\nbs=${}k", "t.fio:2: ${}k: write the variable's name into ${}"),
            ("[a]\nioengine=x${X}", "t.fio:2: x${X}: the variable X is not set; run with X=..."),
            ("[a]\ninclude z.fio", "t.fio:2: include z.fio: cannot read it: entity not found"),
            (
                "[a]\ninclude own.fio",
                "own.fio:1: include own.fio: includes are 16 files deep already",
            ),
            ("[a]\nsize=$ncpus+1", "t.fio:2: $ncpus+1: write numbers with * between them"),
        ] {
            let error = words(text, &[own]).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}

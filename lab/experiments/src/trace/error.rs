//! What can be wrong with a trace of any format: which file, where, what, and what to do about it.
//!
//! Made by `open.rs` and by readers of formats, shown by verbs. Bytes of a trace are never trusted,
//! so every one of these can happen, and no text of a trace is shown unescaped or at full length.

use std::fmt;
use std::io;

use millrace_trace::TraceError;

use super::format::Format;

/// Characters of a trace's text that an error shows.
const SHOWN_MAX: usize = 60;

/// Where in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Line, from 1.
    Line(u64),
    /// Byte, from 0.
    Byte(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(line) => write!(f, "line {line}"),
            Place::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// Why a trace cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No trace is named.
    #[error("no trace is named; give files, or - for standard input")]
    Nothing,
    /// There is no such file.
    #[error(
        "{file}: no such trace; give a file, or the name NAME of a recording whose files are \
         NAME.blktrace.0, NAME.blktrace.1 and so on"
    )]
    Missing {
        /// The name.
        file: String,
    },
    /// Standard input is named beside other traces.
    #[error("-: standard input can't be read beside other traces; name it alone")]
    StdinAndFiles,
    /// A file cannot be opened or read.
    #[error("{file}: cannot be read")]
    Io {
        /// Which.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// A file has nothing in it.
    #[error("{file}: the trace is empty")]
    Empty {
        /// Which.
        file: String,
    },
    /// The file is packed by a program that is not known here.
    #[error("{file}: packed by {by}; only gzip is unpacked here: {unpack} {file} | millrace ... -")]
    Packed {
        /// Which.
        file: String,
        /// The program.
        by: &'static str,
        /// What unpacks it to standard output.
        unpack: &'static str,
    },
    /// The format is none that is known.
    #[error(
        "{file}: no format fits its first lines ({first}); tried {tried}; if it is one of these, \
         --format NAME says which and then the error says what does not fit"
    )]
    Unknown {
        /// Which.
        file: String,
        /// Its beginning, escaped and short.
        first: String,
        /// Names of formats.
        tried: String,
    },
    /// Files are of several formats, whose times cannot be compared.
    #[error(
        "{first} is {first_format} and {other} is {other_format}: traces that are read together \
         must have one format; convert one of them with `millrace-lab trace convert`"
    )]
    Mixed {
        /// The first file.
        first: String,
        /// Its format.
        first_format: Format,
        /// The first file of another format.
        other: String,
        /// Its format.
        other_format: Format,
    },
    /// Files of blktrace cannot be opened.
    #[error(transparent)]
    Blktrace(#[from] TraceError),
}

/// Why a trace cannot be read any further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A line or record is not what the format says.
    #[error("{file}: {place}: {problem}")]
    Broken {
        /// Which file.
        file: String,
        /// Where.
        place: Place,
        /// What is wrong, and what is expected.
        problem: String,
    },
    /// A file cannot be read.
    #[error("{file}: {place}: cannot be read from here on")]
    Io {
        /// Which.
        file: String,
        /// From where on.
        place: Place,
        /// Why.
        source: io::Error,
    },
    /// A file of blktrace is broken.
    #[error(transparent)]
    Blktrace(#[from] TraceError),
}

impl ReadError {
    /// The error with its reason, for a trace whose other files are read on.
    pub(super) fn text(&self) -> String {
        match self {
            ReadError::Io { source, .. } => format!("{self}: {source}"),
            _ => self.to_string(),
        }
    }
}

/// Text of a trace as an error shows it: without control characters, and short.
pub(super) fn shown(text: &str) -> String {
    let mut letters = text.chars();
    let short: String = letters.by_ref().take(SHOWN_MAX).collect();
    let more = if letters.next().is_some() { "..." } else { "" };
    format!("\"{}{more}\"", short.escape_debug())
}

//! Errors of traces of any format: file, position, problem, and advice to the user.
//!
//! `open.rs` and the format readers return these errors, and verbs print them. A trace is untrusted
//! input, so each of these errors can occur, and text of a trace is shown only escaped and
//! shortened.

use std::fmt;
use std::io;

use millrace_trace::TraceError;

const SHOWN_MAX: usize = 60;

/// Position in a trace file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePosition {
    /// Line number, counted from 1.
    Line(u64),
    /// Byte offset, counted from 0.
    Byte(u64),
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FilePosition::Line(line) => write!(f, "line {line}"),
            FilePosition::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// Reason why a trace cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No trace was named.
    #[error("no trace is named; give files, or - for standard input")]
    Nothing,
    /// The named file does not exist.
    #[error(
        "{0}: no such trace; give a file, or the name NAME of a recording whose files are \
         NAME.blktrace.0, NAME.blktrace.1 and so on"
    )]
    Missing(String),
    /// A file cannot be opened or read.
    #[error("{0}: cannot be read")]
    Io(String, #[source] io::Error),
    /// A file is empty.
    #[error("{0}: the trace is empty")]
    Empty(String),
    /// A program other than gzip compressed the file. The last field is the command that
    /// decompresses it to standard output.
    #[error(
        "{0}: compressed by {1}, and only gzip is supported; pipe it in: {2} {0} | millrace ... -"
    )]
    Packed(String, &'static str, &'static str),
    /// No known format fits the file. The error has the first line of the file and the names of all
    /// formats.
    #[error(
        "{0}: no format fits its first lines ({1}); tried {2}; if it is one of these, --format NAME \
         says which and then the error says what does not fit"
    )]
    Unknown(String, String, String),
    /// The files have different formats, whose times cannot be compared.
    #[error(
        "{0} is {1} and {2} is {3}: traces that are read together must have one format; convert \
         one of them with `millrace-lab trace convert`"
    )]
    Mixed(String, &'static str, String, &'static str),
    /// A blktrace recording cannot be opened, or standard input was named together with other
    /// traces.
    #[error(transparent)]
    Blktrace(#[from] TraceError),
}

/// Reason why the rest of a trace cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A line or record of a file is not in the format. The text says what is expected.
    #[error("{0}: {1}: {2}")]
    Broken(String, FilePosition, String),
    /// The operating system failed to read a file at this position.
    #[error("{0}: {1}: cannot be read from here on")]
    Io(String, FilePosition, #[source] io::Error),
    /// A blktrace file is damaged.
    #[error(transparent)]
    Blktrace(#[from] TraceError),
}

impl ReadError {
    pub(super) fn text(&self) -> String {
        match self {
            ReadError::Io(_, _, source) => format!("{self}: {source}"),
            _ => self.to_string(),
        }
    }
}

/// Returns text of a trace for an error message: shortened, in quotes, and with control characters
/// escaped.
pub(super) fn shown(text: &str) -> String {
    let mut letters = text.chars();
    let short: String = letters.by_ref().take(SHOWN_MAX).collect();
    let more = if letters.next().is_some() { "..." } else { "" };
    format!("\"{}{more}\"", short.escape_debug())
}

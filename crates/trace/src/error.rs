//! What can be wrong with a trace: which file, at which byte, what, and what to do about it.
//!
//! Made by `file.rs` and `reader.rs`, shown by the verb. Bytes of a trace are never trusted, so
//! every one of these can happen.

use std::fmt;
use std::io;
use std::path::PathBuf;

use millrace_block::blktrace::RecordError;

/// Why a trace cannot be read, or not any further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// There is no first file.
    #[error(
        "{}: no such trace; a trace NAME is the files NAME.blktrace.0, NAME.blktrace.1 and so on, \
         as `blktrace -o NAME` writes them", .first.display()
    )]
    Missing {
        /// The file that is not there.
        first: PathBuf,
    },
    /// A name is that of a file of something else.
    #[error(
        "{}: no recording of blktrace, which has files NAME.blktrace.0 and so on; \
         `millrace-lab trace report` reads other formats, and `millrace-lab trace convert` makes a \
         recording of them",
        .file.display()
    )]
    NoRecording {
        /// The file.
        file: PathBuf,
    },
    /// Standard input is named beside other traces.
    #[error("-: standard input can't be read beside other traces; name it alone")]
    PipeAndFiles,
    /// All files are empty.
    #[error("{}: the trace is empty: nothing was recorded", .first.display())]
    Empty {
        /// The first file.
        first: PathBuf,
    },
    /// The trace has completions, and no event with which an I/O begins.
    #[error(
        "{trace}: it has completions (C) only, and an I/O is known by its Q or D: record these, too, \
         as blktrace does without -a"
    )]
    CompletionsOnly {
        /// Its name.
        trace: String,
    },
    /// A file cannot be opened or read.
    #[error("{}: cannot be read from byte {offset} on", .file.display())]
    Io {
        /// Which.
        file: PathBuf,
        /// From where on.
        offset: u64,
        /// Why.
        source: io::Error,
    },
    /// A file holds what no recorder writes.
    #[error("{}: byte {offset}: {problem}", .file.display())]
    Broken {
        /// Which.
        file: PathBuf,
        /// Where the record begins.
        offset: u64,
        /// What.
        problem: Problem,
    },
}

impl TraceError {
    /// Bytes that were read of a record that is not whole: of a file that grows, its length when it
    /// was opened says less.
    pub(super) fn bytes_seen(&self) -> u64 {
        match self {
            TraceError::Broken { problem: Problem::Truncated { have, .. }, .. } => *have as u64,
            _ => 0,
        }
    }
}

/// A file that could not be read to its end. The rest of the trace was read without it.
#[derive(Debug)]
pub struct Damage {
    /// What is wrong, and where.
    pub error: TraceError,
    /// Bytes from there to the end of the file, if its length is known.
    pub missing_bytes: Option<u64>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        match &self.error {
            TraceError::Io { source, .. } => write!(f, ": {source}")?,
            TraceError::Empty { .. } => return f.write_str("; it is left out"),
            _ => {}
        }
        match self.missing_bytes {
            Some(bytes) => write!(f, "; the {bytes} bytes from there on are left out"),
            None => f.write_str("; everything from there on is left out"),
        }
    }
}

/// What is wrong with a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The file is no trace.
    #[error("{0}")]
    NoRecord(RecordError),
    /// The file ends inside of it.
    #[error("the file ends inside a record ({have} of {want} bytes)")]
    Truncated {
        /// Bytes that are there.
        have: usize,
        /// Bytes of the record and its data.
        want: usize,
    },
    /// The record's CPU is not that of the file.
    #[error("a record of CPU {cpu} in the file of CPU {file_cpu}: files of several traces mixed?")]
    OtherCpu {
        /// CPU of the record.
        cpu: u32,
        /// CPU of the file.
        file_cpu: u32,
    },
    /// The record's data are too short for its kind.
    #[error("a record {letters} with {have} bytes of data; there must be {want}")]
    ShortData {
        /// blkparse's letters of the event.
        letters: &'static str,
        /// Bytes that are there.
        have: usize,
        /// Bytes that must be there.
        want: usize,
    },
}

//! Errors of a trace: the file, the byte offset, the problem, and the advice for the user.
//!
//! The bytes of a trace are not trusted, so any input can cause any of these errors.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Reason why a trace cannot be read, or cannot be read to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// A trace has no files.
    #[error(
        "{}: no such trace; a trace NAME is the files NAME.blktrace.0, NAME.blktrace.1 and so on, \
         as `blktrace -o NAME` writes them", .first.display()
    )]
    Missing {
        /// Path that the trace's file of CPU 0 would have.
        first: PathBuf,
    },
    /// The named file exists, but it is not part of a blktrace recording.
    #[error(
        "{}: no recording of blktrace, which has files NAME.blktrace.0 and so on; \
         `millrace-lab trace report` reads other formats, and `millrace-lab trace convert` makes a \
         recording of them",
        .file.display()
    )]
    NoRecording {
        /// Path that the user gave as the name of a trace.
        file: PathBuf,
    },
    /// Standard input and files were named together.
    #[error("-: standard input must be the only trace")]
    PipeAndFiles,
    /// All files of the trace are empty.
    #[error("{}: the trace is empty: nothing was recorded", .first.display())]
    Empty {
        /// Path of the trace's first file.
        first: PathBuf,
    },
    /// The trace has only completions, so the start of its I/Os is unknown.
    #[error(
        "{trace}: the trace has completions (C) only; record queue (Q) or issue (D) events as \
         well, as blktrace does without -a"
    )]
    CompletionsOnly {
        /// Name of the trace, or of standard input.
        trace: String,
    },
    /// A file cannot be opened or read.
    #[error("{}: the file cannot be read from byte {offset} on", .file.display())]
    Io {
        /// Path of the file.
        file: PathBuf,
        /// Byte offset at which the read failed.
        offset: u64,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file contains a malformed record.
    #[error("{}: byte {offset}: {problem}", .file.display())]
    Broken {
        /// Path of the file.
        file: PathBuf,
        /// Byte offset at which the record begins.
        offset: u64,
        /// Description of what is wrong with the record.
        problem: String,
        /// Bytes of a truncated record that were read, or 0.
        seen_bytes: u64,
    },
}

impl TraceError {
    /// Returns how many bytes of a truncated record were read, or 0 for other errors.
    pub(super) fn bytes_seen(&self) -> u64 {
        match self {
            TraceError::Broken { seen_bytes, .. } => *seen_bytes,
            _ => 0,
        }
    }
}

/// A file that could not be read to its end. The reader went on with the other files of the trace.
#[derive(Debug)]
pub struct DamagedFile {
    /// The error, with file and byte offset.
    pub error: TraceError,
    /// Bytes between the error and the end of the file; `None` if the file's length is unknown.
    pub missing_bytes: Option<u64>,
}

impl fmt::Display for DamagedFile {
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

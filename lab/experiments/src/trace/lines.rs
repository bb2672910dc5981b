//! `TraceLines`: the lines of a text trace, numbered and of bounded length.
//!
//! Owns the buffer of one line. The `csv` crate is not used: it has no limit on a record's length,
//! so one stray quotation mark would make it read a whole trace into memory, and no trace uses
//! quotes.

use std::io::{BufRead, Read};

use super::error::{FilePosition, ReadError};
use super::input::{InputStream, ReadGauge};

/// Longest line in bytes; FIU's lines have 33 bytes per block.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Returns the content of a line: without surrounding blanks and a byte order mark (U+FEFF), and
/// empty for a comment.
pub(super) fn said(line: &str) -> &str {
    let line = line.trim_start_matches('\u{feff}').trim();
    if line.starts_with('#') { "" } else { line }
}

/// Reader of the lines of one file.
pub(super) struct TraceLines {
    file: String,
    input: Box<dyn BufRead + Send>,
    gauge: ReadGauge,
    bytes: Vec<u8>,
    text: String,
    line: u64,
    /// Number of lines with content, so far.
    row: u64,
}

impl TraceLines {
    pub(super) fn new(input: InputStream) -> TraceLines {
        let (file, gauge) = (input.label.clone(), input.gauge.clone());
        let input = input.into_reader();
        TraceLines { file, input, gauge, bytes: Vec::new(), text: String::new(), line: 0, row: 0 }
    }

    /// Returns the next line with content, without its end; invalid UTF-8 is replaced.
    ///
    /// # Errors
    /// If the file cannot be read, or the line is too long.
    pub(super) fn next(&mut self) -> Result<Option<&str>, ReadError> {
        loop {
            self.bytes.clear();
            let mut limited = self.input.by_ref().take(LINE_BYTES_MAX as u64 + 1);
            let read =
                limited.read_until(b'\n', &mut self.bytes).map_err(|source| ReadError::Io {
                    file: self.file.clone(),
                    place: FilePosition::Line(self.line + 1),
                    source,
                })?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            if read > LINE_BYTES_MAX {
                let problem =
                    format!("a line has more than {LINE_BYTES_MAX} bytes; is this a text file?");
                return Err(self.broken(problem));
            }
            self.text.clear();
            self.text.push_str(said(&String::from_utf8_lossy(&self.bytes)));
            if !self.text.is_empty() {
                break;
            }
        }
        self.row += 1;
        Ok(Some(&self.text))
    }

    /// Returns the number of the last line read, counting only lines with content.
    pub(super) fn row(&self) -> u64 {
        self.row
    }

    /// Returns the name of the file.
    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Creates an error about the last line read.
    pub(super) fn broken(&self, problem: String) -> ReadError {
        ReadError::Broken { file: self.file.clone(), place: FilePosition::Line(self.line), problem }
    }

    pub(super) fn gauge(&self) -> &ReadGauge {
        &self.gauge
    }
}

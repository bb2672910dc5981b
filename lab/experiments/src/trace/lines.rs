//! `Lines`: the lines of a text trace, numbered and of bounded length.
//!
//! Owns the buffer of one line. The `csv` crate is not used: it has no bound for a record, so that
//! one quotation mark would have it take a whole trace into memory, and no trace has quotes.

use std::io::{BufRead, Read};

use super::error::{Place, ReadError};
use super::input::{Input, ReadGauge};

/// Bytes of a line; FIU's have 33 for each block.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What a line says: nothing if it is a comment; without blanks around it and the mark that some
/// programs begin a file with (U+FEFF).
pub(super) fn said(line: &str) -> &str {
    let line = line.trim_start_matches('\u{feff}').trim();
    if line.starts_with('#') { "" } else { line }
}

/// Lines of one file.
pub(super) struct Lines {
    file: String,
    input: Box<dyn BufRead + Send>,
    gauge: ReadGauge,
    bytes: Vec<u8>,
    text: String,
    line: u64,
    /// Lines that say something, so far.
    row: u64,
}

impl Lines {
    pub(super) fn new(input: Input) -> Lines {
        let (file, gauge) = (input.label.clone(), input.gauge.clone());
        let input = input.into_reader();
        Lines { file, input, gauge, bytes: Vec::new(), text: String::new(), line: 0, row: 0 }
    }

    /// The next line that says something, without its end; bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    /// If the file cannot be read, or the line is too long.
    pub(super) fn next(&mut self) -> Result<Option<&str>, ReadError> {
        loop {
            self.bytes.clear();
            let mut limited = self.input.by_ref().take(LINE_BYTES_MAX as u64 + 1);
            let read = limited.read_until(b'\n', &mut self.bytes).map_err(|source| {
                ReadError::Io { file: self.file.clone(), place: Place::Line(self.line + 1), source }
            })?;
            if read == 0 {
                return Ok(None);
            }
            self.line += 1;
            if read > LINE_BYTES_MAX {
                let problem = format!("a line of more than {LINE_BYTES_MAX} bytes: is it text?");
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

    /// Number of the line that was read last, among those that say something.
    pub(super) fn row(&self) -> u64 {
        self.row
    }

    /// Name of the file.
    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// An error of the line that was read last.
    pub(super) fn broken(&self, problem: String) -> ReadError {
        ReadError::Broken { file: self.file.clone(), place: Place::Line(self.line), problem }
    }

    pub(super) fn gauge(&self) -> &ReadGauge {
        &self.gauge
    }
}

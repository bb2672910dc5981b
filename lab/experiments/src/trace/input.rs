//! `InputStream`: the bytes of one trace file or of standard input.
//!
//! `TraceLines` splits the bytes into lines, and `TraceRecords` into binary records. Both add the
//! position to errors. `detect.rs` finds the trace format from the first bytes of the input.
//!
//! An input that begins with the two magic bytes of gzip is decompressed, whatever the name of the
//! file. Several concatenated gzip members are one stream, as for zcat.
//!
//! Lines are not read with the `csv` crate, because that crate has no limit on the length of a
//! record. After one stray quotation mark, it would read a whole trace into memory. No trace format
//! uses quotes.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;

use super::error::{FilePosition, ReadError};

const HEAD_BYTES: usize = 4_096;
const BUFFER_BYTES: usize = 64 << 10;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Longest line in bytes. FIU traces have 33 bytes per block in a line.
const LINE_BYTES_MAX: usize = 64 << 10;

/// A trace named on the command line: standard input, a file, or a recording of several files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TracePath {
    /// Standard input, written as `-`.
    Stdin,
    /// A file, or the base name of a blktrace recording.
    Named(PathBuf),
}

impl From<&str> for TracePath {
    fn from(name: &str) -> TracePath {
        if name == "-" { TracePath::Stdin } else { TracePath::Named(name.into()) }
    }
}

impl From<&Path> for TracePath {
    fn from(path: &Path) -> TracePath {
        TracePath::Named(path.into())
    }
}

impl fmt::Display for TracePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TracePath::Stdin => f.write_str("standard input"),
            TracePath::Named(path) => path.display().fmt(f),
        }
    }
}

pub(super) struct InputStream {
    pub(super) label: String,
    input: io::Chain<io::Cursor<Vec<u8>>, Box<dyn BufRead + Send>>,
    pub(super) gauge: ReadGauge,
}

impl InputStream {
    pub(super) fn open(
        path: &TracePath,
        is_enough: impl Fn(&[u8]) -> bool,
    ) -> io::Result<InputStream> {
        let label = path.to_string();
        match path {
            TracePath::Stdin => {
                InputStream::new(label, io::stdin(), ReadGauge::default(), is_enough)
            }
            TracePath::Named(path) => {
                let file = File::open(path)?;
                let metadata = file.metadata()?;
                if metadata.is_dir() {
                    return Err(io::ErrorKind::IsADirectory.into());
                }
                let bytes = if metadata.is_file() { metadata.len() } else { 0 };
                let file = Arc::new(file);
                InputStream::new(
                    label,
                    file.clone(),
                    ReadGauge { file: Some(file), bytes },
                    is_enough,
                )
            }
        }
    }

    /// Creates an input and reads the first 4 KiB for detection. Stops earlier if `is_enough`
    /// accepts the bytes read, because a pipe may not deliver more for a long time.
    pub(super) fn new(
        label: String,
        raw: impl Read + Send + 'static,
        gauge: ReadGauge,
        is_enough: impl Fn(&[u8]) -> bool,
    ) -> io::Result<InputStream> {
        let mut raw = BufReader::with_capacity(BUFFER_BYTES, raw);
        let magic = take(&mut raw, GZIP_MAGIC.len(), |_| false)?;
        let zipped = magic == GZIP_MAGIC;
        let raw = io::Cursor::new(magic).chain(raw);
        let mut rest: Box<dyn BufRead + Send> = match zipped {
            true => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(raw))),
            false => Box::new(raw),
        };
        let head = take(&mut rest, HEAD_BYTES, is_enough)?;
        Ok(InputStream { label, input: io::Cursor::new(head).chain(rest), gauge })
    }

    pub(super) fn head(&self) -> &[u8] {
        self.input.get_ref().0.get_ref()
    }

    fn broken(&self, place: FilePosition, problem: String) -> ReadError {
        ReadError::Broken(self.label.clone(), place, problem)
    }

    fn failed(&self, place: FilePosition, source: io::Error) -> ReadError {
        ReadError::Io(self.label.clone(), place, source)
    }
}

impl Read for InputStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.input.read(buffer)
    }
}

/// Returns a line without surrounding blanks and byte order mark (U+FEFF). Empty for a comment.
pub(super) fn said(line: &str) -> &str {
    let line = line.trim_start_matches('\u{feff}').trim();
    if line.starts_with('#') { "" } else { line }
}

pub(super) struct TraceLines {
    input: InputStream,
    bytes: Vec<u8>,
    text: String,
    line: u64,
    row: u64,
}

impl TraceLines {
    pub(super) fn new(input: InputStream) -> TraceLines {
        TraceLines { input, bytes: Vec::new(), text: String::new(), line: 0, row: 0 }
    }

    /// Returns the next line that is neither blank nor a comment, without its end. Invalid UTF-8 is
    /// replaced.
    pub(super) fn next(&mut self) -> Result<Option<&str>, ReadError> {
        loop {
            self.bytes.clear();
            self.line += 1;
            let mut limited = self.input.input.by_ref().take(LINE_BYTES_MAX as u64 + 1);
            match limited.read_until(b'\n', &mut self.bytes) {
                Ok(0) => return Ok(None),
                Ok(bytes) if bytes > LINE_BYTES_MAX => {
                    let problem = format!(
                        "a line has more than {LINE_BYTES_MAX} bytes; is this a text file?"
                    );
                    return Err(self.broken(problem));
                }
                Ok(_) => {}
                Err(error) => return Err(self.input.failed(FilePosition::Line(self.line), error)),
            }
            self.text.clear();
            self.text.push_str(said(&String::from_utf8_lossy(&self.bytes)));
            if !self.text.is_empty() {
                self.row += 1;
                return Ok(Some(&self.text));
            }
        }
    }

    pub(super) fn row(&self) -> u64 {
        self.row
    }

    pub(super) fn label(&self) -> &str {
        &self.input.label
    }

    pub(super) fn broken(&self, problem: String) -> ReadError {
        self.input.broken(FilePosition::Line(self.line), problem)
    }
}

pub(super) struct TraceRecords {
    input: InputStream,
    offset: u64,
    have: u64,
}

impl TraceRecords {
    pub(super) fn new(input: InputStream) -> TraceRecords {
        TraceRecords { input, offset: 0, have: 0 }
    }

    /// Reads the first `len` bytes of the next record; None at the end of the input.
    pub(super) fn begin(&mut self, len: usize) -> Result<Option<Vec<u8>>, ReadError> {
        self.offset += std::mem::take(&mut self.have);
        match self.more(len) {
            Err(ReadError::Broken(..)) if self.have == 0 => Ok(None),
            bytes => bytes.map(Some),
        }
    }

    pub(super) fn more(&mut self, len: usize) -> Result<Vec<u8>, ReadError> {
        let mut bytes = Vec::with_capacity(len);
        self.copy(len as u64, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn pass(&mut self, len: u64) -> Result<(), ReadError> {
        self.copy(len, &mut io::sink())
    }

    fn copy(&mut self, len: u64, to: &mut impl io::Write) -> Result<(), ReadError> {
        let want = self.have + len;
        let copied = io::copy(&mut self.input.by_ref().take(len), to);
        let place = FilePosition::Byte(self.offset);
        self.have += copied.map_err(|error| self.input.failed(place, error))?;
        if self.have < want {
            let have = self.have;
            let problem = format!("the trace ends inside a record ({have} of {want} bytes)");
            return Err(self.broken(problem));
        }
        Ok(())
    }

    pub(super) fn broken(&self, problem: String) -> ReadError {
        self.input.broken(FilePosition::Byte(self.offset), problem)
    }
}

/// Reads `want` bytes. Stops earlier at the end of the input, or when `is_enough` accepts the
/// bytes.
fn take(
    input: &mut impl Read,
    want: usize,
    is_enough: impl Fn(&[u8]) -> bool,
) -> io::Result<Vec<u8>> {
    let (mut bytes, mut len) = (vec![0; want], 0);
    while len < want && !(len > 0 && is_enough(&bytes[..len])) {
        match input.read(&mut bytes[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(len);
    Ok(bytes)
}

#[derive(Debug, Clone, Default)]
pub(super) struct ReadGauge {
    file: Option<Arc<File>>,
    bytes: u64,
}

impl ReadGauge {
    /// Returns true if the total length is unknown, as for a pipe.
    pub(super) fn is_open_ended(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the number of bytes read so far, and the total number of bytes. An unknown number is
    /// 0.
    pub(super) fn progress(&self) -> (u64, u64) {
        let at = self.file.as_ref().and_then(|file| file.as_ref().stream_position().ok());
        (at.unwrap_or(0), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn all(bytes: Vec<u8>) -> Vec<u8> {
        let input =
            InputStream::new("t".into(), io::Cursor::new(bytes), ReadGauge::default(), |_| false);
        let mut all = Vec::new();
        input.unwrap().read_to_end(&mut all).unwrap();
        all
    }

    #[test]
    fn gzip_is_known_by_its_magic_and_members_follow_each_other() {
        let zip = |bytes: &[u8]| {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(1));
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let long = vec![b'x'; 3 * HEAD_BYTES];
        assert_eq!(all(long.clone()), long);
        assert_eq!(all([zip(&long), zip(b"end")].concat()), [&long[..], b"end"].concat());
        assert_eq!(all(vec![0x1f]), [0x1f]);
        assert_eq!(all(Vec::new()), b"");
    }
}

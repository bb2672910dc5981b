//! `Input`: the bytes of one trace file or of standard input, unzipped where they are gzipped.
//!
//! Owns the first bytes, by which `detect.rs` finds the format, and how far the file is read.
//! gzip is known by its first two bytes, whatever the file is called; several gzip members one
//! after the other are one stream, as for zcat.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;

/// Bytes by which a format is found.
const HEAD_BYTES: usize = 4_096;
/// Bytes that are read at once.
const BUFFER_BYTES: usize = 64 << 10;
/// The first bytes of what gzip writes.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// What the command line names: a file, a recording, or standard input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TracePath {
    /// `-`.
    Stdin,
    /// A file, or the name of a recording of blktrace.
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

/// The bytes of a trace.
pub(super) struct Input {
    /// What it is called in errors.
    pub(super) label: String,
    /// Its first bytes, which are still to be read.
    pub(super) head: Vec<u8>,
    /// What is behind them.
    rest: Box<dyn BufRead + Send>,
    /// How far it is.
    pub(super) gauge: ReadGauge,
}

impl Input {
    /// Opens what the command line names.
    pub(super) fn open(path: &TracePath, is_enough: impl Fn(&[u8]) -> bool) -> io::Result<Input> {
        let label = path.to_string();
        match path {
            TracePath::Stdin => Input::new(label, io::stdin(), ReadGauge::default(), is_enough),
            TracePath::Named(path) => {
                let file = File::open(path)?;
                let metadata = file.metadata()?;
                if metadata.is_dir() {
                    return Err(io::ErrorKind::IsADirectory.into());
                }
                let bytes = if metadata.is_file() { metadata.len() } else { 0 };
                let file = Arc::new(file);
                Input::new(label, file.clone(), ReadGauge { file: Some(file), bytes }, is_enough)
            }
        }
    }

    /// An input of these bytes. It waits for the first 4 KiB, or until `is_enough` of them are
    /// there: a pipe may bring no more for long.
    pub(super) fn new(
        label: String,
        raw: impl Read + Send + 'static,
        gauge: ReadGauge,
        is_enough: impl Fn(&[u8]) -> bool,
    ) -> io::Result<Input> {
        let mut raw = BufReader::with_capacity(BUFFER_BYTES, raw);
        let magic = take(&mut raw, GZIP_MAGIC.len(), |_| false)?;
        let zipped = magic == GZIP_MAGIC;
        let raw = io::Cursor::new(magic).chain(raw);
        let mut rest: Box<dyn BufRead + Send> = match zipped {
            true => Box::new(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(raw))),
            false => Box::new(raw),
        };
        let head = take(&mut rest, HEAD_BYTES, is_enough)?;
        Ok(Input { label, head, rest, gauge })
    }

    /// All of its bytes, in order.
    pub(super) fn into_reader(self) -> Box<dyn BufRead + Send> {
        Box::new(io::Cursor::new(self.head).chain(self.rest))
    }
}

/// The next bytes: `want` of them, or fewer where the input ends or they are enough.
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

/// How far a file is read.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadGauge {
    file: Option<Arc<File>>,
    bytes: u64,
}

impl ReadGauge {
    /// Whether the end is not known: a pipe, which may be written at this moment.
    pub(super) fn is_open_ended(&self) -> bool {
        self.bytes == 0
    }

    /// Bytes that were read, and all bytes; 0 where that is not known.
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
        let input = Input::new("t".into(), io::Cursor::new(bytes), ReadGauge::default(), |_| false);
        let input = input.unwrap();
        let mut all = Vec::new();
        input.into_reader().read_to_end(&mut all).unwrap();
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

//! `InputStream`: the bytes of one trace file or of standard input, decompressed if they are
//! gzipped.
//!
//! Owns the first bytes, from which `detect.rs` finds the format, and the read progress. gzip is
//! recognized by its first two bytes, whatever the file is called; several concatenated gzip
//! members are one stream, as for zcat.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;

/// Number of bytes available to format detection.
const HEAD_BYTES: usize = 4_096;
/// Size of the read buffer.
const BUFFER_BYTES: usize = 64 << 10;
/// First bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A trace named on the command line: a file, a recording, or standard input.
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

/// The bytes of a trace.
pub(super) struct InputStream {
    /// Name of the input in error messages.
    pub(super) label: String,
    /// First bytes, read ahead for detection; readers get them again.
    pub(super) head: Vec<u8>,
    /// Rest of the input, after `head`.
    rest: Box<dyn BufRead + Send>,
    /// Read progress.
    pub(super) gauge: ReadGauge,
}

impl InputStream {
    /// Opens a file or standard input.
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

    /// Creates an input. Reads the first 4 KiB, or less once `is_enough` accepts the bytes so far,
    /// since a pipe may not deliver more for a long time.
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
        Ok(InputStream { label, head, rest, gauge })
    }

    /// Returns a reader of all its bytes, in order.
    pub(super) fn into_reader(self) -> Box<dyn BufRead + Send> {
        Box::new(io::Cursor::new(self.head).chain(self.rest))
    }
}

/// Reads `want` bytes, or fewer if the input ends or `is_enough` accepts them.
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

/// Read position in a file.
#[derive(Debug, Clone, Default)]
pub(super) struct ReadGauge {
    file: Option<Arc<File>>,
    bytes: u64,
}

impl ReadGauge {
    /// Returns true if the length is unknown, as of a pipe that is still being written.
    pub(super) fn is_open_ended(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the bytes read so far and the total; 0 where unknown.
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

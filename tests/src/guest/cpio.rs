//! Writes an initial RAM file system: an archive in the format `newc` of cpio.
//!
//! Owns the archive's file while it is written. Called by `image`; calls nothing. No archiver is
//! used, because every entry must belong to root, whichever user runs the test. Directories above
//! an entry are added before it, once.
//!
//! # Source
//!
//! Linux, Documentation/driver-api/early-userspace/buffer-format.rst.

use std::collections::BTreeSet;
use std::io::{self, Write};

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

/// An archive that is being written to `sink`.
pub struct Archive<W: Write> {
    sink: W,
    entries: u32,
    folders: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    /// An empty archive.
    pub fn new(sink: W) -> Self {
        Self { sink, entries: 0, folders: BTreeSet::new() }
    }

    /// Adds the directory `path`, absolute in the guest, unless it is there.
    pub fn folder(&mut self, path: &str) -> io::Result<()> {
        let path = path.trim_matches('/');
        if path.is_empty() || self.folders.contains(path) {
            return Ok(());
        }
        self.parent_of(path)?;
        self.folders.insert(path.to_owned());
        self.entry(path, FOLDER, &[])
    }

    /// Adds the file `path`, absolute in the guest, which may be executed.
    pub fn file(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        let path = path.trim_matches('/');
        self.parent_of(path)?;
        self.entry(path, PROGRAM, content)
    }

    /// Ends the archive and gives its sink back.
    pub fn finish(mut self) -> io::Result<W> {
        self.entry("TRAILER!!!", 0, &[])?;
        self.sink.flush()?;
        Ok(self.sink)
    }

    fn parent_of(&mut self, path: &str) -> io::Result<()> {
        path.rsplit_once('/').map_or(Ok(()), |(folder, _)| self.folder(folder))
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entries += 1;
        let length = u32::try_from(content.len()).map_err(io::Error::other)?;
        let name_length = u32::try_from(path.len() + 1).map_err(io::Error::other)?;
        // ino, mode, uid, gid, nlink, mtime, filesize, devmajor, devminor, rdevmajor, rdevminor,
        // namesize, check
        let fields = [self.entries, mode, 0, 0, 1, 0, length, 0, 0, 0, 0, name_length, 0];
        let mut head = String::from("070701");
        head.extend(fields.map(|field| format!("{field:08x}")));
        head.push_str(path);
        head.push('\0');
        self.padded(head.as_bytes())?;
        self.padded(content)
    }

    /// Head and content each end at a multiple of four bytes.
    fn padded(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.sink.write_all(bytes)?;
        self.sink.write_all(&[0; 3][..bytes.len().wrapping_neg() % 4])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_folders_precede_their_content() {
        let mut archive = Archive::new(Vec::new());
        archive.file("/a/b/one", b"12345").unwrap();
        archive.file("/a/two", b"").unwrap();
        archive.folder("/a/b").unwrap();
        let bytes = archive.finish().unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let (mut at, mut names) = (0, Vec::new());
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let field = |n: usize| {
                let digits = &bytes[at + 6 + 8 * n..at + 14 + 8 * n];
                usize::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
            };
            let name = &bytes[at + 110..at + 109 + field(11)];
            names.push(String::from_utf8(name.to_vec()).unwrap());
            at += (110 + field(11)).next_multiple_of(4) + field(6).next_multiple_of(4);
        }
        assert_eq!(names, ["a", "a/b", "a/b/one", "a/two", "TRAILER!!!"]);
    }
}

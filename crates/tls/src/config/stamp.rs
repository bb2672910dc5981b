//! Whether files have changed, told by what the system says of them.
//!
//! Owns the comparison. Called by the configuration of a server at each look: one system call for
//! each file, no byte of them is read.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What the system says of some files; files that are replaced, written or gone differ.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Stamp(Vec<Option<FileStamp>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FileStamp {
    place: (u64, u64),
    len_bytes: u64,
    /// Seconds and nanoseconds of the last change of contents, and of anything.
    times: [i64; 4],
}

impl Stamp {
    /// The stamp of these files now.
    pub(super) fn of<'a>(paths: impl Iterator<Item = &'a Path>) -> Stamp {
        Stamp(
            paths
                .map(|path| std::fs::metadata(path).ok().map(|file| FileStamp::of(&file)))
                .collect(),
        )
    }
}

impl FileStamp {
    fn of(file: &std::fs::Metadata) -> FileStamp {
        FileStamp {
            place: (file.dev(), file.ino()),
            len_bytes: file.len(),
            times: [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()],
        }
    }
}

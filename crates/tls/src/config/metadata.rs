//! Detects changes of files by their metadata.
//!
//! The configuration of a server calls this at each check. It makes one system call for each file
//! and does not read the contents.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Metadata of some files. Two snapshots differ if a file was replaced, written or removed in
/// between.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct MetadataSnapshot(Vec<Option<FileMetadata>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FileMetadata {
    place: (u64, u64),
    len_bytes: u64,
    /// Seconds and nanoseconds of mtime, then of ctime.
    times: [i64; 4],
}

impl MetadataSnapshot {
    /// Reads the current metadata of these files.
    pub(super) fn of<'a>(paths: impl Iterator<Item = &'a Path>) -> MetadataSnapshot {
        MetadataSnapshot(
            paths
                .map(|path| std::fs::metadata(path).ok().map(|file| FileMetadata::of(&file)))
                .collect(),
        )
    }
}

impl FileMetadata {
    fn of(file: &std::fs::Metadata) -> FileMetadata {
        FileMetadata {
            place: (file.dev(), file.ino()),
            len_bytes: file.len(),
            times: [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()],
        }
    }
}

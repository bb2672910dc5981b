//! `CreatedFile`: a drive's file that was created by opening the drive, and is removed again if the
//! drive cannot be opened.
//!
//! The file is identified by device and inode, so that no other file is ever removed.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct CreatedFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl CreatedFile {
    /// Creates an empty file that only its user may read. Returns `None` if the file exists.
    pub(super) fn at(path: &Path) -> io::Result<Option<CreatedFile>> {
        // The file is created without O_DIRECT, because a refused O_DIRECT would leave the created
        // file behind.
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            made => made?,
        };
        let meta = file.metadata()?;
        Ok(Some(CreatedFile { path: path.to_owned(), identity: (meta.dev(), meta.ino()) }))
    }

    pub(super) fn keep(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for CreatedFile {
    fn drop(&mut self) {
        let now = fs::symlink_metadata(&self.path).map(|meta| (meta.dev(), meta.ino()));
        if now.is_ok_and(|now| now == self.identity) {
            // If removing fails, an empty file stays behind.
            let _ = fs::remove_file(&self.path);
        }
    }
}

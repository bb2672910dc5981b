//! A drive's file that this start has made, removed again unless the drive can be opened.
//!
//! Owns nothing but the path and which file it is: only the very file that was made here (device
//! and inode) is ever removed. Used by open.rs.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A file that was made; dropping it removes the file.
#[derive(Debug)]
pub(super) struct CreatedFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl CreatedFile {
    /// Makes an empty file that only its user may read, unless there is one.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn at(path: &Path) -> io::Result<Option<CreatedFile>> {
        // Not with O_DIRECT: where that is refused the file is made all the same.
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let file = match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            made => made?,
        };
        let meta = file.metadata()?;
        Ok(Some(CreatedFile { path: path.to_owned(), identity: (meta.dev(), meta.ino()) }))
    }

    /// The drive is open: the file stays.
    pub(super) fn keep(mut self) {
        self.path = PathBuf::new();
    }
}

impl Drop for CreatedFile {
    fn drop(&mut self) {
        let now = fs::symlink_metadata(&self.path).map(|meta| (meta.dev(), meta.ino()));
        if now.is_ok_and(|now| now == self.identity) {
            // If it cannot be removed, it is empty.
            let _ = fs::remove_file(&self.path);
        }
    }
}

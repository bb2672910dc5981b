//! What a start has created, removed again unless the start succeeds.
//!
//! Owns the list of files and the data folder. A file counts as created here only if it was not
//! there before its drive was opened and is the very file (device and inode) that was opened, so
//! nobody else's file is ever removed. Used by `serve` and opening.rs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use millrace::{FileId, file_id};

/// Files and folders of this start; dropping it removes them.
#[derive(Debug, Default)]
pub struct Created {
    files: Vec<(PathBuf, FileId)>,
    folder: Option<PathBuf>,
}

impl Created {
    /// Makes a folder if it is missing; the folders above it must be there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn folder(&mut self, folder: &Path) -> anyhow::Result<()> {
        if folder.is_dir() {
            return Ok(());
        }
        fs::create_dir(folder).with_context(|| {
            format!("cannot make the data folder {}; name another by --data-dir", folder.display())
        })?;
        self.folder = Some(folder.to_owned());
        Ok(())
    }

    /// Notes a file that was not there before it was opened.
    pub fn file(&mut self, path: PathBuf, opened: FileId) {
        self.files.push((path, opened));
    }

    /// The start has succeeded: all stays.
    pub fn keep(mut self) {
        self.files.clear();
        self.folder = None;
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        for (path, opened) in &self.files {
            if file_id(path) == Some(*opened) {
                let _ = fs::remove_file(path);
            }
        }
        if let Some(folder) = &self.folder {
            // Refused by the system if anything else is in it.
            let _ = fs::remove_dir(folder);
        }
    }
}

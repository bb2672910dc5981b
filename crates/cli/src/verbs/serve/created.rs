//! What a start has created, removed again unless the start succeeds.
//!
//! Owns the data folder, and the list of files that opening drives has made, which the library
//! keeps: only the very files that were made are ever removed. Used by `serve` and opening.rs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Files and folders of this start; dropping it removes them.
#[derive(Debug, Default)]
pub struct Created {
    files: millrace::Created,
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

    /// Takes over the files of drives that were opened.
    pub fn files(&mut self, files: &mut millrace::Created) {
        self.files.append(files);
    }

    /// The start has succeeded: all stays.
    pub fn keep(mut self) {
        self.files = millrace::Created::default();
        self.folder = None;
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        self.files.remove();
        if let Some(folder) = &self.folder {
            // Refused by the system if anything else is in it.
            let _ = fs::remove_dir(folder);
        }
    }
}

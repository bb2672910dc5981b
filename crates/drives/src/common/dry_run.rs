//! `DryRun`: settings of an opening that only examines a drive.
//!
//! A dry run finds the errors, size and remarks of a real opening. A dry run creates and changes
//! nothing, and keeps no lock, file or connection. File, NBD and Ceph drives obey it and return a
//! null driver in place of their own. The other drives have nothing outside this process, and open
//! as always.

use std::path::{Path, PathBuf};
use std::time::Instant;

/// Settings of an opening that only examines a drive.
#[derive(Debug, Clone)]
pub struct DryRun {
    /// Time until which locks of other processes are waited for. A process that was killed keeps
    /// its locks for some time.
    pub until: Instant,
    /// Folder that a real start would create before it opens any drive.
    pub new_folder: Option<PathBuf>,
}

impl DryRun {
    /// Returns the folder of a file, or one on the file system on which it will be created.
    pub(crate) fn folder_of<'a>(&self, file: &'a Path) -> &'a Path {
        let mut folders = file.ancestors().skip(1);
        let in_place = |folder: &'a Path| match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        };
        let folder = in_place(folders.next().unwrap_or(file));
        match self.new_folder.as_deref() == Some(folder) {
            true => folders.map(in_place).find(|above| above.exists()).unwrap_or(folder),
            false => folder,
        }
    }
}

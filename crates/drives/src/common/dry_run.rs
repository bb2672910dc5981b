//! `DryRun`: settings of a dry run, which examines a drive but does not open it for use.
//!
//! A dry run finds the errors, size and remarks that opening the drive would give. A dry run
//! creates and changes nothing, and keeps no lock, file or connection. File, NBD and Ceph drives
//! obey these settings and return a null driver instead of their own. All other drives use nothing
//! outside this process, so they are opened as usual.

use std::path::{Path, PathBuf};
use std::time::Instant;

use super::place::folder_of;

/// Settings of a dry run, which examines a drive but does not open it for use.
#[derive(Debug, Clone)]
pub struct DryRun {
    /// Deadline for waiting until other processes release their locks. A killed process keeps its
    /// locks for some time.
    pub until: Instant,
    /// Folder that a start would create before it opens any drive. A dry run does not create the
    /// folder.
    pub new_folder: Option<PathBuf>,
}

impl DryRun {
    /// Returns the folder that contains `file`. If that is `new_folder`, which does not exist yet,
    /// returns the nearest existing folder above it.
    pub(crate) fn folder_of<'a>(&self, file: &'a Path) -> &'a Path {
        let mut folder = folder_of(file);
        if self.new_folder.as_deref() == Some(folder) {
            while !folder.exists() && folder_of(folder) != folder {
                folder = folder_of(folder);
            }
        }
        folder
    }
}

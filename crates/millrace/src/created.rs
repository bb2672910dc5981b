//! `Created`: files that were created while drives were opened. If the start as a whole fails, the
//! files are removed.
//!
//! Each path is stored with the device and inode numbers of its file. So a file that has replaced
//! the created file is never removed. A file counts as created if its path did not exist before its
//! drive was opened.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(crate) type FileId = (u64, u64);

pub(crate) fn file_id(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Files that were created while drives were opened, in the order of the drives.
#[derive(Debug, Clone, Default)]
pub struct Created {
    files: Vec<(PathBuf, FileId)>,
}

impl Created {
    /// Returns the paths of the files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// Removes the files, except at paths where another file exists now. Ignores errors.
    pub fn remove(&mut self) {
        for (path, made) in self.files.drain(..) {
            if file_id(&path) == Some(made) {
                let _ = fs::remove_file(&path);
            }
        }
    }

    /// Moves the files of `other` to the end of this list.
    pub fn append(&mut self, other: &mut Created) {
        self.files.append(&mut other.files);
    }

    /// Returns the files after the first `count`.
    #[must_use]
    pub fn after(&self, count: usize) -> Created {
        Created { files: self.files[count.min(self.files.len())..].to_vec() }
    }
}

/// Files created while drives are being opened. Dropping this value removes the files.
#[derive(Debug, Default)]
pub(crate) struct UnfinishedFiles(pub(crate) Created);

impl UnfinishedFiles {
    pub(crate) fn note(&mut self, path: Option<PathBuf>, opened: Option<FileId>) {
        self.0.files.extend(path.zip(opened));
    }

    pub(crate) fn keep(&mut self) -> Created {
        std::mem::take(&mut self.0)
    }
}

impl Drop for UnfinishedFiles {
    fn drop(&mut self) {
        self.0.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BlockDevice, Layout, VolumeOptions, build_volume};

    fn specs(folder: &Path, last: &str) -> [String; 3] {
        let file = |name| format!("file:path={},size=1m", folder.join(name).display());
        [file("new"), file("old"), last.to_owned()]
    }

    /// Names of the files in the directory after a failure.
    fn left(folder: &Path) -> Vec<String> {
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        fs::read_dir(folder).unwrap().map(|entry| name(entry.unwrap())).collect()
    }

    #[test]
    fn failed_stripe_removes_only_files_that_it_made() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("old"), []).unwrap();
        // The last drive cannot be opened, or does not go with the others.
        for last in ["file:path=/no/such/folder/x,size=1m", "ram:size=512"] {
            let specs = specs(dir.path(), last);
            assert!(BlockDevice::stripe(&specs).is_err());
            assert_eq!(left(dir.path()), ["old"], "{last}");
            let drives = specs.map(|spec| spec.parse().unwrap());
            let layout = Layout::Stripe { chunk_sectors: 128 };
            assert!(build_volume("v", layout, &drives, &VolumeOptions::default()).is_err());
            assert_eq!(left(dir.path()), ["old"], "{last}");
        }
        drop(BlockDevice::stripe(&specs(dir.path(), "ram:size=1m")).unwrap());
        assert_eq!(left(dir.path()).len(), 2, "what is open stays");
    }

    #[test]
    fn a_file_in_the_place_of_one_that_was_made_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let mut files = UnfinishedFiles::default();
        fs::write(&path, "made").unwrap();
        files.note(Some(path.clone()), file_id(&path));
        fs::rename(&path, dir.path().join("kept")).unwrap();
        fs::write(&path, "another").unwrap();
        drop(files);
        assert_eq!(fs::read(&path).unwrap(), b"another");
    }
}

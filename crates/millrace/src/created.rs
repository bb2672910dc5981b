//! `Created`: the files that opening drives has made, removed again where the whole fails.
//!
//! Owns paths with the file that was made at each (device and inode): whatever lies there else is
//! nobody's to remove. A file counts as made if none was there before its drive was opened. Used by
//! opening.rs and assemble.rs while they open, and by whoever has opened and fails afterwards.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use millrace_drives::Spec;

/// A file's device and inode, which tell it apart from all others.
pub type FileId = (u64, u64);

/// The file that lies at a path, if one does.
#[must_use]
pub fn file_id(path: &Path) -> Option<FileId> {
    fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()))
}

/// Files that opening drives has made, in the order of the drives.
#[derive(Debug, Clone, Default)]
pub struct Created {
    files: Vec<(PathBuf, FileId)>,
}

impl Created {
    /// Where they are.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// Removes them, but for those in whose places other files are by now. What cannot be removed
    /// stays.
    pub fn remove(&mut self) {
        for (path, made) in self.files.drain(..) {
            if file_id(&path) == Some(made) {
                let _ = fs::remove_file(&path);
            }
        }
    }

    /// Those after the first `count`.
    #[must_use]
    pub fn after(&self, count: usize) -> Created {
        Created { files: self.files[count.min(self.files.len())..].to_vec() }
    }

    /// The files of further drives, after these.
    pub fn append(&mut self, other: &mut Created) {
        self.files.append(&mut other.files);
    }
}

/// Files of an opening that is not done: dropped, it removes them.
#[derive(Default)]
pub(crate) struct Unfinished(Created);

impl Unfinished {
    /// The file that the drive of a spec would make; none if there is one.
    pub(crate) fn before(spec: &Spec) -> Option<PathBuf> {
        spec.file().filter(|path| file_id(path).is_none())
    }

    /// Notes what was opened at a path where no file was.
    pub(crate) fn note(&mut self, path: Option<PathBuf>, opened: Option<FileId>) {
        self.0.files.extend(path.zip(opened));
    }

    /// Takes over the file of a drive that is open.
    pub(crate) fn take(&mut self, created: &mut Created) {
        self.0.append(created);
    }

    /// The files, which stay in this list.
    pub(crate) fn so_far(&self) -> &Created {
        &self.0
    }

    /// All is open: the files stay.
    pub(crate) fn keep(&mut self) -> Created {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Unfinished {
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

    /// What lies in the folder after a failure.
    fn left(folder: &Path) -> Vec<String> {
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        fs::read_dir(folder).unwrap().map(|entry| name(entry.unwrap())).collect()
    }

    #[test]
    fn a_stripe_that_fails_removes_the_files_that_it_has_made_and_no_others() {
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
        let mut files = Unfinished::default();
        fs::write(&path, "made").unwrap();
        files.note(Some(path.clone()), file_id(&path));
        fs::rename(&path, dir.path().join("kept")).unwrap();
        fs::write(&path, "another").unwrap();
        drop(files);
        assert_eq!(fs::read(&path).unwrap(), b"another");
    }
}

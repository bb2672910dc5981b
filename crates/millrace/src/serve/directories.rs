//! Looks up and lists the files of a directory that are exports. No name leads out of the
//! directory.
//!
//! A name is resolved below the directory with `openat2(2)` and `RESOLVE_BENEATH`, so that neither
//! `..` nor a symbolic link leads out of it. The file is opened later through the descriptor from
//! that lookup, so that nobody can replace it in between.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use millrace_drives::{FileAccess, Spec, SpecError};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use super::config::ExportDirectory;

/// Keys of the driver `file` that the server sets or omits itself for each file of a directory.
/// These keys are ignored in `ExportDirectory::file_keys`.
const OWN_KEYS: [&str; 4] = ["path", "size", "grow", "read-only"];

/// A file that was found and is not opened for I/O yet.
pub(super) struct FoundFile {
    /// `O_PATH` descriptor: refers to the file without access to its contents.
    handle: OwnedFd,
    /// Device and inode of the file.
    pub(super) identity: (u64, u64),
}

impl FoundFile {
    /// Returns a path that reaches the file even after a rename, while this value exists.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.handle.as_raw_fd()).into()
    }
}

#[derive(Debug, Default)]
pub(super) struct FileList {
    /// Sorted names of the files that can be exports.
    pub(super) names: Vec<String>,
    /// Number of directory entries that cannot be exports: entries that are no regular files, links
    /// that lead out of the directory or to no regular file, and names that are not UTF-8 or have
    /// control characters.
    pub(super) skipped: usize,
}

impl ExportDirectory {
    pub(super) fn spec(&self, path: &Path, access: FileAccess) -> Result<Spec, SpecError> {
        let read_only = if access == FileAccess::ReadOnly { "on" } else { "off" };
        let own = [
            ("path".to_owned(), path.to_string_lossy().into_owned()),
            ("read-only".to_owned(), read_only.to_owned()),
        ];
        let others = self.file_keys.iter().filter(|(key, _)| !OWN_KEYS.contains(&key.as_str()));
        Spec::from_pairs("file", own.into_iter().chain(others.cloned()))
    }

    /// Checks that the path is a directory.
    pub(super) fn check(&self) -> Result<(), String> {
        self.open().map(drop).map_err(|error| self.failure(error))
    }

    fn open(&self) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, &self.path, flags, Mode::empty())
    }

    fn failure(&self, error: Errno) -> String {
        format!("directory {}: {}", self.path.display(), io::Error::from(error))
    }

    /// Finds the file with this name. Returns `None` if there is none, and an error if the entry of
    /// that name is not a regular file or cannot be reached.
    pub(super) fn find(&self, name: &str) -> Result<Option<FoundFile>, String> {
        if !is_file_name(name) {
            return Ok(None);
        }
        let directory = self.open().map_err(|error| self.failure(error))?;
        let handle = match open_beneath(&directory, OsStr::new(name)) {
            Ok(handle) => handle,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::XDEV | Errno::LOOP) => {
                return Err(format!(
                    "{name} is a link that leads out of its directory, or in a circle"
                ));
            }
            Err(error @ (Errno::MFILE | Errno::NFILE)) => {
                let error = io::Error::from(error);
                return Err(format!("{name}: {error}: raise the limit (`ulimit -n`)"));
            }
            Err(error) => return Err(format!("{name}: {}", io::Error::from(error))),
        };
        let file = File::from(handle);
        let meta = file.metadata().map_err(|error| format!("{name}: {error}"))?;
        if !meta.is_file() {
            return Err(format!("{name} is not a regular file"));
        }
        let identity = (meta.dev(), meta.ino());
        Ok(Some(FoundFile { handle: file.into(), identity }))
    }

    /// Lists the files. Opens and locks none of them.
    pub(super) fn list(&self) -> Result<FileList, String> {
        let failed = |error: io::Error| format!("directory {}: {error}", self.path.display());
        let directory = self.open().map_err(|error| self.failure(error))?;
        let mut list = FileList::default();
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let is_file = match entry.file_type() {
                Ok(kind) if kind.is_symlink() => open_beneath(&directory, &name)
                    .and_then(|handle| rustix::fs::fstat(&handle))
                    .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file()),
                kind => kind.is_ok_and(|kind| kind.is_file()),
            };
            match name.into_string() {
                Ok(name) if is_file && is_file_name(&name) => list.names.push(name),
                _ => list.skipped += 1,
            }
        }
        list.names.sort_unstable();
        Ok(list)
    }
}

fn open_beneath(directory: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(directory, name, flags, Mode::empty(), ResolveFlags::BENEATH)
}

/// Returns true if a file of this name can be an export: the name must not be a path, and must be
/// printable in a log line.
fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains('/') && !name.contains(char::is_control)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_are_found_and_listed_and_nothing_outside_of_directory() {
        let dir = tempfile::tempdir().unwrap();
        let images = dir.path().join("images");
        std::fs::create_dir(&images).unwrap();
        for path in ["images/b", "images/a", "secret"] {
            std::fs::write(dir.path().join(path), path).unwrap();
        }
        std::fs::create_dir(images.join("sub")).unwrap();
        std::fs::write(images.join("sub/c"), "c").unwrap();
        symlink("a", images.join("inside")).unwrap();
        symlink("../secret", images.join("outside")).unwrap();
        symlink(dir.path().join("secret"), images.join("absolute")).unwrap();
        symlink("loop", images.join("loop")).unwrap();
        symlink("none", images.join("dangling")).unwrap();
        std::fs::write(images.join("new\nline"), "x").unwrap();
        let directory = ExportDirectory::new(&images);
        let list = directory.list().unwrap();
        assert_eq!(list.names, ["a", "b", "inside"]);
        assert_eq!(list.skipped, 6);
        let found = directory.find("a").unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(found.path()).unwrap(), "images/a");
        let same = directory.find("inside").unwrap().unwrap();
        assert_eq!(same.identity, found.identity);
        for name in ["", ".", "..", "../secret", "sub/c", "/etc/passwd", "none", "dangling"] {
            assert!(directory.find(name).unwrap().is_none(), "{name}");
        }
        for (name, why) in [
            ("outside", "leads out of its directory"),
            ("absolute", "leads out of its directory"),
            ("loop", "in a circle"),
            ("sub", "is not a regular file"),
        ] {
            let said = directory.find(name).err().unwrap();
            assert!(said.contains(why), "{name}: {said}");
        }
        // Whatever has the name by now.
        std::fs::remove_file(images.join("a")).unwrap();
        symlink("../secret", images.join("a")).unwrap();
        assert_eq!(std::fs::read_to_string(found.path()).unwrap(), "images/a");
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let said = ExportDirectory::new("/nowhere/images").check().unwrap_err();
        assert_eq!(said, "directory /nowhere/images: No such file or directory (os error 2)");
    }
}

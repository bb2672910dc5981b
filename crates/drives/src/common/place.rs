//! `DataPlace`: identifies the data of a drive, and tells whether the drive writes to these data.
//!
//! The identity tells whether two open drives would destroy each other's data. For a file that does
//! not exist yet, the identity is made from its directory and name. NBD servers and Ceph clusters
//! report an identity when they are queried.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Mutex;

use millrace_machine::lock_unpoisoned;

/// Identifies the storage that holds a drive's data: a file, block device, NBD export or Ceph
/// image. Also tells whether the drive accepts writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataPlace {
    /// Pair of numbers that is the same for all drives with the same data:
    /// - (device, inode) of a file,
    /// - (device number, 0) of a block device,
    /// - two hashes that identify an NBD export or a Ceph image.
    pub identity: (u64, u64),
    /// True if the drive rejects writes.
    pub read_only: bool,
}

/// Returns two numbers that identify a file. If the file does not exist yet, they are a hash of its
/// directory and name.
pub(crate) fn file_identity(path: &Path) -> Option<(u64, u64)> {
    Some(match std::fs::metadata(path) {
        Ok(meta) => identity_of(&meta),
        Err(_) => {
            let folder = std::fs::metadata(folder_of(path)).ok()?;
            two_numbers(&(folder.dev(), folder.ino(), path.file_name()?))
        }
    })
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new("."))
}

pub(crate) fn identity_of(meta: &Metadata) -> (u64, u64) {
    match meta.file_type().is_block_device() {
        true => (meta.rdev(), 0),
        false => (meta.dev(), meta.ino()),
    }
}

/// Returns two hashes of a value. Different values practically never have the same two hashes.
pub(crate) fn two_numbers(value: &impl Hash) -> (u64, u64) {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, value).hash(&mut hasher);
        hasher.finish()
    };
    (half(0), half(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_one_place_under_all_names_before_and_after_creation() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| file_identity(&dir.path().join(name));
        let before = at("x").unwrap();
        assert_eq!((at("./x"), at("y") == at("x")), (Some(before), false));
        std::fs::write(dir.path().join("x"), []).unwrap();
        std::fs::hard_link(dir.path().join("x"), dir.path().join("y")).unwrap();
        assert_eq!(at("x"), at("y"));
        assert_ne!(at("x"), Some(before));
        assert_eq!(at("no/x"), None, "no directory, no file");
    }
}

/// Identities of the data that drives of this process have open, each with its number of drives.
/// Locks of files and of Ceph images do not keep one process from opening the same data twice.
static HELD: Mutex<BTreeMap<(u64, u64), usize>> = Mutex::new(BTreeMap::new());

/// Entry of a drive in the list of open data. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct HeldData((u64, u64));

impl HeldData {
    pub(crate) fn shared(identity: (u64, u64)) -> HeldData {
        *lock_unpoisoned(&HELD).entry(identity).or_default() += 1;
        HeldData(identity)
    }

    /// Returns `None` if another drive of this process has the data open.
    pub(crate) fn sole(identity: (u64, u64)) -> Option<HeldData> {
        let mut all = lock_unpoisoned(&HELD);
        let is_new = !all.contains_key(&identity);
        is_new.then(|| {
            all.insert(identity, 1);
            HeldData(identity)
        })
    }

    pub(crate) fn exists(identity: (u64, u64)) -> bool {
        lock_unpoisoned(&HELD).contains_key(&identity)
    }
}

impl Drop for HeldData {
    fn drop(&mut self) {
        let mut all = lock_unpoisoned(&HELD);
        if let Some(drives) = all.get_mut(&self.0) {
            *drives -= 1;
            if *drives == 0 {
                all.remove(&self.0);
            }
        }
    }
}

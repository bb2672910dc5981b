//! `Place`: where a drive keeps its data, and whether it writes there.
//!
//! Plain data, which tells whether two drives would destroy each other's data. Files have theirs
//! before they are opened, and before they are made; servers and clusters say it when they are
//! asked. Made by open.rs; compared by whoever opens several drives.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Where a drive keeps its data, and whether it writes there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Device and inode of a file, number of a block device and 0, or two numbers made of an NBD
    /// export or of a Ceph image: equal for two drives if they keep their data in one place.
    pub identity: (u64, u64),
    /// The drive takes no writes.
    pub read_only: bool,
}

impl Place {
    /// Whether drives at both places would be in each other's way: it is one place, and one of them
    /// writes there.
    #[must_use]
    pub fn clashes_with(&self, other: &Place) -> bool {
        self.identity == other.identity && !(self.read_only && other.read_only)
    }
}

/// The identity of a file, which may not be there yet; none if it cannot be there.
pub(crate) fn file_identity(path: &Path) -> Option<(u64, u64)> {
    Some(match std::fs::metadata(path) {
        Ok(meta) if meta.file_type().is_block_device() => (meta.rdev(), 0),
        Ok(meta) => (meta.dev(), meta.ino()),
        Err(_) => {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = std::fs::metadata(folder.unwrap_or(Path::new("."))).ok()?;
            two_numbers(&(folder.dev(), folder.ino(), path.file_name()?))
        }
    })
}

/// Two numbers that only equal values have in common.
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
    fn only_two_readers_share_a_place() {
        let place = |identity, read_only| Place { identity, read_only };
        let (reader, writer) = (place((1, 2), true), place((1, 2), false));
        assert!(!reader.clashes_with(&reader));
        assert!(reader.clashes_with(&writer) && writer.clashes_with(&reader));
        assert!(writer.clashes_with(&writer) && !writer.clashes_with(&place((1, 3), false)));
    }

    #[test]
    fn a_file_has_one_place_under_all_its_names_before_it_is_made_and_after() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| file_identity(&dir.path().join(name));
        let before = at("x").unwrap();
        assert_eq!((at("./x"), at("y") == at("x")), (Some(before), false));
        std::fs::write(dir.path().join("x"), []).unwrap();
        std::fs::hard_link(dir.path().join("x"), dir.path().join("y")).unwrap();
        assert_eq!(at("x"), at("y"));
        assert_ne!(at("x"), Some(before));
        assert_eq!(at("no/x"), None, "no folder, no file");
    }
}

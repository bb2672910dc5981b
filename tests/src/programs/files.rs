//! Files that programs copy, pack and unpack: a long file, a tree of many small ones, and its
//! archive.
//!
//! Sizes are drawn from a fixed seed, so that each run has the same files. Called by `volume` and
//! `guest`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use millrace_random::SplitMix64;

use crate::serving::{pattern, succeed};

/// Files of a directory, and the most bytes of a file of the tree.
const FILES_A_DIR: u32 = 20;
const FILE_BYTES_MAX: f64 = 1024.0 * 1024.0;

/// Amounts of data for the programs.
#[derive(Debug, Clone, Copy)]
pub struct Amounts {
    /// Size of the file that is copied, in MiB.
    pub copy_mib: u32,
    /// Files of the tree.
    pub files: u32,
    /// Mean size of the tree's files in bytes; many are smaller, a few much larger.
    pub file_bytes: u32,
}

impl Amounts {
    /// Room for all of it, twice, and for the file system's own.
    pub(super) fn volume_mib(self) -> u32 {
        let tree_bytes = u64::from(self.files) * u64::from(self.file_bytes + 8192);
        128 + 2 * self.copy_mib + 4 * (tree_bytes >> 20) as u32
    }
}

/// Makes `dir` with the file `long`, and the tree's archive beside it, whose path it returns.
///
/// # Panics
/// If there is no room, or tar fails.
pub(super) fn make(dir: &Path, amounts: Amounts) -> PathBuf {
    fs::create_dir(dir).expect("the temporary directory is writable");
    fs::write(dir.join("long"), pattern((amounts.copy_mib as usize) << 20, 1))
        .expect("the temporary directory has room");
    let (root, archive) = (dir.with_file_name("trees"), dir.with_file_name("tree.tar"));
    tree(&root.join("tree"), amounts);
    succeed(Command::new("tar").arg("-C").arg(&root).arg("-cf").arg(&archive).arg("tree"));
    fs::remove_dir_all(root).expect("it is this function's own");
    archive
}

/// A tree of files with exponentially distributed sizes, like a source tree.
fn tree(root: &Path, amounts: Amounts) {
    let mut random = SplitMix64::new(11);
    let mut dir = root.to_owned();
    for number in 0..amounts.files {
        if number % FILES_A_DIR == 0 {
            dir = root.join(format!("d{}", number / FILES_A_DIR));
            fs::create_dir_all(&dir).expect("the temporary directory is writable");
        }
        let spread = -(1.0 - random.fraction()).ln();
        let bytes = (spread * f64::from(amounts.file_bytes)).min(FILE_BYTES_MAX);
        fs::write(dir.join(format!("f{number}.c")), pattern(bytes as usize, u64::from(number) + 1))
            .expect("the temporary directory has room");
    }
}

//! The guest's boot image: Debian's kernel, and an initial RAM file system made on the spot.
//!
//! Owns a directory with the archive: busybox, the kernel's modules, e2fsprogs, fio, blkdiscard
//! with the libraries that they need, and `init.sh`. Called by the tests before anything is
//! started; calls `kernel`, `cpio` and `ldd`. The directory is removed with its owner.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::cpio::Archive;
use super::kernel::{Kernel, read_module};
use crate::{client, run};

/// Programs of this machine that a guest has too, at the same place.
const PROGRAMS: [&str; 4] = ["mkfs.ext4", "e2fsck", "blkdiscard", "fio"];
const INIT: &str = include_str!("init.sh");

/// A kernel and an archive for it.
pub struct Image {
    kernel: PathBuf,
    dir: TempDir,
}

impl Image {
    /// Makes an image of about 90 MB in 0.3 s, or returns None and prints what this machine lacks.
    ///
    /// # Panics
    ///
    /// When something is missing and `MILLRACE_REQUIRE_CLIENTS` is set, or a file cannot be read.
    #[must_use]
    pub fn build() -> Option<Self> {
        if !cfg!(target_arch = "x86_64") {
            println!("skipped: guests are x86-64, and run the programs of this machine");
            return None;
        }
        client("qemu-system-x86_64")?;
        let busybox = client("busybox")?;
        let programs = PROGRAMS.iter().map(|name| client(name)).collect::<Option<Vec<_>>>()?;
        let is_static = libraries(&busybox).is_empty();
        let kernel = match Kernel::find() {
            Ok(kernel) if is_static => kernel,
            Ok(_) => return lacks("busybox is not static (Debian package busybox-static)"),
            Err(why) => return lacks(&why),
        };
        let dir = crate::tempdir();
        let archive = write(&dir.path().join("initrd"), &busybox, &programs, &kernel.modules);
        archive.unwrap_or_else(|error| panic!("cannot write the guest's programs: {error}"));
        Some(Self { kernel: kernel.image, dir })
    }

    /// The kernel's file.
    pub fn kernel(&self) -> &Path {
        &self.kernel
    }

    /// The archive's file.
    pub fn initrd(&self) -> PathBuf {
        self.dir.path().join("initrd")
    }
}

/// As for a missing client: skipped with the reason, or failed where nothing may be missing.
fn lacks(why: &str) -> Option<Image> {
    millrace_require::skip(format_args!("guests cannot be started: {why}"));
    None
}

fn write(to: &Path, busybox: &Path, programs: &[PathBuf], modules: &[PathBuf]) -> io::Result<()> {
    let mut archive = Archive::new(BufWriter::new(File::create(to)?));
    archive.file("/init", INIT.as_bytes())?;
    archive.file("/bin/busybox", &fs::read(busybox)?)?;
    for folder in ["/dev", "/proc", "/sys", "/tmp", "/sbin"] {
        archive.folder(folder)?;
    }
    let mut order = String::new();
    for module in modules {
        let name = module.file_stem().expect("a module has a name").to_string_lossy();
        let name = name.trim_end_matches(".ko");
        archive.file(&format!("/modules/{name}"), &read_module(module))?;
        order.push_str(name);
        order.push('\n');
    }
    archive.file("/modules/order", order.as_bytes())?;
    let needed: BTreeSet<String> = programs.iter().flat_map(|program| libraries(program)).collect();
    for library in needed {
        archive.file(&library, &fs::read(&library)?)?;
    }
    for program in programs {
        let name = program.file_name().expect("a program has a name").to_string_lossy();
        archive.file(&format!("/usr/sbin/{name}"), &fs::read(program)?)?;
    }
    archive.finish().map(drop)
}

/// The files of the libraries, and of the dynamic linker, that `program` needs; none if static.
fn libraries(program: &Path) -> Vec<String> {
    let output = run(Command::new("ldd").arg(program));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // `name => /path (address)`, or `/path (address)` of the linker; the vDSO has no path.
    let paths =
        text.lines().filter_map(|line| line.split_whitespace().find(|w| w.starts_with('/')));
    // For a static program, ldd prints the program's own name or a sentence.
    paths.filter(|path| Path::new(path) != program).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_needs_the_linker_and_the_c_library() {
        let found = libraries(Path::new("/bin/ls"));
        assert!(found.iter().any(|path| path.contains("ld-linux")), "{found:?}");
        assert!(found.iter().any(|path| path.contains("libc.so")), "{found:?}");
    }
}

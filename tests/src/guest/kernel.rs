//! Debian's kernel on this machine: its image, and the modules that a guest loads, in order.
//!
//! Reads /boot and /lib/modules, changes nothing; calls `xz` or `zstd` for compressed modules.
//! Called by `image`. Takes the newest readable kernel, whichever kernel the machine itself runs.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::run;

/// Modules without which no guest starts.
const WANTED: [&str; 3] = ["virtio_pci", "virtio_blk", "ext4"];
/// ext4 asks the kernel for the first by its alias; newer kernels have it built in. The others are
/// schedulers that a guest may choose.
const IF_THERE: [&str; 3] = ["crc32c_generic", "kyber_iosched", "bfq"];

/// A kernel and its modules.
#[derive(Debug)]
pub struct Kernel {
    /// The compressed image that QEMU boots.
    pub image: PathBuf,
    /// Files of modules below /lib/modules; each comes after the modules that it needs.
    pub modules: Vec<PathBuf>,
}

impl Kernel {
    /// Finds the newest readable kernel of this machine. The error says what was found instead.
    pub fn find() -> Result<Self, String> {
        Self::find_in(Path::new("/boot"), Path::new("/lib/modules"))
    }

    fn find_in(boot: &Path, modules: &Path) -> Result<Self, String> {
        let mut best: Option<(SystemTime, Self)> = None;
        let mut why = format!("no kernel in {} (Debian package linux-image-amd64)", boot.display());
        let versions = fs::read_dir(modules).into_iter().flatten().flatten();
        for version in versions {
            let image = boot.join(format!("vmlinuz-{}", version.file_name().to_string_lossy()));
            match usable(image, &version.path()) {
                Ok(found) if best.as_ref().is_none_or(|(time, _)| *time < found.0) => {
                    best = Some(found);
                }
                Ok(_) => {}
                Err(reason) => why = reason,
            }
        }
        best.map(|(_, kernel)| kernel).ok_or(why)
    }
}

fn usable(image: PathBuf, modules: &Path) -> Result<(SystemTime, Kernel), String> {
    let explain = |path: &Path, error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("{} is readable only by root: chmod a+r it, or run as root", path.display())
        }
        _ => format!("{}: {error}", path.display()),
    };
    // Being listed is not enough: some distributions keep kernels from users.
    let opened = File::open(&image).and_then(|file| file.metadata()?.modified());
    let modified = opened.map_err(|error| explain(&image, error))?;
    let list = modules.join("modules.dep");
    let text = fs::read_to_string(&list).map_err(|error| explain(&list, error))?;
    let builtin = fs::read_to_string(modules.join("modules.builtin")).unwrap_or_default();
    let modules = in_order(&text, &builtin)?.iter().map(|file| modules.join(file)).collect();
    Ok((modified, Kernel { image, modules }))
}

/// The files to load for all wanted modules, from the texts of modules.dep and modules.builtin.
fn in_order(list: &str, builtin: &str) -> Result<Vec<String>, String> {
    let is_builtin = |name: &str| builtin.lines().any(|line| module_name(line) == name);
    let line_of = |name: &str| {
        let mut lines = list.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(file, _)| module_name(file) == name)
    };
    let mut order: Vec<String> = Vec::new();
    for name in IF_THERE.iter().chain(&WANTED) {
        let Some((file, needs)) = line_of(name) else {
            if IF_THERE.contains(name) || is_builtin(name) {
                continue;
            }
            return Err(format!("this kernel has no module {name}"));
        };
        // depmod lists everything that is needed, also indirectly, in the reverse of the order in
        // which it must be loaded.
        for file in needs.split_whitespace().rev().chain([file]) {
            if !order.iter().any(|known| known == file) {
                order.push(file.to_owned());
            }
        }
    }
    Ok(order)
}

/// `virtio_pci` for `kernel/drivers/virtio/virtio-pci.ko.xz`: dashes and underscores are the same.
fn module_name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.split(".ko").next().unwrap_or(base).replace('-', "_")
}

/// The contents of a module's file, unpacked here, since a kernel may not support the compression.
///
/// # Panics
///
/// When it cannot be read or unpacked.
pub fn read_module(path: &Path) -> Vec<u8> {
    let unpacker = match path.extension().and_then(|end| end.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())),
    };
    let output = run(Command::new(unpacker).arg("-dc").arg(path));
    assert!(output.status.success(), "{unpacker} -dc {}: {}", path.display(), output.status);
    output.stdout
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "k/virtio.ko: k/virtio_ring.ko\nk/virtio_ring.ko:\n\
        k/virtio_blk.ko: k/virtio.ko k/virtio_ring.ko\nk/crc16.ko:\nk/jbd2.ko:\n\
        k/virtio_pci.ko: k/virtio.ko k/virtio_ring.ko\nk/ext4.ko.xz: k/crc16.ko k/jbd2.ko\n";

    #[test]
    fn a_module_comes_once_and_after_those_that_it_needs() {
        let order = in_order(LIST, "").unwrap();
        let expected = [
            "k/virtio_ring.ko",
            "k/virtio.ko",
            "k/virtio_pci.ko",
            "k/virtio_blk.ko",
            "k/jbd2.ko",
            "k/crc16.ko",
            "k/ext4.ko.xz",
        ];
        assert_eq!(order, expected);
    }

    #[test]
    fn built_in_module_is_not_loaded_and_a_missing_one_is_named() {
        let list = LIST.replace("k/virtio_pci.ko: ", "k/other.ko: ");
        assert_eq!(in_order(&list, "k/virtio-pci.ko\n").unwrap().len(), 6);
        assert_eq!(in_order(&list, "").unwrap_err(), "this kernel has no module virtio_pci");
    }

    #[test]
    fn without_a_kernel_its_package_is_named() {
        let dir = crate::tempdir();
        let why = Kernel::find_in(dir.path(), dir.path()).unwrap_err();
        assert!(why.ends_with("(Debian package linux-image-amd64)"), "{why}");
    }
}

//! Finds the programs that the tests use as clients, and says which package has a missing one.
//!
//! A missing client skips its test with a printed reason, unless `MILLRACE_REQUIRE_CLIENTS` is set:
//! then it fails, so that CI cannot pass by testing nothing. Called by `client` and
//! `require_clients!`; reads only PATH and the directories on it.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run;

/// Programs and the Debian packages that have them; others are named like their package.
const PACKAGES: &[(&str, &str)] = &[
    ("blkdiscard", "util-linux"),
    ("blkiomon", "blktrace"),
    ("blkparse", "blktrace"),
    ("btt", "blktrace"),
    ("busybox", "busybox-static"),
    ("ceph", "ceph-common"),
    ("debugfs", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("fsck.ext4", "e2fsprogs"),
    ("fusermount3", "fuse3"),
    ("gdb", "gdb"),
    ("mke2fs", "e2fsprogs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("monmaptool", "ceph-base"),
    ("nbdcopy", "libnbd-bin"),
    ("nbddump", "libnbd-bin"),
    ("nbdfuse", "libnbd-bin"),
    ("nbdinfo", "libnbd-bin"),
    ("nbdsh", "python3-libnbd"),
    ("python3", "python3"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("qemu-nbd", "qemu-utils"),
    ("qemu-storage-daemon", "qemu-system-common"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("rbd", "ceph-common"),
    ("script", "bsdutils"),
    ("setpriv", "util-linux"),
    ("stty", "coreutils"),
    ("systemd-analyze", "systemd"),
    ("unshare", "util-linux"),
];

/// Where programs for root live; a user's PATH often leaves them out.
const SYSTEM_DIRS: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The path of the program `name`, or None with a printed reason if it is not installed.
///
/// # Panics
///
/// When it is not installed and `MILLRACE_REQUIRE_CLIENTS` is set.
pub fn client(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = find(name, &path);
    if found.is_none() {
        let package = package(name);
        millrace_require::skip(format_args!(
            "{name} is not installed; install the Debian package {package}"
        ));
    }
    found
}

fn find(name: &str, path: &OsStr) -> Option<PathBuf> {
    let system = SYSTEM_DIRS.iter().map(PathBuf::from);
    env::split_paths(path).chain(system).map(|dir| dir.join(name)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn package(name: &str) -> &str {
    PACKAGES.iter().find(|(program, _)| *program == name).map_or(name, |(_, package)| package)
}

/// libnbd's shell with the system's Python, for which its module is packaged; None with a
/// printed reason if it does not run.
///
/// # Panics
///
/// As [`client`].
pub fn nbdsh() -> Option<Command> {
    let path = client("nbdsh")?;
    let system = format!("/usr/bin:/bin:{}", std::env::var("PATH").unwrap_or_default());
    let shell = || {
        let mut command = Command::new(&path);
        command.env("PATH", &system);
        command
    };
    let output = run(shell().args(["-c", "pass"]));
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        millrace_require::skip(format_args!(
            "nbdsh does not run (Debian package python3-libnbd): {}",
            why.trim()
        ));
        return None;
    }
    Some(shell())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_program_is_found_and_a_directory_is_none() {
        let dir = crate::tempdir();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("data"), "").unwrap();
        let path = dir.path().as_os_str();
        assert_eq!(find("sub", path), None);
        assert_eq!(find("data", path), None);
        let shell = client("sh").unwrap();
        assert!(is_program(&shell));
    }

    #[test]
    fn a_program_names_the_package_that_has_it() {
        assert_eq!(package("qemu-img"), "qemu-utils");
        assert_eq!(package("fio"), "fio");
    }
}

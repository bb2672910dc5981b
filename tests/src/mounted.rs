//! An export as a file system of this machine: nbdfuse, a loop device, a mount.
//!
//! If a test fails, guards clean up in reverse order of their declaration: the file system, the
//! loop device, the fuse mount, then the daemon. Needs root, /dev/fuse and loop devices;
//! [`obstacle`] names the one that is refused, as in most containers. Called by the tests of file
//! systems and by `programs`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::serving::succeed;
use crate::{client, run, tempdir};

const TIMEOUT: Duration = Duration::from_secs(20);

fn within(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        sleep(Duration::from_millis(10));
    }
}

/// An export as a file in a mounted directory.
pub struct Fuse {
    child: Child,
    dir: PathBuf,
}

impl Fuse {
    /// Mounts the export `uri` at `dir`, which is made.
    ///
    /// # Panics
    /// If nbdfuse ends or does not serve the file in time.
    #[must_use]
    pub fn mount(uri: &str, dir: &Path) -> Fuse {
        Fuse::with(uri, dir, &[])
    }

    /// [`mount`](Self::mount) over one connection, so that requests seldom overtake each other.
    ///
    /// # Panics
    /// As [`mount`](Self::mount).
    #[must_use]
    pub fn over_one_connection(uri: &str, dir: &Path) -> Fuse {
        Fuse::with(uri, dir, &["--connections", "1"])
    }

    fn with(uri: &str, dir: &Path, options: &[&str]) -> Fuse {
        fs::create_dir_all(dir).unwrap();
        let mut command = Command::new("nbdfuse");
        command.args(options).arg(dir.join("disk")).arg(uri).stdin(Stdio::null());
        let child = command.spawn().unwrap();
        let mut fuse = Fuse { child, dir: dir.to_owned() };
        within("nbdfuse", || {
            assert_eq!(fuse.child.try_wait().unwrap(), None, "nbdfuse ended");
            fuse.disk().exists()
        });
        fuse
    }

    /// The export as a file.
    #[must_use]
    pub fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// Stops nbdfuse, so that the file system answers nothing until the guard drops. Declare the
    /// guard after everything that uses the file: a process blocked in the file system cannot be
    /// reaped.
    #[must_use]
    pub fn hang(&self) -> Hang<'_> {
        self.signal("STOP");
        Hang(self)
    }

    fn signal(&self, signal: &str) {
        succeed(Command::new("kill").args(["-s", signal, &self.child.id().to_string()]));
    }

    /// Unmounts, and waits until nbdfuse has flushed and ended.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn unmount(mut self) {
        // The loop device may hold the file for a moment after its file system is unmounted.
        let unmount = || run(Command::new("fusermount3").arg("-u").arg(&self.dir)).status.success();
        within("fusermount3", unmount);
        within("the end of nbdfuse", || self.child.try_wait().unwrap().is_some());
    }
}

/// A file system that answers nothing.
pub struct Hang<'a>(&'a Fuse);

impl Drop for Hang<'_> {
    fn drop(&mut self) {
        self.0.signal("CONT");
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            run(Command::new("fusermount3").arg("-uz").arg(&self.dir));
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A mounted file system.
pub struct Mount {
    dir: PathBuf,
    mounted: bool,
}

impl Mount {
    /// Mounts the ext4 file system in the file `disk` at `dir`, which is made.
    ///
    /// # Panics
    /// If mount refuses.
    #[must_use]
    pub fn new(disk: &Path, dir: &Path, options: &str) -> Mount {
        // With `loop` the kernel frees the loop device with the mount.
        Mount::of(disk, dir, &format!("loop,{options}"))
    }

    /// Mounts the ext4 file system on a block device.
    ///
    /// # Panics
    /// If mount refuses.
    #[must_use]
    pub fn of_device(device: &Loop, dir: &Path) -> Mount {
        Mount::of(&device.0, dir, "rw")
    }

    fn of(device: &Path, dir: &Path, options: &str) -> Mount {
        fs::create_dir_all(dir).unwrap();
        succeed(Command::new("mount").args(["-t", "ext4", "-o", options]).arg(device).arg(dir));
        Mount { dir: dir.to_owned(), mounted: true }
    }

    /// Where it is mounted.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts.
    ///
    /// # Panics
    /// If umount refuses.
    pub fn unmount(mut self) {
        succeed(Command::new("umount").arg(&self.dir));
        self.mounted = false;
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            run(Command::new("umount").arg("-l").arg(&self.dir));
        }
    }
}

/// A loop device that bypasses the page cache of its file, so that each I/O of the file system is
/// an I/O of the file.
pub struct Loop(PathBuf);

impl Loop {
    /// A loop device over `file`.
    ///
    /// # Panics
    /// If losetup refuses.
    #[must_use]
    pub fn direct(file: &Path) -> Loop {
        let mut command = Command::new("losetup");
        command.args(["--direct-io=on", "--find", "--show"]).arg(file);
        Loop(succeed(&mut command).trim().into())
    }

    /// Sets an attribute of the device's queue, such as `read_ahead_kb`.
    ///
    /// # Panics
    /// If the kernel refuses.
    pub fn set(&self, attribute: &str, value: u32) {
        let file = self.attribute(attribute);
        fs::write(&file, value.to_string())
            .unwrap_or_else(|error| panic!("{} = {value}: {error}", file.display()));
    }

    /// An attribute of the device's queue that is a number.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn number(&self, attribute: &str) -> u32 {
        let file = self.attribute(attribute);
        let text =
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        text.trim().parse().unwrap_or_else(|error| panic!("{}: {text}: {error}", file.display()))
    }

    fn attribute(&self, name: &str) -> PathBuf {
        let device = self.0.file_name().unwrap();
        Path::new("/sys/block").join(device).join("queue").join(name)
    }

    /// Detaches the device once no process has it open.
    ///
    /// # Panics
    /// If losetup refuses.
    pub fn detach(self) {
        succeed(Command::new("losetup").arg("--detach").arg(&self.0));
        std::mem::forget(self);
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        run(Command::new("losetup").arg("--detach").arg(&self.0));
    }
}

/// The reason for which this machine allows no mounts, if it does not.
///
/// # Panics
/// If a program needed for the check cannot be run.
#[must_use]
pub fn obstacle() -> Option<String> {
    let user = succeed(Command::new("id").arg("-u"));
    if user.trim() != "0" {
        return Some("only root may mount".to_owned());
    }
    if let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    // Attaching and mounting may be refused where listing is not.
    let dir = tempdir();
    let disk = dir.path().join("probe");
    fs::File::create(&disk).and_then(|file| file.set_len(4 << 20)).unwrap();
    succeed(Command::new(client("mkfs.ext4")?).args(["-q", "-F"]).arg(&disk));
    let point = dir.path().join("mnt");
    fs::create_dir(&point).unwrap();
    let output = run(Command::new("mount").args(["-o", "loop"]).arg(&disk).arg(&point));
    if !output.status.success() {
        return Some(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    succeed(Command::new("umount").arg(&point));
    None
}

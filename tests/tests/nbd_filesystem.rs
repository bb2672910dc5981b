//! A real file system on an export: ext4 through nbdfuse and a loop device, over a restart.
//!
//! Needs root, /dev/fuse and loop devices; where one is refused, as in most containers, the test
//! says so and is skipped. Guards unmount and end what a test leaves when it fails, in the order of
//! their declaration's reverse: the file system, then the fuse mount, then the daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use millrace_tests::serving::{backends, four_files, stripe, succeed, uri};
use millrace_tests::{Daemon, client, require_clients, run, tempdir};

const TIMEOUT: Duration = Duration::from_secs(20);

fn within(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        sleep(Duration::from_millis(10));
    }
}

/// An export as a file in a mounted directory.
struct Fuse {
    child: Child,
    dir: PathBuf,
}

impl Fuse {
    fn mount(uri: &str, dir: &Path) -> Fuse {
        fs::create_dir_all(dir).unwrap();
        let mut command = Command::new("nbdfuse");
        command.arg(dir.join("disk")).arg(uri).stdin(Stdio::null());
        let child = command.spawn().unwrap();
        let mut fuse = Fuse { child, dir: dir.to_owned() };
        within("nbdfuse", || {
            assert_eq!(fuse.child.try_wait().unwrap(), None, "nbdfuse ended");
            fuse.disk().exists()
        });
        fuse
    }

    fn disk(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// Unmounts, and waits until nbdfuse has flushed and ended.
    fn unmount(mut self) {
        // The loop device may hold the file for a moment after its file system is unmounted.
        let unmount = || run(Command::new("fusermount3").arg("-u").arg(&self.dir)).status.success();
        within("fusermount3", unmount);
        within("the end of nbdfuse", || self.child.try_wait().unwrap().is_some());
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
struct Mount {
    dir: PathBuf,
    mounted: bool,
}

impl Mount {
    fn new(disk: &Path, dir: &Path, options: &str) -> Mount {
        fs::create_dir_all(dir).unwrap();
        // With `loop` the kernel frees the loop device with the mount.
        let options = format!("loop,{options}");
        succeed(Command::new("mount").args(["-t", "ext4", "-o", &options]).arg(disk).arg(dir));
        Mount { dir: dir.to_owned(), mounted: true }
    }

    fn unmount(mut self) {
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

/// Why this machine lets nobody mount, if so.
fn obstacle() -> Option<String> {
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

fn is_clean(disk: &Path) {
    succeed(Command::new(client("e2fsck").unwrap()).arg("-fn").arg(disk));
}

fn survives(backend: &str, tree: &Path) {
    let work = tempdir();
    let (fuse_dir, mnt) = (work.path().join("fuse"), work.path().join("mnt"));
    let config = stripe(backend, &four_files(work.path(), 64, ""));

    let mut daemon = Daemon::start(&config, &["s"]);
    let fuse = Fuse::mount(&uri(&daemon, "v"), &fuse_dir);
    succeed(Command::new(client("mkfs.ext4").unwrap()).args(["-q", "-F"]).arg(fuse.disk()));
    let mount = Mount::new(&fuse.disk(), &mnt, "rw");
    succeed(Command::new("cp").arg("-a").arg(tree).arg(mnt.join("tree")));
    // Something large, something small, something gone.
    fs::write(mnt.join("large"), vec![0xa5; 20 << 20]).unwrap();
    fs::write(mnt.join("gone"), vec![0x5a; 8 << 20]).unwrap();
    succeed(Command::new("sync").arg("-f").arg(&mnt));
    fs::remove_file(mnt.join("gone")).unwrap();
    mount.unmount();
    is_clean(&fuse.disk());
    fuse.unmount();
    let status = daemon.terminate();
    assert!(status.success(), "{status}: {}", daemon.stderr());
    drop(daemon);

    let daemon = Daemon::start(&config, &["s"]);
    let fuse = Fuse::mount(&uri(&daemon, "v"), &fuse_dir);
    is_clean(&fuse.disk());
    let mount = Mount::new(&fuse.disk(), &mnt, "ro");
    succeed(Command::new("diff").args(["-r", "--no-dereference"]).arg(tree).arg(mnt.join("tree")));
    assert!(fs::read(mnt.join("large")).unwrap() == vec![0xa5; 20 << 20]);
    assert!(!mnt.join("gone").exists());
    mount.unmount();
    fuse.unmount();
}

#[test]
fn ext4_on_an_export_keeps_a_source_tree_over_a_restart() {
    require_clients!("nbdfuse", "fusermount3", "mkfs.ext4", "e2fsck", "mount");
    if let Some(why) = obstacle() {
        return millrace_require::skip(format_args!("no loop mount on this machine: {why}"));
    }
    // A copy, because the sources may change while the test runs.
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let copy = tempdir();
    let tree = copy.path().join("crates");
    succeed(Command::new("cp").arg("-r").arg(own.with_file_name("crates")).arg(&tree));
    for backend in backends() {
        survives(backend, &tree);
    }
}
